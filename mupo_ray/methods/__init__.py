"""Methods: each a file that says what it changes of plain GRPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mupo_ray.config import GrpoConfig, MupoConfig, PassKConfig
from mupo_ray.methods.grpo import Grpo
from mupo_ray.methods.mupo import Mupo
from mupo_ray.methods.pass_k import PassK

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from mupo_ray.config import Config
    from mupo_ray.types import Cohort, ScoredCohort

__all__ = ["Grpo", "Method", "Mupo", "PassK", "make_method"]


class Method(Protocol):
    """How judged cohorts become advantages. Cohorts are whole, so sharding never shows."""

    needs_embeddings: bool
    """Whether `score` wants the embeddings of the reasoning."""
    diversity_factor: float
    """Set before each step, 1 at first: what a collapse alarm multiplies the weight of a diversity
    reward by. A method without such a reward ignores it."""

    def score(
        self, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray] | None, step: int
    ) -> list[ScoredCohort]:
        """Rewards, groups and advantages.

        Args:
            cohorts: any number.
            embeddings: [N, D] unit rows a cohort; None where the method needs none, or where
                embedding failed and the config says to go on without groups.
            step: training step, from 0.
        """
        ...

    def metrics(self, step: int) -> dict[str, float]:
        """What the method has set for this step, by metric key."""
        ...


def make_method(config: Config) -> Method:
    """The method that a config names."""
    match config.method:
        case GrpoConfig():
            return Grpo(config.method, config.reward, config.rollout.max_new_tokens)
        case MupoConfig():
            return Mupo(
                config.method,
                config.reward,
                config.rollout.max_new_tokens,
                num_steps=config.train.num_steps,
                seed=config.run.seed,
            )
        case PassKConfig():
            return PassK(config.method)
