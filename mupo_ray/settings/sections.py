"""The sections of the configuration; `config.py` closes the tree.

Every field says in the text below it what it means. A rule inside one section is a validator of
that section, named as a sentence; rules across sections are in `config.py`. A method's section
stands in the method's file, with the rules that it brings.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values never change after load."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class RunConfig(Section):
    """Where a run lives and what seeds it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")] = "mupo"
    """Folder of the run below `storage_path`; the same name again resumes it."""
    storage_path: str = "runs"
    """Folder (on a cluster: a shared one) that holds all runs."""
    seed: NonNegativeInt = 0
    """Seeds data order, sampling and grouping."""
    device: Literal["cpu", "cuda"] = "cpu"
    """What trainers and engines compute on."""


class LoraConfig(Section):
    """Low-rank adapters in the decoder, trained in place of the weights."""

    rank: PositiveInt = 16
    """Width of the adapters' matrices."""
    alpha: PositiveInt = 32
    """The adapter's product is added times alpha / rank."""
    targets: tuple[
        Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], ...
    ] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Layers that get one."""


class ModelConfig(Section):
    """The policy to start from."""

    path: str = "runs/demo/model"
    """Hugging Face folder or id of a Qwen2.5-VL or Qwen3-VL model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type of trainer and engines."""
    freeze_vision: bool = False
    """Leave the vision tower as it is."""
    gradient_checkpointing: bool = False
    """Trade compute for memory in the backward pass."""
    lora: LoraConfig | None = None
    """Train low-rank adapters of the decoder alone; all weights are trained where null."""


class DataConfig(Section):
    """Prompts to train on."""

    train: str = "runs/demo/data/train.parquet"
    """Parquet file, folder of them, or glob: columns problem, images, answer."""
    prompts_per_step: PositiveInt = 16
    """Prompts that one step trains on, over all workers."""
    max_prompt_tokens: PositiveInt = 64
    """A prompt over this many tokens, images included, is dropped whole and counted."""
    min_pixels: PositiveInt | None = None
    """Smaller pictures are scaled up to this many pixels; the processor's own limit where null."""
    max_pixels: PositiveInt | None = None
    """Larger pictures are scaled down to this many pixels; the processor's own limit where null."""
    template: str = "plain"
    """Prompt template: `plain`, `paper`, `math`, `r1v`, or a text file holding `{problem}`."""
    system_prompt: str | None = None
    """System message of the chat; none where null."""
    batch_rows: PositiveInt = 16
    """Rows that one Ray Data task decodes and renders."""
    cpus_per_task: PositiveFloat = 0.1
    """CPU share that one Ray Data task reserves."""
    timeout_s: Seconds = 300.0
    """Longest wait for the next prompts."""

    @model_validator(mode="after")
    def pixel_limits_are_in_order(self) -> Self:
        """The lower pixel limit does not exceed the upper one."""
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(
                f"min_pixels = {self.min_pixels} exceeds max_pixels = {self.max_pixels}; "
                "should be at most that"
            )
        return self


class RolloutConfig(Section):
    """How responses are sampled."""

    num_generations: Annotated[int, Field(ge=2)] = 12
    """Responses sampled for a prompt (N)."""
    max_new_tokens: PositiveInt = 32
    """Longest response."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature in training."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus of sampling in training."""
    num_engines: PositiveInt = 1
    """vLLM engine actors."""
    tensor_parallel_size: PositiveInt = 1
    """Devices of one engine."""
    cpus_per_engine: PositiveFloat = 0.5
    """CPU share that one engine reserves."""
    max_num_seqs: PositiveInt = 256
    """Sequences that one engine runs at a time; requests beyond it wait in the pool."""
    max_model_len: PositiveInt = 128
    """Longest prompt plus response that an engine accepts."""
    max_images: PositiveInt = 1
    """Most pictures in one prompt."""
    kv_cache_gib: PositiveFloat = 0.25
    """Memory for the KV cache of an engine on CPU."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of a GPU that an engine may fill."""
    enforce_eager: bool = True
    """Skip graph capture; always so on CPU."""
    request_timeout_s: Seconds = 300.0
    """Longest wait for one prompt's responses; then the request is aborted and the step fails."""
    start_timeout_s: Seconds = 600.0
    """Longest wait for an engine to come up."""
    max_restarts: NonNegativeInt = 2
    """Times that a dead engine is started again within a run."""


