"""The search space: from a sweep's ranges to the configurations of its trials.

    ranges, each after those it depends on --suggest--> point --overrides--> Config

A bound may be an expression over config values and earlier choices, so that a point which the
configuration would refuse is never sampled.
"""

from __future__ import annotations

import difflib
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from mupo_ray.config import Config, load_config
from mupo_ray.errors import ConfigError
from mupo_ray.settings.load import leaves
from mupo_ray.settings.variants import discriminator, fields, section_types
from mupo_ray.tune.expression import Expression, parse_expression
from mupo_ray.tune.spec import Choices, FloatRange, IntRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydantic.fields import FieldInfo

    AnyRange = IntRange | FloatRange | Choices
    Suggest = Callable[[str, BaseDistribution], Any]

# Random points tried before a sweep starts; each takes two milliseconds.
_TRIED_POINTS = 100
_MAX_GRID = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dimension:
    """One searched path, its expressions parsed."""

    path: str
    domain: AnyRange
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
        self._base_values = values_of(base)
        self._dimensions = _in_order([_dimension(path, r) for path, r in search.items()])
        names = {
            d.path: d.domain.choices for d in self._dimensions if isinstance(d.domain, Choices)
        }
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
        values, point = dict(self._base_values), dict[str, Any]()
        for dimension in self._dimensions:
            distribution = _distribution(dimension, values)
            if distribution is None:
                continue
            value = suggest(dimension.path, distribution)
            values[dimension.path] = point[dimension.path] = value
        return point

    def sample(self, trial: optuna.Trial) -> dict[str, Any]:
        """The point of a trial."""
        return self.values(lambda path, distribution: _suggest(trial, path, distribution))

    def config(self, point: Mapping[str, Any]) -> Config:
        """The base with other values at some paths.

        Raises:
            ConfigError: the configuration refuses it.
        """
        texts = [f"{path}={json.dumps(value)}" for path, value in point.items()]
        return load_config([], texts, base=self.base)

    def baseline(self) -> dict[str, Any]:
        """The base's own point.

        Raises:
            ConfigError: one of its values is outside its range.
        """

        def own(path: str, distribution: BaseDistribution) -> Any:
            value = self._base_values.get(path)
            if not _is_in(value, distribution):
                raise ConfigError(
                    f"search: {path}: the configuration's own value {json.dumps(value)} is not in "
                    f"its range ({_limits(distribution)}); widen it, or set baseline: false"
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

    def _grid(self, point: dict[str, Any], at: int) -> Iterator[dict[str, Any]]:
        if at == len(self._dimensions):
            yield point
            return
        dimension = self._dimensions[at]
        distribution = _distribution(dimension, self._base_values | point)
        if distribution is None:
            yield from self._grid(point, at + 1)
            return
        for value in _all_values(dimension.path, distribution):
            yield from self._grid(point | {dimension.path: value}, at + 1)

    def _check(self, dimension: _Dimension, names: Mapping[str, Sequence[Any]]) -> None:
        where, domain = f"search: {dimension.path}", dimension.domain
        try:
            candidates = _fields_at(dimension.path, self.base, names)
        except ConfigError as err:
            raise ConfigError(f"{where}: {err}") from None
        for name in dimension.names:
            if name not in self._base_values and name not in {d.path for d in self._dimensions}:
                raise ConfigError(
                    f"{where}: the expression's {name} is no value of the configuration"
                )
        if isinstance(domain, Choices):
            ends = {f"choices has {json.dumps(c)}, which": c for c in domain.choices}
        else:
            ends = {
                f"{end} = {value}": value
                for end, value in (("low", domain.low), ("high", domain.high))
                if not isinstance(value, str)
            }
        for end, value in ends.items():
            if (refusal := _refusal(candidates, value)) is not None:
                raise ConfigError(f"{where}: {end} is outside the field's own limits: it {refusal}")

    def _try_points(self) -> None:
        """Refuse a space that has impossible points, before anything is started."""
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for _ in range(_TRIED_POINTS):
            point = self.sample(study.ask())
            try:
                self.config(point)
            except ConfigError as err:
                values = ", ".join(f"{path} = {value}" for path, value in point.items())
                raise ConfigError(
                    f"search: the configuration refuses a point that may be sampled, {values}: "
                    f"{err}; bound a range by an expression, as in high: rollout.num_generations "
                    "// method.min_group_size, or give it a condition with when"
                ) from None


def _dimension(path: str, domain: AnyRange) -> _Dimension:
    def parsed(text: Any, field: str) -> Expression | None:
        if not isinstance(text, str):
            return None
        try:
            return parse_expression(text)
        except ConfigError as err:
            raise ConfigError(f"search: {path}: {field}: {err}") from None

    ends = (None, None) if isinstance(domain, Choices) else (domain.low, domain.high)
    return _Dimension(
        path=path,
        domain=domain,
        low=parsed(ends[0], "low"),
        high=parsed(ends[1], "high"),
        when=parsed(domain.when, "when"),
    )


def _in_order(dimensions: Sequence[_Dimension]) -> list[_Dimension]:
    """Each after those that its expressions name, otherwise as given."""
    rest, ordered = list(dimensions), list[_Dimension]()
    while rest:
        waiting = {d.path for d in rest}
        free = next((d for d in rest if not d.names & waiting), None)
        if free is None:
            raise ConfigError(f"search: ranges depend on each other: {', '.join(sorted(waiting))}")
        rest.remove(free)
        ordered.append(free)
    return ordered


def _distribution(dimension: _Dimension, values: Mapping[str, Any]) -> BaseDistribution | None:
    """What a path is sampled from; None where its condition is false."""
    domain = dimension.domain
    if dimension.when is not None and not dimension.when.value(values):
        return None
    if isinstance(domain, Choices):
        return CategoricalDistribution(domain.choices)
    low: Any = domain.low if dimension.low is None else dimension.low.value(values)
    high: Any = domain.high if dimension.high is None else dimension.high.value(values)
    for end, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"search: {dimension.path}: {end} is {value!r}; should be a number")
        if isinstance(domain, IntRange) and value != int(value):
            raise ConfigError(
                f"search: {dimension.path}: {end} is {value}; should be whole: divide with //"
            )
    if low > high:
        names = ", ".join(f"{name} = {values[name]}" for name in sorted(dimension.names))
        raise ConfigError(
            f"search: {dimension.path}: low = {low} exceeds high = {high}"
            f"{f' where {names}; bound the ranges of those' if names else '; should be at most it'}"
        )
    if domain.log and low <= 0:
        raise ConfigError(
            f"search: {dimension.path}: low = {low} has no logarithm; with log: true it should be "
            "above 0"
        )
    if isinstance(domain, IntRange):
        return IntDistribution(int(low), int(high), log=domain.log, step=domain.step)
    return FloatDistribution(float(low), float(high), log=domain.log, step=domain.step)


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


