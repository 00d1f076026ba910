"""Which form of micro-batch a model can take: check at start-up by trying it.

The padded form runs on stock attention and is the reference. The packed form is used where it gives
the same log-probs and gradients; a model with another kind of attention, or a kernel that aligns
its causal mask otherwise, is noticed here and not in a learning curve.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from mupo_ray.data.encode import EncodedPrompt
from mupo_ray.errors import ConfigError
from mupo_ray.train.batch import MicroBatch, Sharing, TrainItem, micro_batches
from mupo_ray.train.policy import DeepSpeedPolicy

if TYPE_CHECKING:
    from mupo_ray.config import Config

logger = logging.getLogger(__name__)

# Largest differences that rounding explains: log-probs absolute, gradients relative to their norm.
# One wrong position moves a log-prob by 3e-3 and gradients by 80 %.
_LIMITS = {"float32": (1e-4, 1e-3), "bfloat16": (1e-1, 1e-1)}
_MAX_PROMPT, _MAX_RESPONSE = 256, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck:
    """Packed against padded on the same made-up cohorts."""

    logprob_diff: float
    """Largest, absolute."""
    gradient_diff: float
    """Norm of the difference over the norm."""
    gain: float
    """Seconds of the padded form over those of the packed one, forward and backward."""
    shape: str
    """What was tried, in words."""


def make_policy(config: Config) -> DeepSpeedPolicy:
    """The policy of a run, in the form that suits its model (C).

    Raises:
        ConfigError: as `DeepSpeedPolicy` and `choose_sharing`.
    """
    policy = DeepSpeedPolicy(config)
    policy.set_sharing(choose_sharing(policy))
    return policy


def choose_sharing(policy: DeepSpeedPolicy) -> Sharing:
    """The form that `train.prefix_sharing` asks for, after trying it (C); says so in the log.

    Raises:
        ConfigError: `packed` is asked for and this model or its kernel is not exact in it.
    """
    wanted = policy.config.train.prefix_sharing
    if wanted in ("vision_only", "off"):
        return Sharing(wanted)
    limits = _LIMITS[policy.config.model.dtype]
    try:
        check = self_check(policy)
    except (RuntimeError, TypeError, ValueError, ImportError) as err:
        reason = f"{type(err).__name__}: {err}"
    else:
        worst = torch.tensor([check.logprob_diff, check.gradient_diff], device=policy.device)
        # A NaN must not pass, nor get lost in a maximum over ranks.
        worst = worst.nan_to_num(nan=torch.inf)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        logprob_diff, gradient_diff = worst.tolist()
        figures = f"log-probs differ by {logprob_diff:.1e}, gradients by {gradient_diff:.1e}"
        if logprob_diff <= limits[0] and gradient_diff <= limits[1]:
            logger.info(
                "prompts are shared (packed rows): %s from padded ones; %.1f times as fast on %s",
                figures,
                check.gain,
                check.shape,
            )
            return Sharing.PACKED
        reason = f"{figures} from padded ones, allowed are {limits[0]:.0e} and {limits[1]:.0e}"
    if wanted == "packed":
        raise ConfigError(
            f"train.prefix_sharing: packed rows are not exact for this model here ({reason}); "
            "`auto` falls back to `vision_only`"
        )
    logger.warning("prompts are not shared, only their images: %s", reason)
    return Sharing.VISION_ONLY


def self_check(policy: DeepSpeedPolicy) -> SelfCheck:
    """Compare the two forms on cohorts shaped like the run's, at most 256 + 64 tokens long (C)."""
    items, shape = _probe(policy)
    logprobs, gradients, seconds = {}, {}, {}
    for sharing in (Sharing.VISION_ONLY, Sharing.PACKED):
        policy.set_sharing(sharing)
        (batch,) = micro_batches(items, max_tokens=10**9, layout=policy.layout)
        took = []
        for _ in range(3):
            began = time.perf_counter()
            logprobs[sharing], gradients[sharing] = _by_token(policy, batch)
            took.append(time.perf_counter() - began)
        seconds[sharing] = min(took)
    plain, packed = Sharing.VISION_ONLY, Sharing.PACKED
    return SelfCheck(
        logprob_diff=float((logprobs[packed] - logprobs[plain]).abs().max()),
        gradient_diff=float(
            (gradients[packed] - gradients[plain]).norm() / gradients[plain].norm()
        ),
        gain=seconds[plain] / seconds[packed],
        shape=shape,
    )


def _by_token(policy: DeepSpeedPolicy, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """[T] log-probs, and the gradient of a weighted sum of them for each token id, [V, H].

    Tokens' embeddings lie below everything that differs between the forms, and adding up by id
    makes rows and columns of the two forms comparable.
    """
    leaf: list[torch.Tensor] = []

    def keep(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        leaf.append(output.detach().requires_grad_())
        return leaf[0]

    embedding = policy.model.get_input_embeddings()
    handle = embedding.register_forward_hook(keep)
    try:
        # Not through the engine, which at ZeRO 0 refuses every backward pass but its own.
        logprobs, _ = policy.engine.module(batch.to(policy.device), 1.0, False)
    finally:
        handle.remove()
    weights = torch.linspace(-1.0, 1.0, len(logprobs), device=logprobs.device)
    (gradient,) = torch.autograd.grad((logprobs * weights).sum(), leaf)
    rows = gradient.flatten(0, 1).float()
    by_id = torch.zeros(int(batch.input_ids.max()) + 1, rows.shape[1], device=rows.device)
    by_id.index_add_(0, batch.input_ids.flatten().to(rows.device), rows)
    return logprobs.detach(), by_id


def _probe(policy: DeepSpeedPolicy) -> tuple[list[TrainItem], str]:
    """A cohort like the run's with a tiny image, and a short one without."""
    config: Config = policy.config
    count = config.rollout.num_generations
    longest = min(_MAX_RESPONSE, config.rollout.max_new_tokens)
    words = min(_MAX_PROMPT, config.data.max_prompt_tokens)
    rng = np.random.default_rng(0)
    filler = policy.layout.filler
    # Below the tokens that stand for images, which are the last ones of Qwen's vocabularies.
    limit = int(filler.input_ids.min())

    def item(prompt: EncodedPrompt, lengths: list[int]) -> TrainItem:
        text = torch.from_numpy(rng.integers(0, limit, words))
        return TrainItem(
            prompt=EncodedPrompt(
                input_ids=torch.cat([prompt.input_ids, text]),
                mm_token_type_ids=torch.cat([prompt.mm_token_type_ids, torch.zeros_like(text)]),
                pixel_values=prompt.pixel_values,
                image_grid_thw=prompt.image_grid_thw,
            ),
            completion_ids=tuple(rng.integers(0, limit, n) for n in lengths),
            sampler_logprobs=tuple(np.zeros(n, np.float32) for n in lengths),
            advantages=tuple(np.zeros(n) for n in lengths),
            is_given=(None,) * len(lengths),
        )

    bare = EncodedPrompt(
        input_ids=filler.input_ids[:0],
        mm_token_type_ids=filler.mm_token_type_ids[:0],
        pixel_values=filler.pixel_values[:0],
        image_grid_thw=filler.image_grid_thw[:0],
    )
    lengths = [max(1, longest >> (i % 3)) for i in range(count)]
    shape = f"{count} responses of up to {longest} tokens to a prompt of {words + 3}"
    return [item(filler, lengths), item(bare, [1, 2])], shape
