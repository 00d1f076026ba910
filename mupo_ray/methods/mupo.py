"""MUPO (arXiv:2604.00479): groups of alike reasoning, each normalised on its own.

From the samples of one prompt to their advantages:

    embeddings of the reasoning --constrained k-means--> K groups
    reward = accuracy + format + weight(step) * distance to the other groups, if right
    advantage = z-score inside the group * size weight of the group
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from mupo_ray.core import advantage
from mupo_ray.core.diversity import distance_to_other_groups
from mupo_ray.core.grouping import partition_many
from mupo_ray.core.reward import (
    cosine_weight,
    exponential_weight,
    paper_reward_parts,
    release_reward_parts,
)
from mupo_ray.methods.base import Method, accuracy_of, format_of
from mupo_ray.settings.sections import MethodConfig, NonNegativeFloat, PositiveInt, Section
from mupo_ray.types import Cohort, Metric, ScoredCohort

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mupo_ray.settings.sections import Sections


class CosineAnnealing(Section):
    """Half a cosine from `start` to `end` over the run (the paper)."""

    name: Literal["cosine"] = "cosine"
    """This schedule."""
    start: NonNegativeFloat = 0.4
    """Weight at step 0."""
    end: NonNegativeFloat = 0.1
    """Weight at the last step."""

    @model_validator(mode="after")
    def weight_never_grows(self) -> Self:
        """Annealing goes down."""
        if self.end > self.start:
            raise ValueError(
                f"end = {self.end} exceeds start = {self.start}; should be at most that"
            )
        return self


class ExponentialAnnealing(Section):
    """`start * exp(-decay * step)` (the released code)."""

    name: Literal["exponential"] = "exponential"
    """This schedule."""
    start: NonNegativeFloat = 0.4
    """Weight at step 0."""
    decay: NonNegativeFloat = 0.01
    """Decay a step."""


class MupoConfig(MethodConfig):
    """Multi-group policy optimisation."""

    name: Literal["mupo"] = "mupo"
    """This method."""
    num_groups: PositiveInt = 3
    """Reasoning groups of a prompt (K). 1 is plain GRPO."""
    min_group_size: Annotated[int, Field(ge=2)] = 3
    """Fewest responses in a group; smaller groups have no usable spread."""
    reward_form: Literal["paper", "release"] = "paper"
    """`paper` adds the diversity reward; `release` takes its weight from the accuracy's."""
    weighting: Literal["paper", "release"] = "release"
    """Size weights of the groups: the paper's objective or the released code's."""
    balance: NonNegativeFloat = 1.0
    """Exponent of the size weight; 0 leaves big groups dominant."""
    diversity_weight: Annotated[
        CosineAnnealing | ExponentialAnnealing, Field(discriminator="name")
    ] = CosineAnnealing()
    """Weight of the diversity reward against step."""
    min_std: NonNegativeFloat = 0.0
    """Floor of the standard deviation an advantage is divided by; 0 is off. Without it a group of
    right answers only turns tiny distances into full-size advantages."""

    def check(self, config: Sections) -> None:
        """Groups fit the cohort, diversity leaves accuracy a weight, an alarm has what it raises.

        The release's form takes the diversity weight out of the accuracy's.
        """
        need = self.num_groups * self.min_group_size
        if need > config.rollout.num_generations:
            raise ValueError(
                f"method.num_groups * method.min_group_size = {need} exceeds "
                f"rollout.num_generations = {config.rollout.num_generations}; "
                "lower one of the first two or sample more"
            )
        start, weight = self.diversity_weight.start, config.reward.accuracy_weight
        raises = config.collapse.decides_rewards
        if self.reward_form == "release":
            if start > weight:
                raise ValueError(
                    f"method.diversity_weight.start = {start} exceeds reward.accuracy_weight = "
                    f"{weight}; with method.reward_form release it should be at most that"
                )
            highest = start * config.collapse.max_weight_factor
            if raises and highest > weight:
                raise ValueError(
                    f"method.diversity_weight.start * collapse.max_weight_factor = {highest:g} "
                    f"exceeds reward.accuracy_weight = {weight}; with method.reward_form release "
                    "it should be at most that"
                )
        if raises and (self.num_groups == 1 or start == 0):
            raise ValueError(
                f"collapse.action = {config.collapse.action} has no diversity reward to raise: "
                f"method.num_groups = {self.num_groups}, method.diversity_weight.start = "
                f"{start:g}; should be above 1 and above 0"
            )


