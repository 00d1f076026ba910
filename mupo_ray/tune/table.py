"""Shows a sweep while it goes on: a live table on a terminal, a line for each trial elsewhere."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Literal, Self, TextIO

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from mupo_ray.tune.trials import Row, rows_of, short_names, start_up_share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mupo_ray.tune.study import Sweep

_EVERY_S = 2.0
# What fits on a terminal; the best and the latest are shown.
_MAX_ROWS = 12
# Long names are broken after these, so that numbers keep their place on a narrow terminal.
_BREAKS = re.compile("([/._])")


class SweepTable:
    """See `mupo_ray.tune.worker.Watcher`.

    Args:
        stream: where to print, standard output for a job.
        write_results: called with a trial's number once it has ended.
    """

    def __init__(self, stream: TextIO, write_results: Callable[[Sweep, int], object]) -> None:
        self._stream = stream
        self._write_results = write_results
        self._shown_s = 0.0
        self._live = (
            Live(console=Console(file=stream), auto_refresh=False) if stream.isatty() else None
        )

    def show(self, sweep: Sweep) -> None:
        """Bring the table up to date, now and then."""
        if self._live is not None and time.monotonic() - self._shown_s >= _EVERY_S:
            self._shown_s = time.monotonic()
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
        parts.append(f"{objective.text} {_number(value, '.4f')}")
    parts.append(" ".join(f"{k}={v}" for k, v in row.params.items()))
    if row.wall_s is not None:
        parts.append(f"{row.wall_s:.0f} s, {_number(row.start_up_frac, '.0%')} start-up")
    return "  ".join([*parts, *([row.note] if row.note else [])])


def make_table(sweep: Sweep, most: int | None = None) -> Table:
    """All trials, or the best and the latest of them."""
    rows = rows_of(sweep)
    names = short_names(sweep.space.paths)
    kept = rows if most is None else [r for r in rows if r.is_best or r in rows[-most:]]
    table = Table(
        title=_title(sweep, rows),
        title_justify="left",
        caption="\n".join(f"trial {row.number}: {row.note}" for row in kept if row.note) or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    for column in ("trial", "state", *(o.text for o in sweep.objectives), *names.values()):
        justify: Literal["left", "right"] = "left" if column == "state" else "right"
        table.add_column(_BREAKS.sub("\\1\n", column), justify=justify, vertical="bottom")
    for column in ("step", "s", "start-\nup"):
        table.add_column(column, justify="right", vertical="bottom")
    for row in kept:
        table.add_row(
            f"{row.number}{'*' if row.is_best else ''}",
            row.state,
            *(_number(value, ".4f") for value in row.values),
            *(row.params.get(path, "-") for path in names),
            _number(row.step, "d"),
            _number(row.wall_s, ".0f"),
            _number(row.start_up_frac, ".0%"),
            style="bold" if row.is_best else None,
        )
    return table


def _title(sweep: Sweep, rows: Sequence[Row]) -> str:
    counts = {state: sum(r.state == state for r in rows) for state in dict.fromkeys(_states(rows))}
    text = ", ".join(f"{count} {state}" for state, count in counts.items())
    share = start_up_share(rows)
    timed = "" if share is None else f"; {share[1]:.0%} of their time is start-up"
    return f"{sweep.config.name}, {sweep.config.trials} trials: {text or 'none yet'}{timed}"


def _states(rows: Sequence[Row]) -> list[str]:
    return [row.state for row in rows]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