def _limits(distribution: BaseDistribution) -> str:
    if isinstance(distribution, CategoricalDistribution):
        return ", ".join(map(json.dumps, distribution.choices))
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return f"{distribution.low} to {distribution.high}"


def values_of(config: Config) -> dict[str, Any]:
    """Dotted path -> value, of a whole configuration."""
    return leaves(json.loads(config.model_dump_json()))


def _fields_at(path: str, base: Config, names: Mapping[str, Sequence[Any]]) -> list[FieldInfo]:
    """The fields that a path may mean.

    Args:
        path: `section.field`.
        base: decides the variant of a section.
        names: dotted path of a variant's name -> the names it may take in the sweep.

    Raises:
        ConfigError: there is no such field; the message names what may have been meant.
    """
    models: list[type[BaseModel]] = [Config]
    values: Any = json.loads(base.model_dump_json())
    *parents, last = path.split(".")
    at = ""
    for key in parents:
        at = f"{at}.{key}" if at else key
        values = values.get(key) if isinstance(values, dict) else None
        variants = [{"name": name} for name in names.get(f"{at}.name", ())] or [values]
        sections = [
            discriminator(model, key, variant)[1] for model in models for variant in variants
        ]
        models = [section for section in sections if section is not None]
    candidates = [m.model_fields[last] for m in models if last in m.model_fields]
    if not candidates:
        raise ConfigError(f"no such field{_suggestion(path, at, values)}")
    if any(section_types(field.annotation) for field in candidates):
        raise ConfigError("is a section; should be one of its fields")
    return candidates


def _suggestion(path: str, parent: str, values: Any) -> str:
    everywhere = [".".join(p) for p, _ in fields(Config)]
    if path in everywhere:
        name = values.get("name") if isinstance(values, dict) else None
        return f" while {parent}.name is {name}; it belongs to another name of {parent}"
    last = path.rpartition(".")[2]
    close = (
        difflib.get_close_matches(path, everywhere, n=1, cutoff=0.75)
        or [p for p in everywhere if p.rpartition(".")[2] == last][:2]
        or difflib.get_close_matches(path, everywhere, n=1)
    )
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _refusal(candidates: Sequence[FieldInfo], value: Any) -> str | None:
    """What a field that takes no such value says; None where one of them takes it."""
    refusal = None
    for field in candidates:
        kind: Any = field.annotation
        kind = Annotated[kind, *field.metadata] if field.metadata else kind
        adapter = TypeAdapter[Any](kind, config=ConfigDict(strict=True, allow_inf_nan=False))
        try:
            adapter.validate_json(json.dumps(value))
            return None
        except ValidationError as err:
            refusal = err.errors(include_url=False)[0]["msg"].removeprefix("Input ")
    return refusal
