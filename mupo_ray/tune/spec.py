"""What a sweep file may say; `read_sweep` reads one, with one clear line for each fault."""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from optuna import pruners, samplers
from pydantic import BaseModel, Field, ValidationError, model_validator

from mupo_ray.errors import ConfigError
from mupo_ray.settings.load import read_yaml
from mupo_ray.settings.sections import NonNegativeInt, PositiveFloat, PositiveInt, Section
from mupo_ray.settings.variants import section_types

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

Scalar = bool | int | float | str | None


class IntRange(Section):
    """Whole numbers from `low` to `high`, both included."""

    type: Literal["int"] = "int"
    """This kind of range."""
    low: int | str
    """Least value: a number, or an expression over config values and earlier choices."""
    high: int | str
    """Greatest value: the same."""
    step: PositiveInt = 1
    """Distance between values."""
    log: bool = False
    """Sample evenly on a logarithmic scale."""
    when: str | None = None
    """Sampled only where this expression is true; always where null."""


class FloatRange(Section):
    """Numbers from `low` to `high`, both included."""

    type: Literal["float"] = "float"
    """This kind of range."""
    low: float | str
    """Least value: a number, or an expression over config values and earlier choices."""
    high: float | str
    """Greatest value: the same."""
    step: PositiveFloat | None = None
    """Distance between values; any value where null."""
    log: bool = False
    """Sample evenly on a logarithmic scale."""
    when: str | None = None
    """Sampled only where this expression is true; always where null."""

    @model_validator(mode="after")
    def a_log_scale_has_no_step(self) -> Self:
        """Optuna takes one of the two."""
        if self.log and self.step is not None:
            raise ValueError(f"step = {self.step} does not go with log = true; drop one of them")
        return self


class Choices(Section):
    """One of several values without an order."""

    type: Literal["categorical"] = "categorical"
    """This kind of range."""
    choices: Annotated[tuple[Scalar, ...], Field(min_length=1)]
    """Numbers, texts, true, false or null."""
    when: str | None = None
    """Sampled only where this expression is true; always where null."""


Range = Annotated[IntRange | FloatRange | Choices, Field(discriminator="type")]


class Objective(Section):
    """What a trial is judged by."""

    metric: str
    """A metric key such as `eval/heldout/pass@4`, or an expression over several; its value at the
    last step that has all of them."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Which way is better."""


class TpeSampler(Section):
    """Tree-structured Parzen estimator."""

    name: Literal["tpe"] = "tpe"
    """This sampler."""
    startup_trials: NonNegativeInt = 10
    """Random trials before the first informed one."""

    def make(self, seed: int) -> samplers.BaseSampler:
        """Optuna's sampler of this kind."""
        return samplers.TPESampler(n_startup_trials=self.startup_trials, seed=seed)


class GpSampler(Section):
    """Gaussian process; ranges that depend on other choices are sampled at random."""

    name: Literal["gp"] = "gp"
    """This sampler."""
    startup_trials: NonNegativeInt = 10
    """Random trials before the first informed one."""

    def make(self, seed: int) -> samplers.BaseSampler:
        """Optuna's sampler of this kind."""
        return samplers.GPSampler(
            n_startup_trials=self.startup_trials, seed=seed, warn_independent_sampling=False
        )


class RandomSampler(Section):
    """Independent draws."""

    name: Literal["random"] = "random"
    """This sampler."""

    def make(self, seed: int) -> samplers.BaseSampler:
        """Optuna's sampler of this kind."""
        return samplers.RandomSampler(seed=seed)


class GridSampler(Section):
    """All possible points, in order; float ranges need a step."""

    name: Literal["grid"] = "grid"
    """This sampler."""

    def make(self, seed: int) -> samplers.BaseSampler:
        """Draws nothing, for all points are queued when the study is made."""
        return samplers.RandomSampler(seed=seed)


class NsgaiiSampler(Section):
    """NSGA-II, a genetic algorithm for several objectives."""

    name: Literal["nsgaii"] = "nsgaii"
    """This sampler."""
    population_size: Annotated[int, Field(ge=2)] = 20
    """Trials of a generation."""

    def make(self, seed: int) -> samplers.BaseSampler:
        """Optuna's sampler of this kind."""
        return samplers.NSGAIISampler(population_size=self.population_size, seed=seed)


class NoPruner(Section):
    """Every trial runs to its end."""

    name: Literal["none"] = "none"
    """This pruner."""

    def make(self, num_steps: int) -> pruners.BasePruner:
        """Optuna's pruner of this kind, for runs of so many training steps."""
        return pruners.NopPruner()


class MedianPruner(Section):
    """Ends a trial that is worse than the median of the others at the same step."""

    name: Literal["median"] = "median"
    """This pruner."""
    startup_trials: NonNegativeInt = 5
    """Trials that must have ended before one is pruned."""
    warmup_steps: NonNegativeInt = 0
    """Training steps before a trial may be pruned."""

    def make(self, num_steps: int) -> pruners.BasePruner:
        """Optuna's pruner of this kind, for runs of so many training steps."""
        return pruners.MedianPruner(
            n_startup_trials=self.startup_trials, n_warmup_steps=self.warmup_steps
        )