class Mupo(Method[MupoConfig]):
    """Advantages inside each of K groups, and a reward for right answers far from the others."""

    Config = MupoConfig
    title = "MUPO, multi-group policy optimisation (arXiv:2604.00479)"
    declares = (
        Metric("reward/diversity/mean", "1", "weighted diversity, zero where the answer is wrong"),
        Metric("reward/diversity_weight", "1", "weight of diversity at this step"),
    )
    needs_embeddings = True

    def __init__(self, settings: MupoConfig, config: Sections) -> None:
        super().__init__(settings, config)
        self._factor = 1.0
        """What a collapse alarm multiplies the weight of diversity by."""

    def score(
        self, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray] | None, step: int
    ) -> list[ScoredCohort]:
        """A cohort without embeddings, or too small for K groups, is one group, which is GRPO."""
        count, least = self.settings.num_groups, self.settings.min_group_size
        rows = [None] * len(cohorts) if embeddings is None else list(embeddings)
        fits = [e is not None and len(e) >= count * least for e in rows]
        groups = iter(
            partition_many(
                [e for e, fit in zip(rows, fits, strict=True) if e is not None and fit],
                count,
                least,
                self.config.run.seed,
            )
        )
        one_group = [np.zeros(len(c.responses), dtype=np.int64) for c in cohorts]
        return [
            self._score(c, e, next(groups) if fit else whole, step)
            for c, e, fit, whole in zip(cohorts, rows, fits, one_group, strict=True)
        ]

    def observe(self, stats: Mapping[str, float], step: int) -> None:
        """A collapse alarm raises the weight of diversity from the next step on."""
        if self.config.collapse.decides_rewards:
            self._factor = stats.get("collapse/weight_factor", self._factor)

    def state(self) -> dict[str, np.ndarray]:
        """The raised weight's factor, where alarms may raise it."""
        if not self.config.collapse.decides_rewards:
            return {}
        return {"diversity_factor": np.array(self._factor)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up the factor."""
        self._factor = float(state["diversity_factor"])

    def metrics(self, step: int) -> dict[str, float]:
        """Weight of diversity at this step."""
        return {"reward/diversity_weight": self.diversity_weight(step)}

    def diversity_weight(self, step: int) -> float:
        """Annealed weight of the diversity reward, times its factor."""
        schedule = self.settings.diversity_weight
        if isinstance(schedule, CosineAnnealing):
            num_steps = self.config.train.num_steps
            weight = cosine_weight(step, num_steps, high=schedule.start, low=schedule.end)
        else:
            weight = exponential_weight(step, initial=schedule.start, decay=schedule.decay)
        return self._factor * weight

    def _score(
        self, cohort: Cohort, embeddings: np.ndarray | None, groups: np.ndarray, step: int
    ) -> ScoredCohort:
        parts = self._grouped_parts(cohort, embeddings, groups, self.diversity_weight(step))
        parts |= self.common_parts(cohort, step)
        rewards = sum(parts.values(), np.zeros(len(cohort.responses)))
        result = advantage.mupo(
            rewards,
            groups,
            balance=self.settings.balance,
            weighting=self.settings.weighting,
            min_std=self.settings.min_std,
        )
        return ScoredCohort(
            cohort=cohort,
            reward_parts=parts,
            rewards=rewards,
            group_ids=groups,
            advantages=result.values,
            embeddings=embeddings,
            num_constant=result.num_constant,
            num_floored=result.num_floored,
        )

    def _grouped_parts(
        self, cohort: Cohort, embeddings: np.ndarray | None, groups: np.ndarray, weight: float
    ) -> dict[str, np.ndarray]:
        accuracy, format_ = accuracy_of(cohort), format_of(cohort)
        distance = None
        if embeddings is not None and len(np.unique(groups)) > 1:
            distance = distance_to_other_groups(embeddings, groups)
        if self.settings.reward_form == "release":
            return release_reward_parts(
                accuracy,
                format_,
                distance,
                diversity_weight=weight,
                format_weight=self.config.reward.format_weight,
            )
        parts = paper_reward_parts(
            accuracy,
            format_,
            np.zeros_like(accuracy) if distance is None else distance,
            diversity_weight=weight,
        )
        # The paper leaves the weights of these two open; they are the run's.
        parts["accuracy"] = self.config.reward.accuracy_weight * parts["accuracy"]
        parts["format"] = self.config.reward.format_weight * parts["format"]
        return parts