class EmbedderConfig(Section):
    """How reasoning texts become vectors."""

    model: str = "minilm"
    """`minilm` (carried by the `cpu` extra), or a sentence-transformers id or folder."""
    num_actors: PositiveInt = 1
    """Embedder actors."""
    cpus_per_actor: PositiveFloat = 0.25
    """CPU share that one actor reserves."""
    gpus_per_actor: NonNegativeFloat = 0.0
    """0: on CPU. Above: on a GPU, a trainer's card where colocated, else this share of one."""
    batch_size: PositiveInt = 64
    """Texts in one forward pass."""
    max_tokens: PositiveInt = 256
    """A longer text is cut here."""
    cache_texts: NonNegativeInt = 100_000
    """Embeddings kept by text, the least recently used dropped first."""
    timeout_s: Seconds = 300.0
    """Longest wait for one call."""
    on_failure: Literal["stop", "one_group"] = "stop"
    """Stop the run, or fall back to one group (plain GRPO) for the step and count it."""


COMMON_PARTS = ("accuracy", "format", "overlong")
"""Parts of the reward that any method may have; a method names its own beside them."""


class OverlongConfig(Section):
    """DAPO's soft penalty for responses near the length limit."""

    buffer_tokens: PositiveInt = 8
    """The penalty grows from 0 to `penalty` over this many last tokens."""
    penalty: PositiveFloat = 1.0
    """Largest penalty."""


class ExtraRewardConfig(Section):
    """A reward of one's own, a Python function."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
    """Name of the part, in metrics and records."""
    path: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    """`module:function`; called for each response with its unweighted parts and a context."""
    weight: float = 1.0
    """What the value is multiplied by; below 0 makes it a penalty."""


class ModelJudgeConfig(Section):
    """A model that judges answers, at an address that speaks OpenAI's chat completions."""

    base_url: Annotated[str, Field(pattern=r"^https?://\S+$")] = "http://127.0.0.1:8000/v1"
    """Address, up to and with `/v1`."""
    model: str = "judge"
    """Name of the model at that address."""
    asked_for: Literal["open_answers", "not_right"] = "open_answers"
    """Golds of free words that rules find no match for, or all answers that rules do not call
    right."""
    prompt: str = (
        "Question: {question}\nReference answer: {gold}\nAnswer to grade: {answer}\n\n"
        "How well does the answer say what the reference says, from 0.0 (not at all) to 1.0 "
        "(fully)? Reply with the number alone."
    )
    """What the model is asked; holds `{gold}` and `{answer}`, and may hold `{question}`. The last
    line of the reply has to hold one number from 0 to 1."""
    max_tokens: PositiveInt = 16
    """Longest reply."""
    timeout_s: Seconds = 30.0
    """Longest wait for one reply."""
    max_retries: NonNegativeInt = 2
    """Further tries after a failed connection, a late reply or a busy server."""
    max_concurrent: PositiveInt = 16
    """Questions under way at a time, from one worker."""
    cache_answers: NonNegativeInt = 100_000
    """Scores kept by content of the prompt, the least recently used dropped first."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable with the key; may be unset where the server wants none."""

    @model_validator(mode="after")
    def prompt_shows_both_answers(self) -> Self:
        """Without them there is nothing to compare."""
        missing = [part for part in ("{gold}", "{answer}") if part not in self.prompt]
        if missing:
            raise ValueError(f"prompt lacks {' and '.join(missing)}; should hold both")
        return self


class RewardConfig(Section):
    """Reward of a response before a method adds to it."""

    accuracy_weight: NonNegativeFloat = 0.9
    """Weight of a right answer."""
    format_weight: NonNegativeFloat = 0.1
    """Weight of the asked-for shape."""
    overlong: OverlongConfig | None = None
    """Penalty for responses near the length limit; off where null."""
    extra: tuple[ExtraRewardConfig, ...] = ()
    """Rewards of one's own, each `{name: ..., path: "module:function", weight: ...}`."""
    model_judge: ModelJudgeConfig | None = None
    """A model that judges what rules do not decide; off where null."""
    verify_timeout_s: Seconds = 5.0
    """Hard limit on the comparison of one answer."""

    @model_validator(mode="after")
    def some_reward_has_weight(self) -> Self:
        """A response can earn something."""
        extra = sum(abs(reward.weight) for reward in self.extra)
        if self.accuracy_weight + self.format_weight + extra == 0:
            raise ValueError(
                "accuracy_weight and format_weight are both 0; at least one should be above 0"
            )
        return self

    @model_validator(mode="after")
    def extra_rewards_have_names_of_their_own(self) -> Self:
        """A part is known by its name."""
        taken = {*COMMON_PARTS, "total"}
        for reward in self.extra:
            if reward.name in taken:
                raise ValueError(f"extra has {reward.name!r} twice, or it is a part's name already")
            taken.add(reward.name)
        return self


