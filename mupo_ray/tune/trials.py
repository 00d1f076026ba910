"""The trials of a sweep as people read them: rows, of which the terminal and the page make tables.

While a sweep goes on, a terminal shows a live table, and anything else a line for each trial.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO

from optuna.trial import TrialState
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from mupo_ray.text import number
from mupo_ray.tune.study import REASON, START_UP_S, WALL_S, successors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from optuna.trial import FrozenTrial

    from mupo_ray.tune.study import Sweep

_EVERY_S = 2.0
# What fits on a terminal; the best and the latest are shown.
_MAX_ROWS = 12
# Long names are broken after these, so that numbers keep their place on a narrow terminal.
_BREAKS = re.compile("([/._])")

_STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "queued",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trial."""

    number: int
    state: str
    is_best: bool
    values: tuple[float | None, ...]
    """Of the objectives; of a running or pruned trial the last evaluation's."""
    params: dict[str, str]
    step: int | None
    """Last step with an evaluation of the objective."""
    wall_s: float | None
    start_up_s: float | None
    note: str
    run_dir: Path

    @property
    def start_up_frac(self) -> float | None:
        """Share of the time that was spent in no step, evaluation or checkpoint."""
        if not self.wall_s or self.start_up_s is None:
            return None
        return self.start_up_s / self.wall_s


def rows_of(sweep: Sweep) -> list[Row]:
    """Every trial, by number."""
    trials = sweep.trials
    best = {t.number for t in best_trials(sweep)}
    after = successors(trials)
    return [_row(sweep, t, t.number in best, after.get(t.number)) for t in trials]


def best_trials(sweep: Sweep) -> list[FrozenTrial]:
    """The best one, or with several objectives those of the Pareto front, best in the first first.

    Of equal ones the earliest comes first.
    """
    if not any(t.state is TrialState.COMPLETE for t in sweep.trials):
        return []
    if len(sweep.objectives) == 1:
        return [sweep.study.best_trial]
    sign = -1 if sweep.config.objectives[0].direction == "maximize" else 1
    return sorted(sweep.study.best_trials, key=lambda t: (sign * t.values[0], t.number))


def count_states(rows: Sequence[Row]) -> str:
    """How many trials are in each state, in words."""
    counts = Counter(row.state for row in rows)
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "none yet"


def start_up_share(rows: Sequence[Row]) -> tuple[float, float] | None:
    """(seconds of start-up, their share of all time) over trials; None before the first."""
    timed = [(r.start_up_s, r.wall_s) for r in rows if r.wall_s and r.start_up_s is not None]
    if not timed:
        return None
    start_up_s = sum(s for s, _ in timed)
    return start_up_s, start_up_s / sum(w for _, w in timed)


