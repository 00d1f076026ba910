"""The search space: from a sweep's ranges to the configurations of its trials.

    ranges, each after those it depends on --suggest--> values --overrides--> Config

A bound may be an expression over config values and earlier choices, so that a point which the
configuration would refuse is never sampled.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from mupo_ray.config import load_config
from mupo_ray.errors import ConfigError
from mupo_ray.tune.expression import Expression, parse_expression
from mupo_ray.tune.paths import allowed_at, check_value, values_of
from mupo_ray.tune.spec import Choices, FloatRange, IntRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mupo_ray.config import Config

    AnyRange = IntRange | FloatRange | Choices
    Suggest = Callable[[str, BaseDistribution], Any]

# Random points tried before a sweep starts; each takes two milliseconds.
_TRIED_POINTS = 100
_MAX_GRID = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dimension:
    """One searched path, its expressions parsed."""

    path: str
    range: AnyRange
    low: Expression | None
    high: Expression | None
    when: Expression | None

    @property
    def names(self) -> set[str]:
        parts = (self.low, self.high, self.when)
        return {name for part in parts if part is not None for name in part.names}


class SearchSpace:
    """Checked ranges over a base configuration.

    Args:
        search: dotted config path -> range.
        base: what is not searched, and the baseline.
        baseline: whether the base is to be a trial itself.

    Raises:
        ConfigError: a path, bound or condition is wrong, or some points are impossible.
    """

    def __init__(
        self, search: Mapping[str, AnyRange], base: Config, *, baseline: bool = False
    ) -> None:
        self.base = base
        self._known = values_of(base)
        self._dimensions = _in_order([_dimension(path, r) for path, r in search.items()])
        names = {d.path: d.range.choices for d in self._dimensions if isinstance(d.range, Choices)}
        for dimension in self._dimensions:
            self._check(dimension, names)
        self._try_points()
        if baseline:
            self.baseline()

    @property
    def paths(self) -> tuple[str, ...]:
        """The searched paths, in the order of sampling."""
        return tuple(d.path for d in self._dimensions)

    def values(self, suggest: Suggest) -> dict[str, Any]:
        """Sample a point.

        Args:
            suggest: gives the value of a path out of a distribution.

        Returns:
            Path -> value; a path whose condition is false has none.
        """
        known, chosen = dict(self._known), dict[str, Any]()
        for dimension in self._dimensions:
            distribution = _distribution(dimension, known)
            if distribution is None:
                continue
            value = suggest(dimension.path, distribution)
            known[dimension.path] = chosen[dimension.path] = value
        return chosen

    def sample(self, trial: optuna.Trial) -> dict[str, Any]:
        """The point of a trial."""
        return self.values(lambda path, distribution: _suggest(trial, path, distribution))

    def config(self, chosen: Mapping[str, Any]) -> Config:
        """The base with other values at some paths.

        Raises:
            ConfigError: the configuration refuses it.
        """
        texts = [f"{path}={json.dumps(value)}" for path, value in chosen.items()]
        return load_config([], texts, base=self.base)

    def baseline(self) -> dict[str, Any]:
        """The base's own point.

        Raises:
            ConfigError: one of its values is outside its range.
        """

        def own(path: str, distribution: BaseDistribution) -> Any:
            value = self._known.get(path)
            if not _is_in(value, distribution):
                raise ConfigError(
                    f"search: {path}: the configuration's own value {json.dumps(value)} is not in "
                    f"its range ({_shown(distribution)}); widen it, or set baseline: false"
                )
            return value

        return self.values(own)

    def grid(self) -> list[dict[str, Any]]:
        """All possible points.

        Raises:
            ConfigError: a range without a step, or more points than a sweep can have.
        """
        points = list(itertools.islice(self._grid({}, 0), _MAX_GRID + 1))
        if len(points) > _MAX_GRID:
            raise ConfigError(
                f"sampler: the grid has more than {_MAX_GRID} points; give larger steps"
            )
        return points

    def _grid(self, chosen: dict[str, Any], at: int) -> Iterator[dict[str, Any]]:
        if at == len(self._dimensions):
            yield chosen
            return
        dimension = self._dimensions[at]
        distribution = _distribution(dimension, self._known | chosen)
        if distribution is None:
            yield from self._grid(chosen, at + 1)
            return
        for value in _all_values(dimension.path, distribution):
            yield from self._grid(chosen | {dimension.path: value}, at + 1)

    def _check(self, dimension: _Dimension, names: Mapping[str, Sequence[Any]]) -> None:
        path, where = dimension.path, f"search: {dimension.path}"
        try:
            found = allowed_at(path, self.base, names)
        except ConfigError as err:
            raise ConfigError(f"{where}: {err}") from None
        for name in dimension.names:
            if name not in self._known and name not in {d.path for d in self._dimensions}:
                raise ConfigError(
                    f"{where}: the expression's {name} is no value of the configuration"
                )
        given = dimension.range
        if isinstance(given, Choices):
            ends = {f"choices has {json.dumps(c)}, which": c for c in given.choices}
        else:
            ends = {
                f"{end} = {value}": value
                for end, value in (("low", given.low), ("high", given.high))
                if not isinstance(value, str)
            }
        for shown, value in ends.items():
            if (said := check_value(found, value)) is not None:
                raise ConfigError(f"{where}: {shown} is outside the field's own limits: it {said}")

    def _try_points(self) -> None:
        """Refuse a space that has impossible points, before anything is started."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for _ in range(_TRIED_POINTS):
            chosen = self.sample(study.ask())
            try:
                self.config(chosen)
            except ConfigError as err:
                point = ", ".join(f"{k} = {v}" for k, v in chosen.items())
                raise ConfigError(
                    f"search: the configuration refuses a point that may be sampled, {point}: "
                    f"{err}; bound a range by an expression, as in high: rollout.num_generations "
                    "// method.min_group_size, or give it a condition with when"
                ) from None


