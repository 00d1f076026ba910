"""Rewards of one's own: a function that a config names, called for every response.

# my_rewards.py, importable (PYTHONPATH)
def brevity(parts: Mapping[str, float], context: RewardContext) -> float:
    return parts["accuracy"] / (1 + context.num_tokens / 100)

# config
reward: {extra: [{name: brevity, path: "my_rewards:brevity", weight: 0.1}]}
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mupo_ray.errors import ConfigError, RewardError
from mupo_ray.types import Prompt, Response, Verdict

if TYPE_CHECKING:
    from mupo_ray.settings.sections import ExtraRewardConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """What a reward of one's own may look at."""

    prompt: Prompt
    """Question, gold answer, images and `meta` columns."""
    response: Response
    verdict: Verdict
    """Accuracy, format, extracted answer and reason."""

    @property
    def text(self) -> str:
        """The response."""
        return self.response.text

    @property
    def num_tokens(self) -> int:
        """Length of the response."""
        return self.response.num_tokens


RewardFunction = Callable[[Mapping[str, float], RewardContext], float]
"""(parts, context) -> value. `parts` holds accuracy, format and the extra rewards before this one,
all without their weights."""


@dataclass(frozen=True, slots=True)
class ExtraReward:
    """A loaded function under its name."""

    name: str
    path: str
    function: RewardFunction


def load_extra_rewards(configs: Sequence[ExtraRewardConfig]) -> tuple[ExtraReward, ...]:
    """Import the functions that a config names.

    Raises:
        ConfigError: a module that cannot be imported, a name it lacks, or no function.
    """
    return tuple(
        ExtraReward(config.name, config.path, _load(config.name, config.path)) for config in configs
    )


def extra_values(
    rewards: Sequence[ExtraReward], prompt: Prompt, response: Response, verdict: Verdict
) -> dict[str, float]:
    """Name -> value for one response, in order.

    Raises:
        ExtraRewardError: a function raised, or returned no finite number.
    """
    context = RewardContext(prompt=prompt, response=response, verdict=verdict)
    parts = {"accuracy": verdict.accuracy, "format": verdict.format}
    values: dict[str, float] = {}
    for reward in rewards:
        where = f"reward.extra {reward.name!r} ({reward.path}) on prompt {prompt.prompt_id}"
        try:
            value = reward.function(dict(parts), context)
        except Exception as error:
            raise ExtraRewardError(f"{where}: raised {type(error).__name__}: {error}") from error
        try:
            values[reward.name] = float(value)
        except (TypeError, ValueError):
            raise ExtraRewardError(f"{where}: got {value!r}, should return a number") from None
        if not math.isfinite(values[reward.name]):
            raise ExtraRewardError(f"{where}: got {value!r}, should return a finite number")
        parts[reward.name] = values[reward.name]
    return values


class ExtraRewardError(RewardError):
    """A reward of the user's own failed; a restart would fail at the same place."""

    is_fatal = True


def _load(name: str, path: str) -> RewardFunction:
    module_name, _, function_name = path.partition(":")
    where = f"reward.extra {name!r}: path {path!r}"
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"{where}: cannot import module {module_name} ({type(error).__name__}: {error}); it "
            "should be installed or in a folder on PYTHONPATH, on every node"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        kind = "no such name" if function is None else f"a {type(function).__name__}"
        raise ConfigError(
            f"{where}: module {module_name} has {kind} for {function_name}; should be a function "
            "of (parts, context)"
        )
    loaded: RewardFunction = function
    return loaded
