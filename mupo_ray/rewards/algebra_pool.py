"""Symbolic comparison with a hard time limit, in processes of its own.

    caller threads --compare()--> idle workers (LIFO) --pipe--> algebra_worker.py, a process each

math-verify bounds its work by `signal.alarm`, which raises off the main thread, and a computation
inside C (a tower of powers) holds the interpreter lock, so no thread can stop it. A process can be
killed. A comparison that is late or out of memory takes down itself only.

Workers start on first need, run `algebra_worker.py` by path (they import neither this package nor
Ray nor torch, and do not re-run the caller's `__main__`), and end with their parent.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mupo_ray.errors import RewardError
from mupo_ray.types import Reason

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from mupo_ray.rewards.equality.compare import Algebra

_LOG = logging.getLogger(__name__)
_SCRIPT = Path(__file__).with_name("algebra_worker.py")
# Importing sympy takes seconds on a busy machine and a minute on a cold network disk.
_START_LIMIT_S = 120.0
# The worker keeps the limit; it is late itself only where the machine is.
_REPLY_GRACE_S = 10.0
_STOP_GRACE_S = 2.0


# What a worker says of two expressions; whatever else it says, it has no verdict.
_REASONS = {"equal": Reason.RIGHT, "different": Reason.WRONG, "unparsable": Reason.UNPARSABLE}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a symbolic comparison came to and what it cost."""

    reason: Reason
    """RIGHT, WRONG, UNPARSABLE, or TIMEOUT: out of its time or memory limit."""
    seconds: float
    """From sending the request to its reply or time-out; waiting for a worker is not counted."""


class AlgebraPool:
    """A few workers shared by any number of threads of one process.

    Args:
        num_workers: processes at most; each takes about 100 MB and starts on first need.
        limit_s: seconds for one comparison.
    """

    def __init__(self, *, num_workers: int = 2, limit_s: float = 5.0) -> None:
        if num_workers < 1 or limit_s <= 0:
            raise ValueError(
                f"need num_workers >= 1 and limit_s > 0, got {num_workers} and {limit_s}"
            )
        self.num_workers = num_workers
        self.limit_s = limit_s
        self._workers = [_Worker() for _ in range(num_workers)]
        # Last in, first out: a second worker starts only when two are needed at once.
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _close, self._workers, self._owner)

    def compare(self, answer: str, gold: str, limit_s: float | None = None) -> Comparison:
        """Compare two expressions by algebra.

        Args:
            answer: normalised expression from a response.
            gold: normalised expression it should equal.
            limit_s: seconds for this comparison; None takes the pool's.

        Raises:
            RewardError: no worker can start, or the pool is closed or was forked.
        """
        if os.getpid() != self._owner:
            raise RewardError("no AlgebraPool can be used after a fork; make one in this process")
        worker = self._idle.get()
        try:
            if not self._finalizer.alive:
                raise RewardError("the algebra pool is closed")
            return worker.ask(answer, gold, self.limit_s if limit_s is None else limit_s)
        finally:
            self._idle.put(worker)

    def for_one_answer(self) -> Algebra:
        """Algebra for one pair of answers, all of whose parts share the pool's limit."""
        left_s = self.limit_s

        def compare_part(answer: str, gold: str) -> Reason:
            nonlocal left_s
            if left_s <= 0:
                return Reason.TIMEOUT
            comparison = self.compare(answer, gold, left_s)
            left_s -= comparison.seconds
            return comparison.reason

        return compare_part

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers running now."""
        return tuple(pid for worker in self._workers if (pid := worker.pid) is not None)

    def close(self) -> None:
        """Kill and reap all workers; safe to call twice."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_default: AlgebraPool | None = None
_default_lock = threading.Lock()


def default_algebra_pool() -> AlgebraPool:
    """The pool of this process, made on first use and closed at exit."""
    global _default
    with _default_lock:
        if _default is None:
            _default = AlgebraPool()
        return _default


def _forget_default() -> None:
    global _default, _default_lock
    _default, _default_lock = None, threading.Lock()


# A forked child shares the pipes; it must not talk on them.
os.register_at_fork(after_in_child=_forget_default)


def _close(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:
        for worker in workers:
            worker.retire()


class _Worker:
    """One process and the parent's end of its pipe. Used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._is_ready = False
        # Held while the process changes, so that none starts after the pool has closed.
        self._lock = threading.Lock()
        self._is_retired = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def ask(self, answer: str, gold: str, limit_s: float) -> Comparison:
        pipe = self._ready_pipe()
        request = {"answer": answer, "gold": gold, "limit_s": limit_s}
        start = time.monotonic()
        outcome = "unresponsive"
        try:
            pipe.send_bytes(json.dumps(request).encode())
            if pipe.poll(limit_s + _REPLY_GRACE_S):
                outcome = json.loads(pipe.recv_bytes())["outcome"]
        except (EOFError, OSError):
            outcome = "gone"
        spent = time.monotonic() - start
        if outcome in _REASONS:
            return Comparison(_REASONS[outcome], spent)
        _LOG.warning(
            "no verdict on %.80r against %.80r after %.1f s: %s", answer, gold, spent, outcome
        )
        if outcome in ("unresponsive", "gone"):
            self._restart()
        return Comparison(Reason.TIMEOUT, spent)

    def retire(self) -> None:
        """Stop for good. A thread that waits for a reply wakes up and gets RewardError."""
        with self._lock:
            self._is_retired = True
            self._stop()

    def _stop(self) -> None:
        # The pipe is left to its last user: closing it under a waiting thread frees its number.
        process, self._process, self._pipe, self._is_ready = self._process, None, None, False
        if process is None:
            return
        # It takes its child along on SIGTERM; the group's SIGKILL is for one that does not listen.
        process.terminate()
        try:
            process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _restart(self) -> Connection:
        with self._lock:
            self._stop()
            if self._is_retired:
                raise RewardError("the algebra pool is closed")
            return self._start()

    def _start(self) -> Connection:
        ours, theirs = Pipe()
        try:
            # -P keeps the script's folder off the import path.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            ours.close()
            raise RewardError(f"cannot start an algebra worker: {error}") from error
        finally:
            theirs.close()
        self._pipe = ours
        return ours

    def _ready_pipe(self) -> Connection:
        pipe = self._pipe
        if pipe is None or self.pid is None:
            pipe = self._restart()
        if self._is_ready:
            return pipe
        hello: dict[str, object] = {}
        try:
            if pipe.poll(_START_LIMIT_S):
                hello = json.loads(pipe.recv_bytes())
        except (EOFError, OSError) as error:
            hello = {"failed": f"it ended at once ({type(error).__name__})"}
        if "ready" not in hello:
            with self._lock:
                self._stop()
            why = hello.get("failed", f"it was not ready within {_START_LIMIT_S:g} s")
            raise RewardError(f"cannot start an algebra worker with {sys.executable}: {why}")
        self._is_ready = True
        return pipe