def _dimension(path: str, given: AnyRange) -> _Dimension:
    def parsed(text: Any, field: str) -> Expression | None:
        if not isinstance(text, str):
            return None
        try:
            return parse_expression(text)
        except ConfigError as err:
            raise ConfigError(f"search: {path}: {field}: {err}") from None

    ends = (None, None) if isinstance(given, Choices) else (given.low, given.high)
    return _Dimension(
        path=path,
        range=given,
        low=parsed(ends[0], "low"),
        high=parsed(ends[1], "high"),
        when=parsed(given.when, "when"),
    )


def _in_order(dimensions: Sequence[_Dimension]) -> list[_Dimension]:
    """Each after those that its expressions name, otherwise as given."""
    left, ordered = list(dimensions), list[_Dimension]()
    while left:
        waiting = {d.path for d in left}
        free = next((d for d in left if not d.names & waiting), None)
        if free is None:
            raise ConfigError(f"search: ranges depend on each other: {', '.join(sorted(waiting))}")
        left.remove(free)
        ordered.append(free)
    return ordered


def _distribution(dimension: _Dimension, known: Mapping[str, Any]) -> BaseDistribution | None:
    """What a path is sampled from; None where its condition is false."""
    given = dimension.range
    if dimension.when is not None and not dimension.when.value(known):
        return None
    if isinstance(given, Choices):
        return CategoricalDistribution(given.choices)
    low: Any = given.low if dimension.low is None else dimension.low.value(known)
    high: Any = given.high if dimension.high is None else dimension.high.value(known)
    for end, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"search: {dimension.path}: {end} is {value!r}; should be a number")
        if isinstance(given, IntRange) and value != int(value):
            raise ConfigError(
                f"search: {dimension.path}: {end} is {value}; should be whole: divide with //"
            )
    if low > high:
        names = ", ".join(f"{name} = {known[name]}" for name in sorted(dimension.names))
        raise ConfigError(
            f"search: {dimension.path}: low = {low} exceeds high = {high}"
            f"{f' where {names}; bound the ranges of those' if names else '; should be at most it'}"
        )
    if given.log and low <= 0:
        raise ConfigError(
            f"search: {dimension.path}: low = {low} has no logarithm; with log: true it should be "
            "above 0"
        )
    if isinstance(given, IntRange):
        return IntDistribution(int(low), int(high), log=given.log, step=given.step)
    return FloatDistribution(float(low), float(high), log=given.log, step=given.step)


def _suggest(trial: optuna.Trial, path: str, distribution: BaseDistribution) -> Any:
    match distribution:
        case IntDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_int(path, low, high, step=step, log=log)
        case FloatDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_float(path, low, high, step=step, log=log)
        case CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(path, choices)
    raise AssertionError(f"no such distribution: {distribution}")


def _all_values(path: str, distribution: BaseDistribution) -> Sequence[Any]:
    match distribution:
        case CategoricalDistribution(choices=choices):
            return choices
        case IntDistribution(low=low, high=high, step=step):
            return range(low, high + 1, step)
        case FloatDistribution(low=low, high=high, step=step):
            if low == high:
                return [low]
            if step is not None:
                return [round(low + i * step, 12) for i in range(round((high - low) / step) + 1)]
    raise ConfigError(f"search: {path}: sampler grid needs a step; or give choices")


def _is_in(value: Any, distribution: BaseDistribution) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and distribution.low <= value <= distribution.high


def _shown(distribution: BaseDistribution) -> str:
    if isinstance(distribution, CategoricalDistribution):
        return ", ".join(map(json.dumps, distribution.choices))
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return f"{distribution.low} to {distribution.high}"
