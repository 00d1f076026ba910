"""GRPO and its two close relatives: one normalisation over all responses to a prompt.

GRPO arXiv:2402.03300, Dr.GRPO arXiv:2503.20783, RLOO arXiv:2402.14740.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.core import advantage
from mupo_ray.core.reward import overlong_penalty
from mupo_ray.types import Cohort, ScoredCohort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.config import GrpoConfig, RewardConfig


class Grpo:
    """Advantages from the rewards of the whole cohort."""

    needs_embeddings = False
    diversity_factor = 1.0

    def __init__(self, config: GrpoConfig, reward: RewardConfig, max_new_tokens: int) -> None:
        self._config = config
        self._reward = reward
        self._max_new_tokens = max_new_tokens

    def score(
        self, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray] | None, step: int
    ) -> list[ScoredCohort]:
        """See `Method.score`."""
        return [self._score(cohort) for cohort in cohorts]

    def metrics(self, step: int) -> dict[str, float]:
        """Nothing changes with the step."""
        return {}

    def _score(self, cohort: Cohort) -> ScoredCohort:
        parts = {
            "accuracy": self._reward.accuracy_weight * accuracy_of(cohort),
            "format": self._reward.format_weight * format_of(cohort),
            **further_parts(cohort, self._reward, self._max_new_tokens),
        }
        rewards = sum(parts.values(), np.zeros(len(cohort.responses)))
        match self._config.advantage:
            case "grpo":
                result = advantage.grpo(rewards, min_std=self._config.min_std)
            case "dr_grpo":
                result = advantage.dr_grpo(rewards)
            case "rloo":
                result = advantage.rloo(rewards)
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


def further_parts(
    cohort: Cohort, reward: RewardConfig, max_new_tokens: int
) -> dict[str, np.ndarray]:
    """What every method adds: the run's own rewards and DAPO's length penalty, where on."""
    parts = {
        extra.name: extra.weight * np.array([v.extra[extra.name] for v in cohort.verdicts])
        for extra in reward.extra
    }
    if reward.overlong is not None:
        parts["overlong"] = overlong_penalty(
            np.array([r.num_tokens for r in cohort.responses]),
            max_tokens=max_new_tokens,
            buffer_tokens=reward.overlong.buffer_tokens,
            factor=reward.overlong.penalty,
        )
    return parts
