"""What a sweep file may say; `read_sweep` reads one."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mupo_ray.settings.sections import NonNegativeInt, PositiveFloat, PositiveInt, Section

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


class GpSampler(Section):
    """Gaussian process; ranges that depend on other choices are sampled at random."""

    name: Literal["gp"] = "gp"
    """This sampler."""
    startup_trials: NonNegativeInt = 10
    """Random trials before the first informed one."""


class RandomSampler(Section):
    """Independent draws."""

    name: Literal["random"] = "random"
    """This sampler."""


class GridSampler(Section):
    """All possible points, in order; float ranges need a step."""

    name: Literal["grid"] = "grid"
    """This sampler."""


class NsgaiiSampler(Section):
    """NSGA-II, a genetic algorithm for several objectives."""

    name: Literal["nsgaii"] = "nsgaii"
    """This sampler."""
    population_size: Annotated[int, Field(ge=2)] = 20
    """Trials of a generation."""


class NoPruner(Section):
    """Every trial runs to its end."""

    name: Literal["none"] = "none"
    """This pruner."""


class MedianPruner(Section):
    """Ends a trial that is worse than the median of the others at the same step."""

    name: Literal["median"] = "median"
    """This pruner."""
    startup_trials: NonNegativeInt = 5
    """Trials that must have ended before one is pruned."""
    warmup_steps: NonNegativeInt = 0
    """Training steps before a trial may be pruned."""


class HyperbandPruner(Section):
    """Successive halving in brackets that begin to prune at different steps."""

    name: Literal["hyperband"] = "hyperband"
    """This pruner."""
    min_steps: PositiveInt = 1
    """Training steps before the first trial may be pruned."""
    reduction_factor: Annotated[int, Field(ge=2)] = 3
    """One in so many trials goes on to the next rung."""


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
