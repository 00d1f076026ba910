"""Where a session's driver leaves runs and its train workers take them.

A module of its own: the actor needs nothing of Ray Train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from mupo_ray.rollout.services import Switchboard, SwitchboardHandle

if TYPE_CHECKING:
    from mupo_ray.config import Config
    from mupo_ray.rollout.handles import RemoteMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTask:
    """One run to train."""

    config: Config
    """With absolute paths."""
    config_hash: str
    stop_after_step: int | None = None
    """End early after this many finished steps, with a checkpoint."""


class BoardHandle(SwitchboardHandle, Protocol):
    """An actor of `SessionBoard`."""

    post: RemoteMethod[[RunTask]]
    close: RemoteMethod[[]]
    take: RemoteMethod[[]]
    is_staffed: RemoteMethod[[]]
    ask_to_stop: RemoteMethod[[int, str]]
    stop_reason: RemoteMethod[[]]
    note: RemoteMethod[[dict[str, str]]]
    finish: RemoteMethod[[]]
    outcome: RemoteMethod[[int]]


class SessionBoard(Switchboard):
    """A switchboard that hands out runs too; deployed as an actor without CPU."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: list[RunTask] = []
        self._outcomes: list[dict[str, str] | None] = []
        """Of the runs that ended, in order: None, or the error's type and message."""
        self._starts = 0
        self._error: dict[str, str] | None = None
        self._stop_reason: str | None = None
        self._is_closed = False
        self._is_staffed = False

    def post(self, task: RunTask) -> int:
        """Add a run; its number."""
        self._tasks.append(task)
        return len(self._tasks) - 1

    def close(self) -> None:
        """No more runs will come."""
        self._is_closed = True

    def take(self) -> RunTask | Literal["wait", "end"]:
        """The open run, `wait` while there is none, or `end`.

        Workers that were restarted take the same run again, until it has cost more restarts than
        its `train.max_failures`.
        """
        self._is_staffed = True
        while len(self._outcomes) < len(self._tasks):
            task = self._tasks[len(self._outcomes)]
            if self._starts <= task.config.train.max_failures:
                self._starts += 1
                return task
            self._end(self._error or {"type": "TrainingError", "message": "its workers died"})
        return "end" if self._is_closed else "wait"

    def is_staffed(self) -> bool:
        """Whether workers are at their post."""
        return self._is_staffed

    def ask_to_stop(self, index: int, reason: str) -> None:
        """Have the run of this number end before its next step, if it is the open one."""
        if index == len(self._outcomes):
            self._stop_reason = reason

    def stop_reason(self) -> str | None:
        """Why the open run should end; None where it should go on."""
        return self._stop_reason

    def note(self, error: dict[str, str]) -> None:
        """A worker gives up on the open run because of this, and is restarted."""
        self._error = error

    def finish(self) -> None:
        """The workers have come to the end of the open run."""
        self._end(None)

    def outcome(self, index: int) -> dict[str, str] | None | bool:
        """False until a run has ended; then its error, or None."""
        return self._outcomes[index] if index < len(self._outcomes) else False

    def _end(self, error: dict[str, str] | None) -> None:
        self._outcomes.append(error)
        self._starts, self._error, self._stop_reason = 0, None, None