def value_text(value: Any) -> str:
    """A value of a configuration in a few characters."""
    return f"{value:.3g}" if isinstance(value, float) else json.dumps(value).strip('"')


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Path -> it without its section, where that tells it from the others."""
    short = {path: path.partition(".")[2] for path in paths}
    counts = Counter(short.values())
    return {path: name if counts[name] == 1 else path for path, name in short.items()}


class SweepTable:
    """See `mupo_ray.tune.worker.Watcher`.

    Args:
        stream: where to print, standard output for a job.
        write_results: called with a trial's number once it has ended.
    """

    def __init__(self, stream: TextIO, write_results: Callable[[Sweep, int], object]) -> None:
        self._stream = stream
        self._write_results = write_results
        self._updated_s = 0.0
        self._live = (
            Live(console=Console(file=stream), auto_refresh=False) if stream.isatty() else None
        )

    def show(self, sweep: Sweep) -> None:
        """Bring the table up to date, now and then."""
        if self._live is not None and time.monotonic() - self._updated_s >= _EVERY_S:
            self._updated_s = time.monotonic()
            self._live.update(make_table(sweep, _MAX_ROWS), refresh=True)

    def say(self, line: str) -> None:
        """Print a line, above the table where there is one."""
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            # Flushed, or a follower of the job's log sees lines in lumps.
            self._stream.write(line + "\n")
            self._stream.flush()

    def ended(self, sweep: Sweep, number: int) -> None:
        """Say how a trial of this worker ended, and bring the results up to date."""
        self._write_results(sweep, number)
        if self._live is None:
            self.say(line_of(sweep, rows_of(sweep)[number]))

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()


def line_of(sweep: Sweep, row: Row) -> str:
    """A trial in one line."""
    parts = [f"trial {row.number:>3}  {row.state:<8}"]
    for objective, value in zip(sweep.objectives, row.values, strict=True):
        parts.append(f"{objective.text} {number(value, '.4f')}")
    parts.append(" ".join(f"{k}={v}" for k, v in row.params.items()))
    if row.wall_s is not None:
        parts.append(f"{row.wall_s:.0f} s, {number(row.start_up_frac, '.0%')} start-up")
    return "  ".join([*parts, *([row.note] if row.note else [])])


def make_table(sweep: Sweep, most: int | None = None) -> Table:
    """All trials, or the best and the latest of them."""
    rows = rows_of(sweep)
    names = short_names(sweep.space.paths)
    listed = rows if most is None else [r for r in rows if r.is_best or r in rows[-most:]]
    table = Table(
        title=_title(sweep, rows),
        title_justify="left",
        caption="\n".join(f"trial {row.number}: {row.note}" for row in listed if row.note) or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    for column in ("trial", "state", *(o.text for o in sweep.objectives), *names.values()):
        justify: Literal["left", "right"] = "left" if column == "state" else "right"
        table.add_column(_BREAKS.sub("\\1\n", column), justify=justify, vertical="bottom")
    for column in ("step", "s", "start-\nup"):
        table.add_column(column, justify="right", vertical="bottom")
    for row in listed:
        table.add_row(
            f"{row.number}{'*' if row.is_best else ''}",
            row.state,
            *(number(value, ".4f") for value in row.values),
            *(row.params.get(path, "-") for path in names),
            number(row.step, "d"),
            number(row.wall_s, ".0f"),
            number(row.start_up_frac, ".0%"),
            style="bold" if row.is_best else None,
        )
    return table


def _title(sweep: Sweep, rows: Sequence[Row]) -> str:
    share = start_up_share(rows)
    timed = "" if share is None else f"; {share[1]:.0%} of their time is start-up"
    return f"{sweep.config.name}, {sweep.config.trials} trials: {count_states(rows)}{timed}"


def _row(sweep: Sweep, trial: FrozenTrial, is_best: bool, successor: int | None) -> Row:
    attrs, step = trial.user_attrs, trial.last_step
    is_timed = trial.state.is_finished() and successor is None
    values: tuple[float | None, ...] = (None,) * len(sweep.objectives)
    if trial.state is TrialState.COMPLETE:
        values = tuple(trial.values)
    elif step is not None:
        values = (trial.intermediate_values[step],)
    return Row(
        number=trial.number,
        state=_STATES[trial.state] if successor is None else "interrupted",
        is_best=is_best,
        values=values,
        params={name: value_text(value) for name, value in trial.params.items()},
        step=step,
        wall_s=attrs.get(WALL_S) if is_timed else None,
        start_up_s=attrs.get(START_UP_S) if is_timed else None,
        note=_note(trial, successor),
        run_dir=sweep.run_dir(trial),
    )


def _note(trial: FrozenTrial, successor: int | None) -> str:
    parts = [trial.user_attrs.get(REASON)] if trial.state.is_finished() else []
    if successor is not None:
        parts = [f"interrupted, taken up as trial {successor}"]
    if history := trial.system_attrs.get("retry_history"):
        parts.append(f"goes on with trial {history[-1]}")
    return "; ".join(part for part in parts if part)