class MethodConfig(Section):
    """Base of every method's own section, which stands in the method's file.

    A method of one's own (`module:Class`) leaves `name` as it is here.
    """

    name: str = ""
    """The method: one of the package's, or `module:Class` of your own on PYTHONPATH."""

    method_class: ClassVar[Any]
    """Class of the method that this section is of; set where that is defined."""

    def check(self, config: Sections) -> None:
        """Rules that need other sections too; the base has those of a method without such needs.

        Raises:
            ValueError: two sections do not go together.
        """
        if config.collapse.decides_rewards:
            raise ValueError(
                f"collapse.action = {config.collapse.action} needs a method with a diversity "
                f"weight, got method.name = {self.name}; should be mupo, or the action none or stop"
            )


class LossConfig(Section):
    """The surrogate objective."""

    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: PositiveFloat = 0.28
    """The ratio is clipped above at 1 + clip_high (DAPO's clip-higher)."""
    dual_clip: Annotated[float | None, Field(gt=1)] = 3.0
    """Bound of the loss where the advantage is negative; off where null."""
    reduction: Literal["token_mean", "sequence_mean", "constant_length"] = "token_mean"
    """Weight of a token over the global batch; constant_length divides by max_new_tokens."""
    kl_coef: NonNegativeFloat = 0.01
    """Weight of the KL to the reference policy; 0 keeps no reference."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL."""
    entropy_coef: NonNegativeFloat = 0.0
    """Weight of an entropy bonus."""
    old_logprobs: Literal["sampler", "recompute"] = "sampler"
    """Old log-probabilities: the engine's, or a forward pass before the update."""
    importance_cap: PositiveFloat | None = 2.0
    """Cap of the truncated importance weight between sampler and trainer; off where null. Acts with
    `old_logprobs: recompute`."""


class FilterConfig(Section):
    """DAPO's dynamic sampling: keep cohorts that carry a signal, refill the step with others."""

    enabled: bool = False
    """Filter at all."""
    accuracy_low: Fraction = 0.01
    """A cohort whose mean accuracy is below is dropped."""
    accuracy_high: Fraction = 0.99
    """A cohort whose mean accuracy is above is dropped."""
    max_rounds: PositiveInt = 5
    """Sampling rounds of a step; then it trains on what it has."""

    @model_validator(mode="after")
    def window_is_open(self) -> Self:
        """Some accuracy lies inside the window."""
        if self.accuracy_low >= self.accuracy_high:
            raise ValueError(
                f"accuracy_low = {self.accuracy_low} leaves no room below accuracy_high = "
                f"{self.accuracy_high}; should be below it"
            )
        return self


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    lr: PositiveFloat = 2e-4
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    """AdamW's betas."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay."""
    grad_clip: PositiveFloat = 1.0
    """Largest global gradient norm."""
    warmup_steps: NonNegativeInt = 5
    """Steps over which the rate rises linearly."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """Course of the rate after the warm-up, down to 0 at the last step."""


class TrainConfig(Section):
    """The update."""

    num_steps: PositiveInt = 60
    """Training steps; each samples, scores, updates and broadcasts."""
    num_workers: PositiveInt = 1
    """Ray Train workers."""
    cpus_per_worker: PositiveFloat = 1.0
    """CPUs that one worker reserves."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed's ZeRO stage."""
    offload_optimizer: bool = False
    """Keep the optimiser's state in host memory (GPU only)."""
    prefix_sharing: Literal["auto", "packed", "vision_only", "off"] = "auto"
    """What the responses to a prompt share in the update. `packed`: the prompt and its images are
    computed once. `vision_only`: the images are. `off`: nothing. `auto`: packed, or vision_only
    where a check at start-up finds that packed is not exact for the model."""
    micro_batch_tokens: PositiveInt = 4096
    """Tokens of one forward pass on one worker, padding included and shared prompts once; at least
    one longest sequence."""
    updates_per_step: PositiveInt = 1
    """Optimiser steps that share one rollout."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW and its schedule."""
    max_failures: NonNegativeInt = 2
    """Times that Ray Train restarts dead workers from the last checkpoint."""
    collective_timeout_s: Seconds = 600.0
    """Longest wait in a collective between workers."""

    @model_validator(mode="after")
    def offload_needs_zero(self) -> Self:
        """DeepSpeed moves only a ZeRO optimiser's state to the host."""
        if self.offload_optimizer and self.zero_stage == 0:
            raise ValueError("offload_optimizer needs zero_stage 1, 2 or 3, got 0")
        return self


class SyncConfig(Section):
    """How new weights reach the engines."""

    transport: Literal["auto", "object_store", "nccl", "ipc"] = "auto"
    """`auto` follows the placement: ipc on a shared GPU, nccl between GPUs, object_store on CPU."""
    bucket_mib: PositiveInt = 64
    """Weights travel in buckets of this size."""
    pause: Literal["abort", "wait", "keep"] = "keep"
    """What becomes of requests in flight while weights are swapped."""
    timeout_s: Seconds = 120.0
    """Longest wait for any stage of a broadcast."""
    max_logprob_diff: PositiveFloat | None = None
    """Each step compares engine's and trainer's log-probabilities of the same tokens; the run stops
    where they differ by more than this. Only reported where null."""


