"""A method over another one: it changes some hooks and leaves the rest to its base.

method: {name: my_module:Mine, base: {name: mupo, num_groups: 3}}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field

from mupo_ray.methods.base import OWN_METHODS, Method, build
from mupo_ray.methods.grpo import GrpoConfig
from mupo_ray.methods.mupo import MupoConfig
from mupo_ray.methods.pass_k import PassKConfig
from mupo_ray.settings.sections import MethodConfig
from mupo_ray.types import own_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from torch import Tensor

    from mupo_ray.settings.sections import Sections
    from mupo_ray.types import Cohort, Metric, ScoredCohort, Tokens

# Apart from the base's own names in a checkpoint.
_BASE = "base/"
# Hooks of `Method.score`, which is the base's.
_THE_BASES = ("reward_parts", "common_parts", "advantages")


class ExtensionConfig(MethodConfig):
    """Base of the section of a method that extends another."""

    base: Annotated[
        GrpoConfig | MupoConfig | PassKConfig, Field(discriminator="name"), OWN_METHODS
    ] = GrpoConfig()
    """The method that is extended."""

    def check(self, config: Sections) -> None:
        """The base's rules hold."""
        try:
            self.base.check(config)
        except ValueError as err:
            raise ValueError(str(err).replace("method.", "method.base.")) from None


Settings = TypeVar("Settings", bound=ExtensionConfig)


class Extension(Method[Settings]):
    """Every hook is the base's; what `further_parts` gives is a part of the base's reward.

    Attributes:
        base: the method that is extended.
    """

    Config = ExtensionConfig

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dead = [name for name in _THE_BASES if name in cls.__dict__]
        if dead:
            raise TypeError(
                f"{cls.__name__} overrides {' and '.join(dead)}, which only its base is asked for; "
                "an extension adds to the reward by further_parts, or overrides score"
            )

    def __init__(self, settings: Settings, config: Sections) -> None:
        super().__init__(settings, config)
        self.base = build(settings.base, config)
        self.base.extended_by = self
        self.takes_parts = self.base.takes_parts
        self.needs_embeddings = self.base.needs_embeddings
        own = {metric.key for metric in self.declares}
        twice = sorted(own & {metric.key for metric in self.base.metrics_declared})
        if twice:
            raise ValueError(
                f"method.name = {settings.name} and its base {settings.base.name} both declare "
                f"{', '.join(twice)}; should have names of their own"
            )
        if own_parts(self.declares) and not self.base.takes_parts:
            raise ValueError(
                f"method.name = {settings.name} adds {', '.join(own_parts(self.declares))} to the "
                f"reward, and method.base.name = {settings.base.name} rewards accuracy alone; "
                "should be another base"
            )

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
