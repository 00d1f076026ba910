"""The policy that is trained and the frozen reference, on DeepSpeed (0.19) with ZeRO 0 to 3.

The same code runs on CPU (gloo) and GPU (nccl). Gradients of a step:

    for every micro-batch:  forward -> loss / global denominator -> backward (summed)
    DeepSpeed averages over ranks, so `backward` multiplies by their number: the result is the
    gradient of the global batch's loss whatever the number of ranks and micro-batches
    step: refuse what is not finite, clip, AdamW

In bfloat16 the optimizer holds float32 master weights and gradients add up in float32. ZeRO 0 has
no such mode in DeepSpeed, so bfloat16 at stage 0 uses DeepSpeed's BF16 optimizer, which keeps the
masters sharded as stage 1 does.
"""

from __future__ import annotations

import datetime
import logging
import math
import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from transformers import AutoModelForImageTextToText

from mupo_ray.data.encode import EncodedPrompt
from mupo_ray.errors import ConfigError, TrainingError
from mupo_ray.train.adapter import adapters_off, add_adapter
from mupo_ray.train.batch import Layout, MicroBatch, Sharing
from mupo_ray.train.prefix import set_attention
from mupo_ray.train.scorer import Scorer

if TYPE_CHECKING:
    from mupo_ray.config import Config
    from mupo_ray.settings.sections import OptimizerConfig

# Elements that DeepSpeed reduces or gathers at a time; its default would hold 2 GB of float32.
_BUCKET_ELEMENTS = 50_000_000
_OLD_COLLECTIVES = ".*(reduce_scatter_tensor|all_gather_into_tensor).* is deprecated"


