"""A method over another one: it changes some hooks and leaves the rest to its base.

method: {name: my_module:Mine, base: {name: mupo, num_groups: 3}}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import Field

from mupo_ray.methods.base import OWN_METHODS, Method, build
from mupo_ray.methods.grpo import GrpoConfig
from mupo_ray.methods.mupo import MupoConfig
from mupo_ray.methods.pass_k import PassKConfig
from mupo_ray.settings.sections import MethodConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from torch import Tensor

    from mupo_ray.settings.sections import Sections
    from mupo_ray.types import Cohort, Metric, ScoredCohort, Tokens

# Apart from the base's own names in a checkpoint.
_BASE = "base/"


class ExtensionConfig(MethodConfig):
    """Base of the section of a method that extends another."""

    base: Annotated[
        GrpoConfig | MupoConfig | PassKConfig, Field(discriminator="name"), OWN_METHODS
    ] = GrpoConfig()
    """The method that is extended."""

    def check(self, config: Sections) -> None:
        """The base's rules hold."""
        self.base.check(config)


Settings = TypeVar("Settings", bound=ExtensionConfig)


class Extension(Method[Settings]):
    """Every hook is the base's."""

    Config = ExtensionConfig

    def __init__(self, settings: Settings, config: Sections) -> None:
        super().__init__(settings, config)
        self.base = build(settings.base, config)
        self.needs_embeddings = self.base.needs_embeddings

    @property
    def metrics_declared(self) -> tuple[Metric, ...]:
        """The base's, and those of its own."""
        return (*self.base.metrics_declared, *self.declares)

    def score(
        self, cohorts: Sequence[Cohort], embeddings: Sequence[np.ndarray] | None, step: int
    ) -> list[ScoredCohort]:
        """As the base."""
        return self.base.score(cohorts, embeddings, step)

    def loss_terms(self, tokens: Tokens) -> dict[str, Tensor]:
        """As the base; an override adds its own to these."""
        return self.base.loss_terms(tokens)

    def observe(self, stats: Mapping[str, float], step: int) -> None:
        """Let the base see it; an override calls this too."""
        self.base.observe(stats, step)

    def state(self) -> dict[str, np.ndarray]:
        """The base's memory; an override adds its own."""
        return {f"{_BASE}{name}": value for name, value in self.base.state().items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Give the base its memory back; an override calls this too."""
        theirs = {k.removeprefix(_BASE): v for k, v in state.items() if k.startswith(_BASE)}
        if theirs:
            self.base.restore(theirs)

    def metrics(self, step: int) -> dict[str, float]:
        """The base's; an override adds its own."""
        return self.base.metrics(step)
