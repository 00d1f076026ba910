"""Who compares what no cheap rule decides: a grader's workers within a limit, or nobody."""

from __future__ import annotations

from collections.abc import Callable

from mupo_ray.rewards.algebra_pool import Grader, Outcome
from mupo_ray.types import Reason

_OUTCOMES = {
    Outcome.EQUAL: Reason.RIGHT,
    Outcome.DIFFERENT: Reason.WRONG,
    Outcome.UNPARSABLE: Reason.UNPARSABLE,
    Outcome.TIMEOUT: Reason.TIMEOUT,
}

Algebra = Callable[[str, str], Reason]
"""Compares normalised (answer, gold) where the cheap rules do not decide."""


class NeedsAlgebraError(Exception):
    """Raised by `no_algebra`: the cheap rules do not decide this pair."""


def no_algebra(answer: str, gold: str) -> Reason:
    """The `Algebra` of a caller that wants cheap decisions alone.

    Raises:
        NeedsAlgebraError: always.
    """
    raise NeedsAlgebraError(f"no cheap rule decides {answer!r} against {gold!r}")


def algebra_within(grader: Grader) -> Algebra:
    """An `Algebra` for one pair of answers, all of whose parts share one time limit."""
    left_s = grader.limit_s

    def compare_by_algebra(answer: str, gold: str) -> Reason:
        nonlocal left_s
        if left_s <= 0:
            return Reason.TIMEOUT
        grade = grader.grade(answer, gold, left_s)
        left_s -= grade.seconds
        return _OUTCOMES[grade.outcome]

    return compare_by_algebra
