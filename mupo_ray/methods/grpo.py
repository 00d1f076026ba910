"""GRPO and its two close relatives: one normalisation over all responses to a prompt.

GRPO arXiv:2402.03300, Dr.GRPO arXiv:2503.20783, RLOO arXiv:2402.14740.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from mupo_ray.core import advantage
from mupo_ray.methods.base import Method
from mupo_ray.settings.sections import MethodConfig, NonNegativeFloat

if TYPE_CHECKING:
    import numpy as np

    from mupo_ray.core.advantage import Advantages


class GrpoConfig(MethodConfig):
    """Group-relative policy optimisation and its two close relatives."""

    name: Literal["grpo"] = "grpo"
    """This method."""
    advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    """z-score over the cohort, centred only, or leave-one-out."""
    min_std: NonNegativeFloat = 0.0
    """Floor of the standard deviation an advantage is divided by; 0 is off."""

    @model_validator(mode="after")
    def min_std_needs_a_division(self) -> Self:
        """Only z-scores divide by a standard deviation."""
        if self.min_std > 0 and self.advantage != "grpo":
            raise ValueError(
                f"min_std = {self.min_std} has no effect with advantage = {self.advantage}, which "
                "divides by no standard deviation; should be 0, or advantage grpo"
            )
        return self


class Grpo(Method[GrpoConfig]):
    """The base, with a choice of the advantage's form."""

    Config = GrpoConfig
    title = "GRPO, group relative policy optimisation"

    def advantages(self, rewards: np.ndarray) -> Advantages:
        """Of the [N] rewards of one cohort."""
        match self.settings.advantage:
            case "grpo":
                return advantage.grpo(rewards, min_std=self.settings.min_std)
            case "dr_grpo":
                return advantage.dr_grpo(rewards)
            case "rloo":
                return advantage.rloo(rewards)
