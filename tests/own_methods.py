"""Methods of one's own, as a user would have them on PYTHONPATH."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from mupo_ray.methods.base import Method, accuracy_of
from mupo_ray.methods.extension import Extension, ExtensionConfig
from mupo_ray.methods.mupo import Mupo, MupoConfig
from mupo_ray.settings.sections import MethodConfig, NonNegativeFloat, Sections
from mupo_ray.types import Cohort, Metric, Tokens


class DoubtConfig(ExtensionConfig):
    """A term of the loss that every step makes stronger."""

    weight: NonNegativeFloat = 0.5
    """Of the term at the first step; one more of it at each further step."""


class Doubt(Extension[DoubtConfig]):
    """Pays for confident tokens, over any base."""

    Config = DoubtConfig
    title = "Doubt"
    declares = (
        Metric("loss/doubt", "nat", "weighted log-probability of what was sampled"),
        Metric("method/doubt_steps", "steps", "steps observed"),
    )

    def __init__(self, settings: DoubtConfig, config: Sections) -> None:
        super().__init__(settings, config)
        self.steps = 0

    def loss_terms(self, tokens: Tokens) -> dict[str, Tensor]:
        weight = self.settings.weight * (1 + self.steps)
        return {**super().loss_terms(tokens), "doubt": weight * tokens.logprobs}

    def observe(self, stats: Mapping[str, float], step: int) -> None:
        super().observe(stats, step)
        self.steps += 1

    def state(self) -> dict[str, np.ndarray]:
        return {**super().state(), "steps": np.array(self.steps)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        super().restore(state)
        self.steps = int(state["steps"])

    def metrics(self, step: int) -> dict[str, float]:
        return {**super().metrics(step), "method/doubt_steps": float(self.steps)}


class BonusConfig(ExtensionConfig):
    """A reward for right answers, over any base that takes parts."""

    bonus: NonNegativeFloat = 0.1
    """Of a right answer."""


class Bonus(Extension[BonusConfig]):
    """Adds a part to its base's reward."""

    Config = BonusConfig
    title = "Bonus"
    declares = (Metric("reward/bonus/mean", "1", "weighted bonus"),)

    def further_parts(self, cohort: Cohort, step: int) -> dict[str, np.ndarray]:
        return {"bonus": self.settings.bonus * accuracy_of(cohort)}


class Quiet(Doubt):
    """Of another class's section."""


class OpenMupoConfig(MupoConfig):
    """MUPO's fields, for methods of other names."""

    name: str = ""


class SharesSection(Mupo):
    """Of a section that one of the package's methods stands behind."""

    Config = OpenMupoConfig


class Bare(Method[MethodConfig]):
    """Without a section of its own."""


class NamesakeOfMupo(Mupo):
    """Takes MUPO's own section, and must not take its place."""

    Config = MupoConfig


class NoMethod:
    """Not a method."""
