r"""The process in which math-verify runs, and the only file that imports it.

    algebra_pool.py --pipe--> supervisor (imports math-verify once, never computes)
                                --fork, pipe--> child (computes; killed if late, forked anew in ms)

Run by path, never imported as a process, so that it starts without the package, Ray or torch. One
request a message, one reply a message, JSON both ways:

    {"answer": str, "gold": str, "limit_s": float}
        -> {"outcome": "equal" | "different" | "unparsable" | "timeout" | "memory" | "died"}

A computation that hangs inside C holds the interpreter lock, so nothing in its process could stop
it. Forking from a process that has sympy loaded makes a replacement cheap: on a busy machine a
fresh start takes ten seconds, and a batch of hanging answers would cost that for each.

Nothing outlives the caller: the supervisor leaves, and takes its child along, when its pipe closes,
when its parent is gone, or on SIGTERM; a child whose supervisor was killed is killed by the kernel,
at once on Linux, elsewhere at the end of its pipe or by its alarm.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

# Two numbers agree where both hold: the first is math-verify's own rounding (6 decimals), the
# second keeps tiny values apart, which rounding alone calls equal.
ABSOLUTE_TOLERANCE = 1e-6
RELATIVE_TOLERANCE = 1e-5

# A tower of powers asks for all the memory there is before it asks for all the time.
_MEMORY_LIMIT_BYTES = 2 << 30
_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_S = 5.0
_ALARM_GRACE_S = 2.0
# First use of sympy and of the LaTeX parser takes most of a second; every child inherits it done.
_WARM_UP = ((r"\frac{x^2-1}{x-1}", "x+1"), (r"\sqrt{8}", r"2\sqrt{2}"), ("x<3", r"(-\infty, 3)"))


def supervise(fd: int) -> None:
    """Answer requests on an inherited pipe until it closes."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    pipe = Connection(fd)
    try:
        import math_verify  # noqa: F401
    except ImportError as error:
        _send(pipe, {"failed": f"math-verify cannot be imported: {error}"})
        return
    for answer, gold in _WARM_UP:
        _compare(answer, gold)
    _send(pipe, {"ready": True})
    child: _Child | None = None
    try:
        while os.getppid() == parent:
            if not pipe.poll(_PARENT_CHECK_S):
                continue
            request = pipe.recv_bytes()
            if child is None or not child.is_alive():
                child = _Child(pipe)
            reply = child.ask(request, pipe)
            if reply["outcome"] in ("timeout", "memory", "died"):
                child.kill()
                child = None
            _send(pipe, reply)
    except (EOFError, BrokenPipeError):
        return  # The caller is gone.
    finally:
        if child is not None:
            child.kill()


class _Child:
    """A forked process that compares, one request after another."""

    def __init__(self, to_caller: Connection) -> None:
        self._pipe, theirs = Pipe()
        self._is_reaped = False
        self.pid = os.fork()
        if self.pid == 0:
            # Only the supervisor may hold these ends, or their closing would go unnoticed.
            to_caller.close()
            self._pipe.close()
            try:
                _compute(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def ask(self, request: bytes, to_caller: Connection) -> dict[str, str]:
        try:
            self._pipe.send_bytes(request)
            ready = wait([self._pipe, to_caller], json.loads(request)["limit_s"])
            if self._pipe in ready:
                reply: dict[str, str] = json.loads(self._pipe.recv_bytes())
                return reply
        except (EOFError, OSError):
            return {"outcome": "died"}
        if ready:
            raise EOFError("the caller does not send before it has its reply: it is gone")
        return {"outcome": "timeout"}

    def is_alive(self) -> bool:
        if not self._is_reaped:
            self._is_reaped = os.waitpid(self.pid, os.WNOHANG) != (0, 0)
        return not self._is_reaped

    def kill(self) -> None:
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._is_reaped = True
        self._pipe.close()


def _compute(pipe: Connection) -> None:
    if sys.platform == "linux":
        # Whoever kills the supervisor itself, as Ray does with a dead actor's children, kills this.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > _MEMORY_LIMIT_BYTES:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_BYTES, hard))
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, request["limit_s"] + _ALARM_GRACE_S)
        outcome = _compare(request["answer"], request["gold"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(pipe, {"outcome": outcome})


def _compare(answer: str, gold: str) -> str:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    from math_verify.parser import NormalizationConfig

    # It takes `3x + 2s` for `3x + 2` seconds; units are dealt with before.
    spelling = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
    try:
        # The dollar signs and the modes make the parser read the whole string or nothing; its own
        # time limits are off, for they use the alarm.
        parsed = [
            parse(
                f"${text}$",
                [LatexExtractionConfig(normalization_config=spelling), ExprExtractionConfig()],
                fallback_mode="no_fallback",
                extraction_mode="first_match",
                parsing_timeout=0,
                raise_on_error=True,
            )
            for text in (answer, gold)
        ]
        if not all(parsed):
            return "unparsable"
        is_equal = verify(parsed[1], parsed[0], timeout_seconds=0, raise_on_error=True)
        return "equal" if is_equal and _are_close(parsed[0][0], parsed[1][0]) else "different"
    except MemoryError:
        return "memory"
    except Exception:
        # sympy raises nearly any type on text that a policy wrote; the reason is named and counted.
        return "unparsable"


def _are_close(left: object, right: object) -> bool:
    """False where two expressions are numbers further apart than the tolerances."""
    if not (getattr(left, "is_number", False) and getattr(right, "is_number", False)):
        return True
    gap = abs((left - right).evalf(30))  # type: ignore[operator]
    size = max(abs(left.evalf(30)), abs(right.evalf(30)))  # type: ignore[attr-defined]
    return bool(gap <= ABSOLUTE_TOLERANCE and gap <= RELATIVE_TOLERANCE * size)


def _send(pipe: Connection, message: Mapping[str, object]) -> None:
    pipe.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    supervise(int(sys.argv[1]))
