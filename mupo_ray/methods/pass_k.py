"""Advantages that raise pass@k instead of pass@1, without embeddings or groups.

The closed form of the idea published as pass@k training; accuracy alone is rewarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.core import advantage
from mupo_ray.methods.grpo import accuracy_of
from mupo_ray.types import Cohort, ScoredCohort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.config import PassKConfig


class PassK:
    """A right answer counts for the subsets that it alone would save."""

    needs_embeddings = False
    diversity_factor = 1.0

    def __init__(self, config: PassKConfig) -> None:
        self._k = config.k

    def score(
        self, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray] | None, step: int
    ) -> list[ScoredCohort]:
        """See `Method.score`."""
        return [self._score(cohort) for cohort in cohorts]

    def metrics(self, step: int) -> dict[str, float]:
        """Nothing changes with the step."""
        return {}

    def _score(self, cohort: Cohort) -> ScoredCohort:
        accuracy = accuracy_of(cohort)
        result = advantage.pass_k(accuracy >= 1.0, self._k)
        return ScoredCohort(
            cohort=cohort,
            reward_parts={"accuracy": accuracy},
            rewards=accuracy,
            group_ids=np.zeros(len(accuracy), dtype=np.int64),
            advantages=result.values,
            num_constant=result.num_constant,
        )