class PlacementConfig(Section):
    """Where actors go."""

    mode: Literal["colocated", "split"] = "colocated"
    """Engines on the trainers' GPUs, or on GPUs of their own. On CPU each has its own CPUs."""
    timeout_s: Seconds = 60.0
    """Longest wait for the cluster to have what the plan needs."""
    check_memory: bool = True
    """Refuse a plan whose estimated memory exceeds what a node or GPU has; otherwise warn."""


class EvalConfig(Section):
    """Evaluation on held-out prompts during training."""

    path: str | None = "runs/demo/data/eval.parquet"
    """Parquet as for training; no evaluation where null."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] = "heldout"
    """Name of the set in metric keys."""
    every_steps: PositiveInt = 10
    """Evaluate at step 0, every so many steps, and at the end."""
    num_prompts: PositiveInt = 96
    """Rows of the set to use, from its start."""
    num_samples: Annotated[int, Field(ge=1)] = 16
    """Sampled responses a prompt, at temperature 1, for pass@k and diversity."""
    pass_k: tuple[PositiveInt, ...] = (1, 2, 4, 8)
    """Values of k; each at most num_samples."""

    @model_validator(mode="after")
    def pass_k_fits_the_samples(self) -> Self:
        """pass@k needs at least k samples."""
        if any(k > self.num_samples for k in self.pass_k):
            raise ValueError(
                f"pass_k = {list(self.pass_k)} asks for more than num_samples = "
                f"{self.num_samples}; should be at most that"
            )
        return self


class CollapseConfig(Section):
    """Alarm where evaluations show that ways of reasoning are lost."""

    diversity_share: NonNegativeFloat = 0.5
    """Alarm below this share of step 0's diversity; 0 is off."""
    strategies_share: NonNegativeFloat = 0.5
    """Alarm below this share of step 0's effective strategies beyond the first; 0 is off."""
    action: Literal["none", "stop", "raise_diversity_weight"] = "none"
    """What an alarm does beside a warning: nothing, end the run with a checkpoint, or raise MUPO's
    diversity weight."""
    weight_factor: Annotated[float, Field(gt=1)] = 2.0
    """The weight is multiplied by this at every evaluation that is below."""
    max_weight_factor: Annotated[float, Field(gt=1)] = 4.0
    """Most that the weight is multiplied by in all."""

    @property
    def decides_rewards(self) -> bool:
        """Whether evaluations, through the alarm, decide what is rewarded."""
        return self.action == "raise_diversity_weight"


class CheckpointConfig(Section):
    """Checkpoints."""

    every_steps: PositiveInt = 20
    """Save every so many steps and at the end."""
    keep: PositiveInt = 2
    """Latest checkpoints kept."""


class TrackingConfig(Section):
    """Records of a run beside `metrics.jsonl`."""

    backends: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Further trackers."""
    project: str = "mupo_ray"
    """Project or experiment name at those trackers."""
    cohorts_every_steps: PositiveInt = 10
    """Save sampled cohorts every so many steps."""
    cohorts_per_save: PositiveInt = 8
    """Cohorts in one save."""


class Sections(Section):
    """Everything that a run depends on, whatever its method; `config.py` closes the tree."""

    run: RunConfig = RunConfig()
    """Where a run lives and what seeds it."""
    model: ModelConfig = ModelConfig()
    """The policy to start from."""
    data: DataConfig = DataConfig()
    """Prompts to train on."""
    rollout: RolloutConfig = RolloutConfig()
    """How responses are sampled."""
    embedder: EmbedderConfig = EmbedderConfig()
    """How reasoning texts become vectors."""
    reward: RewardConfig = RewardConfig()
    """Reward of a response before the method adds to it."""
    method: MethodConfig = MethodConfig()
    """How rewards become advantages."""
    loss: LossConfig = LossConfig()
    """The surrogate objective."""
    filter: FilterConfig = FilterConfig()
    """Dynamic sampling."""
    train: TrainConfig = TrainConfig()
    """The update."""
    sync: SyncConfig = SyncConfig()
    """How new weights reach the engines."""
    placement: PlacementConfig = PlacementConfig()
    """Where actors go."""
    eval: EvalConfig = EvalConfig()
    """Evaluation during training."""
    collapse: CollapseConfig = CollapseConfig()
    """Alarm where ways of reasoning are lost."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    tracking: TrackingConfig = TrackingConfig()
    """Records of a run."""