class LogprobModel(Protocol):
    """What computes log-probs: the policy or the reference."""

    def score(
        self, batch: MicroBatch, temperature: float, *, with_entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs [T] and entropies ([T], or [0] where not asked for) of a micro-batch."""


class DeepSpeedPolicy:
    """The trained model with its optimizer. Construction and every method marked C are collective.

    Attributes:
        model: the Hugging Face model; under ZeRO-3 its parameters are partitioned.
        steps_done: finished optimizer steps.
        layout: how rows are built for this model.
    """

    def __init__(self, config: Config) -> None:
        """Load the model and build the engine (C). Rows are padded until `set_sharing`.

        Raises:
            ConfigError: the path holds no model that can be loaded or trained.
        """
        import deepspeed

        self.config = config
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        stage = config.train.zero_stage
        self._is_plain = stage == 0 and config.model.dtype == "float32"
        self.model = _load_model(config, _engine_config(config, stage), sharded=stage == 3)
        if config.model.freeze_vision:
            self.model.model.visual.requires_grad_(False)
        if config.model.lora is not None:
            add_adapter(self.model, config.model.lora, config.run.seed)
        if config.model.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model.train()
        self.layout = row_layout(self.model)
        scorer = Scorer(self.model)
        settings = config.train.optimizer
        trained = [p for p in scorer.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            trained,
            lr=settings.lr,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.engine, *_ = deepspeed.initialize(
            model=scorer,
            optimizer=optimizer,
            model_parameters=trained,
            config=_engine_config(config, stage, hidden_size=_hidden_size(self.model)),
        )
        self.device = torch.device(self.engine.device)
        self.steps_done = 0

    def set_sharing(self, sharing: Sharing) -> None:
        """Build and read micro-batches in this form from now on."""
        set_attention(self.model, is_packed=sharing is Sharing.PACKED)
        self.layout = replace(self.layout, sharing=sharing)

    @property
    def learning_rate(self) -> float:
        """Rate of the next optimizer step."""
        train = self.config.train
        return learning_rate_at(
            self.steps_done // train.updates_per_step, train.optimizer, train.num_steps
        )

    def score(
        self, batch: MicroBatch, temperature: float, *, with_entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs [T] and entropies of a micro-batch, with gradients where enabled (C)."""
        result: tuple[torch.Tensor, torch.Tensor] = self.engine(
            batch.to(self.device), temperature, with_entropy
        )
        return result

    def backward(self, loss: torch.Tensor, *, is_last: bool) -> None:
        """Add the gradient of this rank's share of the global loss (C).

        Args:
            loss: scalar, divided by global counts already.
            is_last: the optimizer step follows this micro-batch.
        """
        self.engine.set_gradient_accumulation_boundary(is_last)
        self.engine.backward(loss * self.world_size)

    def step(self) -> float:
        """Clip and apply the gradients (C).

        Returns:
            Their global norm before clipping.

        Raises:
            TrainingError: a gradient is not finite; parameters and optimizer are as before. All
                ranks raise it.
        """
        rate = self.learning_rate
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        if self._is_plain:
            norm = torch.nn.utils.clip_grad_norm_(
                [p for p in self.model.parameters() if p.requires_grad],
                self.config.train.optimizer.grad_clip,
            )
            # Gradients are reduced already, hence the same on every rank.
            if not bool(norm.isfinite()):
                raise _not_finite(self.steps_done)
            self.engine.step()
        else:
            self.engine.step()
            if not self.engine.was_step_applied():
                raise _not_finite(self.steps_done)
            norm = self.engine.get_global_grad_norm()
        self.steps_done += 1
        return float(norm)

    def skip_step(self) -> None:
        """Count a step that had no data, so that the schedule keeps to the run's steps."""
        self.steps_done += 1


class ReferencePolicy:
    """The frozen model that the KL term holds the policy to: the run's first weights."""

    def __init__(self, config: Config, sharing: Sharing) -> None:
        """Load it from `config.model.path` (C): sharded at ZeRO stage 3, else a copy a rank.

        Args:
            config: of the run.
            sharing: form of the micro-batches, as the policy's layout has it.
        """
        import deepspeed

        sharded = config.train.zero_stage == 3
        settings = _engine_config(config, 3 if sharded else 0)
        model = _load_model(config, settings, sharded=sharded).requires_grad_(False).eval()
        set_attention(model, is_packed=sharing is Sharing.PACKED)
        self._scorer: Any = Scorer(model)
        if sharded:
            settings = _engine_config(config, 3, hidden_size=_hidden_size(model))
            self._scorer, *_ = deepspeed.initialize(model=self._scorer, config=settings)
            self.device = torch.device(self._scorer.device)
        else:
            self.device = _device(config.run.device)
            self._scorer.to(self.device)

    def score(
        self, batch: MicroBatch, temperature: float, *, with_entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs [T] and entropies of a micro-batch, without gradients (C)."""
        with torch.no_grad():
            result: tuple[torch.Tensor, torch.Tensor] = self._scorer(
                batch.to(self.device), temperature, with_entropy
            )
        return result


class AdapterReference:
    """The reference of a policy that trains adapters: the same model without them."""

    def __init__(self, policy: DeepSpeedPolicy) -> None:
        self._policy = policy

    def score(
        self, batch: MicroBatch, temperature: float, *, with_entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs [T] and entropies of a micro-batch, without gradients (C)."""
        with torch.no_grad(), adapters_off(self._policy.model):
            return self._policy.score(batch, temperature, with_entropy=with_entropy)


def make_reference(policy: DeepSpeedPolicy) -> LogprobModel | None:
    """The frozen model of the KL term (C); None where `loss.kl_coef` is 0."""
    config = policy.config
    if config.loss.kl_coef == 0:
        return None
    if config.model.lora is not None:
        return AdapterReference(policy)
    return ReferencePolicy(config, policy.layout.sharing)


def init_distributed(device: str, timeout_s: float) -> None:
    """Join the training ranks: gloo on CPU, nccl on GPU (DeepSpeed 0.19).

    A process group that exists (Ray Train makes one) is used as it is; without one and without
    torchrun's variables this process trains alone.
    """
    # Read at DeepSpeed's import; it would pick a GPU that a CPU run must leave alone.
    os.environ.setdefault("DS_ACCELERATOR", device)
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed calls them by their old names for every bucket.
    warnings.filterwarnings("ignore", message=_OLD_COLLECTIVES)
    # Ranks of a CPU run reduce over gloo. The shared-memory kernel that DeepSpeed would prefer is
    # compiled at first use, a minute and a half for what saves milliseconds.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "gloo" if device == "cpu" else "nccl"
    os.environ.setdefault("LOCAL_RANK", "0")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if not dist.is_initialized():
        timeout = datetime.timedelta(seconds=timeout_s)
        if "RANK" in os.environ:
            dist.init_process_group(backend, timeout=timeout)
        else:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
    deepspeed.init_distributed(dist_backend=backend)


def learning_rate_at(step: int, settings: OptimizerConfig, num_steps: int) -> float:
    """Rate at a training step: a function of the step alone, so a resumed run continues exactly.

    Args:
        step: 0 is the first.
        settings: peak, warm-up and course.
        num_steps: steps of the whole run; `cosine` and `linear` would reach 0 at this step.
    """
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, num_steps - settings.warmup_steps)
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
    if settings.schedule == "linear":
        return settings.lr * max(0.0, 1.0 - done)
    return settings.lr


def _not_finite(steps_done: int) -> TrainingError:
    return TrainingError(
        f"a gradient of optimizer step {steps_done} is NaN or infinite; the weights are as before "
        "the step. Lower train.optimizer.lr, or train in float32 if this is bfloat16"
    )


def _engine_config(config: Config, stage: int, *, hidden_size: int = 0) -> dict[str, Any]:
    """DeepSpeed's configuration."""
    is_bf16 = config.model.dtype == "bfloat16"
    is_plain = stage == 0 and not is_bf16
    zero: dict[str, Any] = {
        "stage": 1 if stage == 0 and is_bf16 else stage,
        "reduce_bucket_size": _BUCKET_ELEMENTS,
        "allgather_bucket_size": _BUCKET_ELEMENTS,
        "overlap_comm": config.run.device == "cuda",
    }
    if stage == 3:
        # As transformers' integration sets it: norms and biases stay whole, matrices are sharded.
        zero["stage3_param_persistence_threshold"] = 10 * hidden_size
        zero["stage3_prefetch_bucket_size"] = _BUCKET_ELEMENTS
    if config.train.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {
        # Batches are cut by tokens, and boundaries and denominators are set by hand.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0 if is_plain else config.train.optimizer.grad_clip,
        "zero_allow_untested_optimizer": True,
        # With its state on the host, torch's fused AdamW runs there: nothing to compile.
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        "bf16": {"enabled": is_bf16, "check_grad_overflow": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "steps_per_print": None,
    }


def _load_model(config: Config, engine_config: dict[str, Any], *, sharded: bool) -> Any:
    """The model on the host; under ZeRO-3 every rank keeps only its part while loading."""
    partition = None
    if sharded:
        from transformers.integrations import HfDeepSpeedConfig

        # transformers shards while loading as long as this object lives.
        partition = HfDeepSpeedConfig(engine_config)
    try:
        model: Any = AutoModelForImageTextToText.from_pretrained(
            config.model.path,
            dtype=getattr(torch, config.model.dtype),
            attn_implementation="sdpa",
        )
    except (OSError, ValueError) as err:
        raise ConfigError(
            f"model.path: cannot load {config.model.path!r}; want a folder or id of a Qwen2.5-VL "
            f"or Qwen3-VL model ({err})"
        ) from err
    finally:
        del partition
    return model


def _hidden_size(model: Any) -> int:
    return int(model.config.get_text_config().hidden_size)


def _device(kind: str) -> torch.device:
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def row_layout(model: Any) -> Layout:
    """How rows for a Qwen2.5-VL or Qwen3-VL model are built; padded until `sharing` is set."""
    config = model.config
    vision = config.vision_config
    decoder = model.model

    def positions(prompt: EncodedPrompt) -> torch.Tensor:
        if len(prompt.image_grid_thw) == 0:
            return torch.arange(len(prompt.input_ids)).expand(3, -1)
        place, _ = decoder.get_rope_index(
            prompt.input_ids[None],
            mm_token_type_ids=prompt.mm_token_type_ids[None],
            image_grid_thw=prompt.image_grid_thw,
        )
        result: torch.Tensor = place[:, 0]
        return result

    merge = vision.spatial_merge_size
    channels = getattr(vision, "in_channels", None) or vision.in_chans
    patch = channels * vision.temporal_patch_size * vision.patch_size**2
    filler = EncodedPrompt(
        input_ids=torch.tensor(
            [config.vision_start_token_id, config.image_token_id, config.vision_end_token_id]
        ),
        mm_token_type_ids=torch.tensor([0, 1, 0]),
        pixel_values=torch.zeros(merge * merge, patch),
        image_grid_thw=torch.tensor([[1, merge, merge]]),
    )
    pad = config.get_text_config().pad_token_id
    return Layout(
        sharing=Sharing.VISION_ONLY,
        # Padding is never seen, so any token that stands for no image will do.
        pad_token_id=config.vision_end_token_id if pad is None else int(pad),
        positions=positions,
        filler=filler,
    )
