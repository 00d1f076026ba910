"""What a person sees while a run goes on: one aligned line a step, a bar on a terminal.

    metrics.jsonl, as it grows --following--> StepPrinter: StepLines, above a bar on a terminal

Only `jobs/` print. Under `ray job submit`, in a file or in a pipe there are plain lines and no bar.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mupo_ray.files import read_jsonl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mupo_ray.config import Config

HEADER_EVERY = 20
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    key: str
    width: int
    digits: int


_COLUMNS = (
    _Column("acc", "reward/accuracy/mean", 6, 3),
    _Column("reward", "reward/total/mean", 7, 3),
    _Column("diversity", "diversity/pairwise", 9, 3),
    _Column("strategies", "diversity/effective", 10, 2),
    _Column("tokens", "response/length/mean", 7, 1),
    _Column("loss", "loss/total", 10, 5),
    _Column("kl", "loss/kl", 9, 5),
    _Column("grad norm", "optim/grad_norm", 9, 3),
    _Column("s/step", "time/step_s", 7, 2),
)


class StepLines:
    """Formats steps; the header comes back every `HEADER_EVERY` lines.

    Args:
        num_steps: steps of the whole run, for the width of the first column.
    """

    def __init__(self, num_steps: int) -> None:
        self._total = str(num_steps)
        self._count = 0

    def format(self, step: int, values: Mapping[str, float]) -> list[str]:
        """One line, or the header and it; at most 120 columns for up to a million steps.

        Args:
            step: finished steps.
            values: metric key -> value; a column without one shows a dash.
        """
        first = f"{step:>{len(self._total)}}/{self._total}"
        cells = [f"{_cell(values.get(c.key), c):>{c.width}}" for c in _COLUMNS]
        line = "  ".join(["step", first, *cells])
        is_due = self._count % HEADER_EVERY == 0
        self._count += 1
        if not is_due:
            return [line]
        titles = [f"{c.title:>{c.width}}" for c in _COLUMNS]
        return ["  ".join([" " * 4, " " * len(first), *titles]), line]


def _cell(value: float | None, column: _Column) -> str:
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    # A number that outgrows its column keeps its size and gives up digits.
    spellings = (f"{value:.{column.digits}f}", f"{value:.1e}", f"{value:.0e}")
    return next((text for text in spellings if len(text) <= column.width), "#" * column.width)


class StepPrinter:
    """Prints step lines, above a progress bar where the stream is a terminal.

    Args:
        num_steps: steps of the whole run.
        stream: where to print, standard output for a job.
        first_step: steps finished before, in a resumed run.
    """

    def __init__(self, num_steps: int, stream: TextIO, *, first_step: int = 0) -> None:
        self._lines = StepLines(num_steps)
        self._stream = stream
        self._progress: Progress | None = None
        if stream.isatty():
            self._progress = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(file=stream),
                transient=True,
            )
            self._task = self._progress.add_task("", total=num_steps, completed=first_step)
            self._progress.start()

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Show a finished step."""
        for line in self._lines.format(step, values):
            self.line(line)
        if self._progress is not None:
            self._progress.update(self._task, completed=step)

    def line(self, text: str) -> None:
        """Show any other line, such as an evaluation, without breaking the bar."""
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            # Flushed, or a follower of the job's log sees steps in lumps.
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def set_up_logging() -> None:
    """Plain lines on standard error: ours from INFO, others' from WARNING."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("mupo_ray").setLevel(logging.INFO)


@contextmanager
def following(config: Config) -> Iterator[None]:
    """Print a line for each step that the run finishes meanwhile."""
    path = config.run_dir / "metrics.jsonl"
    stop = threading.Event()
    first = _last_step(path)
    with StepPrinter(config.train.num_steps, sys.stdout, first_step=max(0, first)) as printer:
        thread = threading.Thread(
            target=_follow, args=(path, printer, stop, first), name="metrics-follower", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=10 * _POLL_S)


def _last_step(path: Path) -> int:
    return max((int(row["step"]) for row in read_jsonl(path)), default=-1)


def _follow(path: Path, printer: StepPrinter, stop: threading.Event, last: int) -> None:
    done = False
    while not done:
        # One more look after the run has ended, for its last line.
        done = stop.wait(_POLL_S)
        rows = read_jsonl(path)
        steps = [int(row["step"]) for row in rows]
        if steps and max(steps) < last:
            last = min(steps) - 1  # resumed from an earlier checkpoint: those steps come again
        for row in rows:
            if int(row["step"]) > last:
                last = int(row["step"])
                printer.step(last, {k: v for k, v in row.items() if k != "step"})
