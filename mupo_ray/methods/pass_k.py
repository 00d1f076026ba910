"""Advantages that raise pass@k instead of pass@1, without embeddings or groups.

The closed form of the idea published as pass@k training; accuracy alone is rewarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from mupo_ray.core import advantage
from mupo_ray.core.advantage import Advantages
from mupo_ray.methods.base import Method, accuracy_of
from mupo_ray.settings.sections import MethodConfig, PositiveInt

if TYPE_CHECKING:
    from mupo_ray.settings.sections import Sections
    from mupo_ray.types import Cohort


class PassKConfig(MethodConfig):
    """Advantages that raise pass@k instead of pass@1; accuracy alone is rewarded."""

    name: Literal["pass_k"] = "pass_k"
    """This method."""
    k: PositiveInt = 4
    """Samples of which one should be right; at most rollout.num_generations."""

    def check(self, config: Sections) -> None:
        """A k-subset needs k responses, and pass@k rewards nothing but accuracy."""
        super().check(config)
        if self.k > config.rollout.num_generations:
            raise ValueError(
                f"method.k = {self.k} exceeds rollout.num_generations = "
                f"{config.rollout.num_generations}; should be at most that"
            )
        if config.reward.extra or config.reward.overlong is not None:
            raise ValueError(
                "method.name = pass_k rewards accuracy alone; reward.extra and reward.overlong "
                "should be empty"
            )


class PassK(Method[PassKConfig]):
    """A right answer counts for the subsets that it alone would save."""

    Config = PassKConfig
    title = "pass@k training, advantages of k-subsets in closed form"
    takes_parts = False

    def reward_parts(self, cohort: Cohort, step: int) -> dict[str, np.ndarray]:
        """Accuracy, without a weight."""
        return {"accuracy": accuracy_of(cohort)}

    def advantages(self, rewards: np.ndarray) -> Advantages:
        """Of the [N] accuracies of one cohort; without a k-subset there is nothing to save."""
        if rewards.size < self.settings.k:
            return Advantages(values=np.zeros(rewards.size), num_constant=1)
        return advantage.pass_k(rewards >= 1.0, self.settings.k)