class HyperbandPruner(Section):
    """Successive halving in brackets that begin to prune at different steps."""

    name: Literal["hyperband"] = "hyperband"
    """This pruner."""
    min_steps: PositiveInt = 1
    """Training steps before the first trial may be pruned."""
    reduction_factor: Annotated[int, Field(ge=2)] = 3
    """One in so many trials goes on to the next rung."""

    def make(self, num_steps: int) -> pruners.BasePruner:
        """Optuna's pruner of this kind, for runs of so many training steps."""
        return pruners.HyperbandPruner(
            min_resource=self.min_steps,
            max_resource=num_steps,
            reduction_factor=self.reduction_factor,
        )


class SweepConfig(Section):
    """A sweep: what is searched, by what, and for how long."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")] = "sweep"
    """Folder of the sweep below `run.storage_path`, and name of the study."""
    search: Annotated[dict[str, Range], Field(min_length=1)]
    """Dotted config path -> range."""
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)] = (
        Objective(metric="eval/heldout/pass@4"),
    )
    """One, or several for a Pareto front."""
    sampler: Annotated[
        TpeSampler | GpSampler | RandomSampler | GridSampler | NsgaiiSampler,
        Field(discriminator="name"),
    ] = TpeSampler()
    """How points are chosen."""
    pruner: Annotated[NoPruner | MedianPruner | HyperbandPruner, Field(discriminator="name")] = (
        NoPruner()
    )
    """Which trials end early, by their evaluations."""
    seed: NonNegativeInt = 0
    """Seeds the sampler; workers add a number of their own."""
    trials: PositiveInt = 20
    """Trials of the whole sweep, over all workers and starts."""
    minutes: PositiveFloat | None = None
    """A worker begins no trial after; no limit where null."""
    baseline: bool = True
    """The first trial is the configuration as it stands."""
    storage: str | None = None
    """Database address, `postgresql+psycopg://user:password@host/db`; a journal file in the sweep's
    folder where null."""
    heartbeat_s: PositiveInt = 30
    """With a database: interval of signs of life; a trial without one for twice that is retried."""
    max_retries: NonNegativeInt = 3
    """Times that a trial is taken up again after its worker died."""
    max_failures: PositiveInt = 5
    """The sweep ends where so many trials failed and none succeeded."""

    @model_validator(mode="after")
    def several_objectives_have_no_pruner(self) -> Self:
        """Optuna prunes by one value alone."""
        if len(self.objectives) > 1 and self.pruner.name != "none":
            raise ValueError(
                f"pruner.name = {self.pruner.name} needs one objective, got "
                f"{len(self.objectives)}; should be none, or drop the other objectives"
            )
        return self


def read_sweep(path: Path, changes: Mapping[str, Any] | None = None) -> SweepConfig:
    """Read and check a sweep file.

    Args:
        path: a YAML file.
        changes: fields given on the command line, which win over the file's.

    Raises:
        ConfigError: not readable, or a key or value is wrong; one line a fault.
    """
    tree, lines = read_yaml(path)
    for name, value in (changes or {}).items():
        tree[name] = value
        lines[(name,)] = "command line"
    try:
        return SweepConfig.model_validate_json(json.dumps(tree))
    except ValidationError as err:
        faults = [_line(fault, lines) for fault in err.errors(include_url=False)]
        raise ConfigError("\n".join(dict.fromkeys(faults))) from None


def _by_name(annotation: Any, tag: str) -> dict[str, type[BaseModel]]:
    return {s.model_fields[tag].default: s for s in section_types(annotation)}


_RANGES = _by_name(Range, "type")
_VARIANTS = {
    field: _by_name(SweepConfig.model_fields[field].annotation, "name")
    for field in ("sampler", "pruner")
}


def _line(fault: ErrorDetails, lines: Mapping[tuple[str, ...], str]) -> str:
    at, section = _place(tuple(map(str, fault["loc"])))
    kind, value = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        keys = list(section.model_fields)
        close = difflib.get_close_matches(at[-1], keys, n=1)
        hint = f"did you mean {close[0]}?" if close else f"should be one of {', '.join(keys)}"
        text = f"unknown key; {hint}"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        tag, names = ("type", _RANGES) if at[0] == "search" else ("name", _VARIANTS[at[0]])
        at = (*at, tag)
        got = value.get(tag) if isinstance(value, dict) else value
        text = f"got {json.dumps(got)}, should be one of {', '.join(names)}"
    elif kind == "missing":
        text = "missing; should be given"
    elif kind == "value_error":
        text = str(fault["ctx"]["error"])
    elif at[-1] in ("low", "high") and at[0] == "search":
        text = f"got {json.dumps(value)}, should be a number or an expression"
    else:
        should = re.sub("^(Input|String|Dictionary) ", "", fault["msg"])
        text = f"got {json.dumps(value)}, {should[0].lower()}{should[1:]}"
    where = next((lines[at[:i]] for i in range(len(at), 0, -1) if at[:i] in lines), None)
    return ": ".join(part for part in (where, ".".join(at), text) if part)


def _place(loc: tuple[str, ...]) -> tuple[tuple[str, ...], type[BaseModel]]:
    """Path of a fault without the variants' names that pydantic puts in, and its section."""
    match loc:
        case ("search", path, kind, *rest) if kind in _RANGES:
            # The last part may name one type of a union.
            return ("search", path, *rest[:1]), _RANGES[kind]
        case (("sampler" | "pruner") as field, name, *rest) if name in _VARIANTS[field]:
            return (field, *rest), _VARIANTS[field][name]
        case ("objectives", _, *_):
            return loc, Objective
    return loc, SweepConfig
