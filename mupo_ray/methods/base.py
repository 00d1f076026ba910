"""What a method decides. `Method` is GRPO in every hook; a method overrides what it changes.

    cohorts with verdicts --score--> rewards, groups, advantages --loss_terms--> update --observe-->
                                                                   what is remembered: `state`

GRPO arXiv:2402.03300. Cohorts come whole, so that sharding over ranks never shows. A method that
needs no torch at import keeps the driver light: tensors come into `loss_terms` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from mupo_ray.core import advantage
from mupo_ray.core.reward import overlong_penalty
from mupo_ray.settings.sections import MethodConfig
from mupo_ray.settings.variants import OpenTo, load_class
from mupo_ray.types import Cohort, Metric, ScoredCohort

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from mupo_ray.core.advantage import Advantages
    from mupo_ray.settings.sections import Sections
    from mupo_ray.types import Tokens

Settings = TypeVar("Settings", bound=MethodConfig)


class Method(Generic[Settings]):
    """GRPO. Subclasses name their section as `Config` and override hooks.

    Args:
        settings: the method's own section.
        config: the whole configuration.
    """

    Config: ClassVar[type[MethodConfig]] = MethodConfig
    """Class of the method's section."""
    title: ClassVar[str] = "GRPO, group relative policy optimisation (arXiv:2402.03300)"
    """How a model card names the method."""
    declares: ClassVar[tuple[Metric, ...]] = ()
    """Metrics of the method's own: a part of the reward as `reward/<part>/mean`, a term of the loss
    as `loss/<term>`, what `metrics` returns as `method/<name>`."""
    takes_parts: bool = True
    """Whether further parts may be added to its reward."""
    needs_embeddings: bool = False
    """Whether `score` wants the embeddings of the reasoning. Equal on all ranks."""
    extended_by: Method[Any] | None = None
    """The method that extends this one, which then may add parts to its reward."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Its first owner's: a class that shares a section of the package must not take its place.
        if "Config" in cls.__dict__ and "method_class" not in cls.Config.__dict__:
            cls.Config.method_class = cls

    def __init__(self, settings: Settings, config: Sections) -> None:
        self.settings = settings
        self.config = config

    @property
    def metrics_declared(self) -> tuple[Metric, ...]:
        """All metrics of its own that this method logs."""
        return self.declares

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Names of the terms that `loss_terms` returns, each logged as `loss/<name>`."""
        keys = [metric.key for metric in self.metrics_declared]
        return tuple(key.removeprefix("loss/") for key in keys if key.startswith("loss/"))

    def score(
        self, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray] | None, step: int
    ) -> list[ScoredCohort]:
        """Rewards, groups and advantages.

        Args:
            cohorts: any number.
            embeddings: [N, D] unit rows a cohort; None where the method needs none, or where
                embedding failed and the config says to go on without groups.
            step: training step, from 0.

        Returns:
            One for each cohort, in order.
        """
        return [self._scored(cohort, step) for cohort in cohorts]

    def reward_parts(self, cohort: Cohort, step: int) -> dict[str, np.ndarray]:
        """Name -> [N] weighted part of the reward; their sum is the reward."""
        reward = self.config.reward
        return {
            "accuracy": reward.accuracy_weight * accuracy_of(cohort),
            "format": reward.format_weight * format_of(cohort),
            **self.common_parts(cohort, step),
        }

    def further_parts(self, cohort: Cohort, step: int) -> dict[str, np.ndarray]:
        """Name -> [N] weighted part that this method adds to the reward, declared in `declares`."""
        return {}

    def common_parts(self, cohort: Cohort, step: int) -> dict[str, np.ndarray]:
        """What is added to any method's reward.

        The run's own rewards and DAPO's length penalty, where on; `further_parts` of this method
        and of those that extend it.
        """
        reward = self.config.reward
        parts = {
            extra.name: extra.weight * np.array([v.extra[extra.name] for v in cohort.verdicts])
            for extra in reward.extra
        }
        if reward.overlong is not None:
            parts["overlong"] = overlong_penalty(
                np.array([r.num_tokens for r in cohort.responses]),
                max_tokens=self.config.rollout.max_new_tokens,
                buffer_tokens=reward.overlong.buffer_tokens,
                factor=reward.overlong.penalty,
            )
        method: Method[Any] | None = self
        while method is not None:
            parts |= method.further_parts(cohort, step)
            method = method.extended_by
        return parts

    def advantages(self, rewards: np.ndarray) -> Advantages:
        """Of the [N] rewards of one cohort: their z-scores."""
        return advantage.grpo(rewards)

    def loss_terms(self, tokens: Tokens) -> dict[str, Tensor]:
        """Further token losses with gradient, added to surrogate, KL and entropy.

        Args:
            tokens: of one micro-batch; may be none at all.

        Returns:
            A [T] tensor for each of `loss_names`; tokens that are masked count for nothing.
        """
        return {}

    def observe(self, stats: Mapping[str, float], step: int) -> None:
        """See what came of a step: its metrics, and those of an evaluation after it.

        Args:
            stats: the same on all ranks; so must be what the method makes of them.
            step: that was trained.
        """

    def state(self) -> dict[str, np.ndarray]:
        """What a resumed run needs of this method's memory; equal on all ranks."""
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up what `state` gave when the checkpoint was written."""

    def metrics(self, step: int) -> dict[str, float]:
        """What the method has set for this step, by declared key; asked before `observe`."""
        return {}

    def _scored(self, cohort: Cohort, step: int) -> ScoredCohort:
        parts = self.reward_parts(cohort, step)
        rewards = sum(parts.values(), np.zeros(len(cohort.responses)))
        result = self.advantages(rewards)
        return ScoredCohort(
            cohort=cohort,
            reward_parts=parts,
            rewards=rewards,
            group_ids=np.zeros(len(rewards), dtype=np.int64),
            advantages=result.values,
            num_constant=result.num_constant,
            num_floored=result.num_floored,
        )


def accuracy_of(cohort: Cohort) -> np.ndarray:
    """[N] float64, 1 where right."""
    return np.array([v.accuracy for v in cohort.verdicts], dtype=np.float64)


def format_of(cohort: Cohort) -> np.ndarray:
    """[N] float64, 1 where well formed."""
    return np.array([v.format for v in cohort.verdicts], dtype=np.float64)


def _own_section(name: str) -> type[MethodConfig]:
    loaded: type[Method[Any]] = load_class(name, Method)
    return loaded.Config


OWN_METHODS = OpenTo(_own_section)
"""Marks a field whose methods may come from outside the package."""


def make_method(config: Sections) -> Method[Any]:
    """The method that a config names."""
    return build(config.method, config)


def build(settings: MethodConfig, config: Sections) -> Method[Any]:
    """The method of a section: the class that its name says, where that is one of your own."""
    is_own = ":" in settings.name
    kind: type[Method[Any]] = load_class(settings.name, Method) if is_own else settings.method_class
    return kind(settings, config)
