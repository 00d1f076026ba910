"""What a person sees while a run goes on: its metrics, line by line as they are written."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mupo_ray.observability.console import StepPrinter
from mupo_ray.observability.tracker import read_jsonl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mupo_ray.config import Config

_POLL_S = 0.5


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
    rows = read_jsonl(path) if path.exists() else []
    return max((int(row["step"]) for row in rows), default=-1)


def _follow(path: Path, printer: StepPrinter, stop: threading.Event, last: int) -> None:
    done = False
    while not done:
        # One more look after the run has ended, for its last line.
        done = stop.wait(_POLL_S)
        if not path.exists():
            continue
        rows = read_jsonl(path)
        steps = [int(row["step"]) for row in rows]
        if steps and max(steps) < last:
            last = min(steps) - 1  # resumed from an earlier checkpoint: those steps come again
        for row in rows:
            if int(row["step"]) > last:
                last = int(row["step"])
                printer.step(last, {k: v for k, v in row.items() if k != "step"})
