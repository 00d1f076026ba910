"""MUPO (arXiv:2604.00479): groups of alike reasoning, each normalised on its own.

From the samples of one prompt to their advantages:

    embeddings of the reasoning --constrained k-means--> K groups
    reward = accuracy + format + weight(step) * distance to the other groups, if right
    advantage = z-score inside the group * size weight of the group
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.config import CosineAnnealing
from mupo_ray.core import advantage
from mupo_ray.core.diversity import distance_to_other_groups
from mupo_ray.core.grouping import partition_many
from mupo_ray.core.reward import (
    cosine_weight,
    exponential_weight,
    paper_reward_parts,
    release_reward_parts,
)
from mupo_ray.methods.grpo import accuracy_of, format_of, further_parts
from mupo_ray.types import Cohort, ScoredCohort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.config import MupoConfig, RewardConfig


class Mupo:
    """Advantages inside each of K groups, and a reward for right answers far from the others."""

    needs_embeddings = True
    diversity_factor = 1.0

    def __init__(
        self,
        config: MupoConfig,
        reward: RewardConfig,
        max_new_tokens: int,
        *,
        num_steps: int,
        seed: int,
    ) -> None:
        self._config = config
        self._reward = reward
        self._max_new_tokens = max_new_tokens
        self._num_steps = num_steps
        self._seed = seed

    def score(
        self, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray] | None, step: int
    ) -> list[ScoredCohort]:
        """See `Method.score`; without embeddings every cohort is one group."""
        if embeddings is None:
            one_group = [np.zeros(len(c.responses), dtype=np.int64) for c in cohorts]
            return [self._score(c, None, g, step) for c, g in zip(cohorts, one_group, strict=True)]
        groups = partition_many(
            embeddings, self._config.num_groups, self._config.min_group_size, self._seed
        )
        return [
            self._score(c, e, g, step) for c, e, g in zip(cohorts, embeddings, groups, strict=True)
        ]

    def metrics(self, step: int) -> dict[str, float]:
        """Weight of diversity at this step."""
        return {"reward/diversity_weight": self.diversity_weight(step)}

    def diversity_weight(self, step: int) -> float:
        """Annealed weight of the diversity reward, times its factor."""
        schedule = self._config.diversity_weight
        if isinstance(schedule, CosineAnnealing):
            weight = cosine_weight(step, self._num_steps, high=schedule.start, low=schedule.end)
        else:
            weight = exponential_weight(step, initial=schedule.start, decay=schedule.decay)
        return self.diversity_factor * weight

    def _score(
        self, cohort: Cohort, embeddings: np.ndarray | None, groups: np.ndarray, step: int
    ) -> ScoredCohort:
        parts = self._reward_parts(cohort, embeddings, groups, self.diversity_weight(step))
        parts |= further_parts(cohort, self._reward, self._max_new_tokens)
        rewards = sum(parts.values(), np.zeros(len(cohort.responses)))
        result = advantage.mupo(
            rewards,
            groups,
            balance=self._config.balance,
            weighting=self._config.weighting,
            min_std=self._config.min_std,
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

    def _reward_parts(
        self, cohort: Cohort, embeddings: np.ndarray | None, groups: np.ndarray, weight: float
    ) -> dict[str, np.ndarray]:
        accuracy, format_ = accuracy_of(cohort), format_of(cohort)
        distance = None
        if embeddings is not None and len(np.unique(groups)) > 1:
            distance = distance_to_other_groups(embeddings, groups)
        if self._config.reward_form == "release":
            return release_reward_parts(
                accuracy,
                format_,
                distance,
                diversity_weight=weight,
                format_weight=self._reward.format_weight,
            )
        parts = paper_reward_parts(
            accuracy,
            format_,
            np.zeros_like(accuracy) if distance is None else distance,
            diversity_weight=weight,
        )
        # The paper leaves the weights of these two open; they are the run's.
        parts["accuracy"] = self._reward.accuracy_weight * parts["accuracy"]
        parts["format"] = self._reward.format_weight * parts["format"]
        return parts
