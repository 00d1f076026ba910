"""How far an evaluation is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

_LINE_EVERY_S = 10.0


class SamplingProgress:
    """Counts responses: those found on disk, those sampled, those still to come.

    Args:
        total: responses in all.
        stream: where to print, standard error for a job.
        now: clock in seconds.
    """

    def __init__(
        self, total: int, stream: TextIO, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._stream = stream
        self._now = now
        self._found = self._sampled = self._tokens = 0
        self._began_s: float | None = None
        self._line_s = now()
        # Prompts may be read in another thread than the one that takes the answers.
        self._lock = threading.Lock()
        self._bar: Progress | None = None
        if stream.isatty():
            self._bar = Progress(
                TextColumn("sampling"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
                console=Console(file=stream),
                transient=True,
            )
            self._task = self._bar.add_task("", total=total, text="")
            self._bar.start()

    def begin(self) -> None:
        """The first request is about to be sent: rates count from here."""
        self._began_s = self._now()

    def found(self, responses: int) -> None:
        """Responses of an earlier start."""
        with self._lock:
            self._found += responses
            self._show()

    def left_out(self, responses: int) -> None:
        """Responses that will not come: their row cannot be asked."""
        with self._lock:
            self._total -= responses
            self._show()

    def sampled(self, responses: int, tokens: int) -> None:
        """Responses that have arrived."""
        with self._lock:
            self._sampled += responses
            self._tokens += tokens
            self._show()

    def text(self) -> str:
        """`480/1632 responses, 52.1/s, 1043 tokens/s, 0:22 left`."""
        done = self._found + self._sampled
        text = f"{done}/{self._total} responses"
        spent_s = 0.0 if self._began_s is None else self._now() - self._began_s
        if self._sampled == 0 or spent_s <= 0:
            return text
        rate = self._sampled / spent_s
        left_s = round(max(0, self._total - done) / rate)
        return f"{text}, {rate:.1f}/s, {self._tokens / spent_s:.0f} tokens/s, {_clock(left_s)} left"

    def close(self) -> None:
        """Take the bar away; say where it ended."""
        if self._bar is not None:
            self._bar.stop()
        self._line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _show(self) -> None:
        if self._bar is not None:
            done = self._found + self._sampled
            self._bar.update(self._task, total=self._total, completed=done, text=self.text())
        elif self._now() - self._line_s >= _LINE_EVERY_S:
            self._line()

    def _line(self) -> None:
        self._line_s = self._now()
        # Flushed, or a follower of the job's log sees lines in lumps.
        self._stream.write(f"sampling  {self.text()}\n")
        self._stream.flush()


def _clock(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
