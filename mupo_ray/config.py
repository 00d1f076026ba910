"""The configuration: one strict, frozen tree, read from YAML files and dotted overrides.

Precedence: field defaults < `--config` files from left to right < `section.field=value` overrides.
A variant (the method, say) is replaced whole when a later layer gives it another `name`.
Derived values are properties; a validator may reject but never rewrites what was asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from mupo_ray.settings.rewards import (
    ExtraRewardConfig,
    ModelJudgeConfig,
    OverlongConfig,
    RewardConfig,
)
from mupo_ray.settings.sections import (
    CheckpointConfig,
    CollapseConfig,
    CosineAnnealing,
    DataConfig,
    EmbedderConfig,
    EvalConfig,
    ExponentialAnnealing,
    FilterConfig,
    GrpoConfig,
    LoraConfig,
    LossConfig,
    ModelConfig,
    MupoConfig,
    OptimizerConfig,
    PassKConfig,
    PlacementConfig,
    RolloutConfig,
    RunConfig,
    Section,
    SyncConfig,
    TrackingConfig,
    TrainConfig,
)

__all__ = [
    "CheckpointConfig",
    "CollapseConfig",
    "Config",
    "CosineAnnealing",
    "DataConfig",
    "EmbedderConfig",
    "EvalConfig",
    "ExponentialAnnealing",
    "ExtraRewardConfig",
    "FilterConfig",
    "GrpoConfig",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "ModelJudgeConfig",
    "MupoConfig",
    "OptimizerConfig",
    "OverlongConfig",
    "PassKConfig",
    "PlacementConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "Section",
    "SyncConfig",
    "TrackingConfig",
    "TrainConfig",
]


class Config(Section):
    """Everything that a run depends on."""

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
    method: Annotated[GrpoConfig | MupoConfig | PassKConfig, Field(discriminator="name")] = (
        MupoConfig()
    )
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

    @property
    def run_dir(self) -> Path:
        """Folder of this run."""
        return Path(self.run.storage_path).expanduser().absolute() / self.run.name

    @model_validator(mode="after")
    def groups_fit_the_cohort(self) -> Self:
        """Every group can have its smallest size."""
        if isinstance(self.method, MupoConfig):
            need = self.method.num_groups * self.method.min_group_size
            if need > self.rollout.num_generations:
                raise ValueError(
                    f"method.num_groups * method.min_group_size = {need} exceeds "
                    f"rollout.num_generations = {self.rollout.num_generations}; "
                    "lower one of the first two or sample more"
                )
        return self

    @model_validator(mode="after")
    def k_fits_the_cohort(self) -> Self:
        """A k-subset needs k responses, and pass@k rewards nothing but accuracy."""
        if isinstance(self.method, PassKConfig):
            if self.method.k > self.rollout.num_generations:
                raise ValueError(
                    f"method.k = {self.method.k} exceeds rollout.num_generations = "
                    f"{self.rollout.num_generations}; should be at most that"
                )
            if self.reward.extra or self.reward.overlong is not None:
                raise ValueError(
                    "method.name = pass_k rewards accuracy alone; reward.extra and reward.overlong "
                    "should be empty"
                )
        return self

    @model_validator(mode="after")
    def diversity_leaves_accuracy_a_weight(self) -> Self:
        """The release's form takes the diversity weight out of the accuracy's."""
        method = self.method
        if isinstance(method, MupoConfig) and method.reward_form == "release":
            start, weight = method.diversity_weight.start, self.reward.accuracy_weight
            if start > weight:
                raise ValueError(
                    f"method.diversity_weight.start = {start} exceeds reward.accuracy_weight = "
                    f"{weight}; with method.reward_form release it should be at most that"
                )
            highest = start * self.collapse.max_weight_factor
            if self.collapse.action == "raise_diversity_weight" and highest > weight:
                raise ValueError(
                    f"method.diversity_weight.start * collapse.max_weight_factor = {highest:g} "
                    f"exceeds reward.accuracy_weight = {weight}; with method.reward_form release "
                    "it should be at most that"
                )
        return self

    @model_validator(mode="after")
    def a_collapse_action_has_what_it_acts_on(self) -> Self:
        """Alarms come from evaluations with diversity; only MUPO has a weight to raise."""
        action, method = self.collapse.action, self.method
        if action == "none":
            return self
        if self.eval.path is None or self.eval.num_samples < 2:
            raise ValueError(
                f"collapse.action = {action} needs evaluations that measure diversity, got "
                f"eval.path = {self.eval.path}, eval.num_samples = {self.eval.num_samples}; give "
                "a set and at least 2 samples, or set the action to none"
            )
        if action == "stop":
            return self
        if not isinstance(method, MupoConfig):
            raise ValueError(
                f"collapse.action = {action} needs a method with a diversity weight, got "
                f"method.name = {method.name}; should be mupo, or the action none or stop"
            )
        if method.num_groups == 1 or method.diversity_weight.start == 0:
            raise ValueError(
                f"collapse.action = {action} has no diversity reward to raise: method.num_groups = "
                f"{method.num_groups}, method.diversity_weight.start = "
                f"{method.diversity_weight.start:g}; should be above 1 and above 0"
            )
        return self

    @model_validator(mode="after")
    def sampled_logprobs_are_the_policys(self) -> Self:
        """Engines report log-probabilities before temperature or after the nucleus cut."""
        rollout = self.rollout
        if rollout.temperature != 1.0 and rollout.top_p < 1.0:
            raise ValueError(
                f"rollout.temperature = {rollout.temperature:g} with rollout.top_p = "
                f"{rollout.top_p:g}: the engine's log-probabilities would be those of the cut "
                "nucleus, not the policy's; set one of the two to 1"
            )
        return self

    @model_validator(mode="after")
    def longest_sequence_fits(self) -> Self:
        """A longest prompt with a longest response fits an engine and a micro-batch."""
        longest = self.data.max_prompt_tokens + self.rollout.max_new_tokens
        for field, limit in (
            ("rollout.max_model_len", self.rollout.max_model_len),
            ("train.micro_batch_tokens", self.train.micro_batch_tokens),
        ):
            if longest > limit:
                raise ValueError(
                    f"data.max_prompt_tokens + rollout.max_new_tokens = {longest} exceeds {field} "
                    f"= {limit}; should be at most that"
                )
        overlong = self.reward.overlong
        if overlong is not None and overlong.buffer_tokens > self.rollout.max_new_tokens:
            raise ValueError(
                f"reward.overlong.buffer_tokens = {overlong.buffer_tokens} exceeds "
                f"rollout.max_new_tokens = {self.rollout.max_new_tokens}; should be at most that"
            )
        return self

    @model_validator(mode="after")
    def every_update_has_a_prompt(self) -> Self:
        """The prompts of a step are shared out among its updates."""
        if self.train.updates_per_step > self.data.prompts_per_step:
            raise ValueError(
                f"train.updates_per_step = {self.train.updates_per_step} exceeds "
                f"data.prompts_per_step = {self.data.prompts_per_step}; should be at most that"
            )
        return self

    @model_validator(mode="after")
    def cpu_has_no_gpu_features(self) -> Self:
        """GPU-only choices need run.device cuda."""
        if self.run.device == "cuda":
            return self
        for field, value, wrong in (
            ("sync.transport", self.sync.transport, self.sync.transport in ("nccl", "ipc")),
            ("train.offload_optimizer", True, self.train.offload_optimizer),
            (
                "embedder.gpus_per_actor",
                self.embedder.gpus_per_actor,
                self.embedder.gpus_per_actor > 0,
            ),
        ):
            if wrong:
                raise ValueError(f"{field} = {value} needs run.device cuda, got cpu")
        return self

    @model_validator(mode="after")
    def transport_suits_the_placement(self) -> Self:
        """Memory handles need a shared card; NCCL refuses one."""
        needs = {"ipc": "colocated", "nccl": "split"}.get(self.sync.transport)
        if needs is not None and self.placement.mode != needs:
            raise ValueError(
                f"sync.transport = {self.sync.transport} needs placement.mode {needs}, got "
                f"{self.placement.mode}; auto chooses by placement"
            )
        return self

    @model_validator(mode="after")
    def colocated_engines_find_cards(self) -> Self:
        """On GPUs, each colocated engine sits on trainers' cards of its own."""
        if self.run.device == "cuda" and self.placement.mode == "colocated":
            cards = self.rollout.num_engines * self.rollout.tensor_parallel_size
            if cards > self.train.num_workers:
                raise ValueError(
                    f"rollout.num_engines * rollout.tensor_parallel_size = {cards} exceeds "
                    f"train.num_workers = {self.train.num_workers}; colocated engines sit on the "
                    "trainers' cards, so it should be at most that"
                )
        return self
