"""Is an extracted answer equal to the gold one?

Cheap rules first, in an order where each either decides or passes on: spelling, choice letters,
numbers, intervals, lists and brackets, labels, units, assignments. Only what is left needs algebra
and goes to a worker (`grader.py`). Two plain integers take a microsecond.

The rules where a choice had to be made:

- Lists and sets are unordered, bracketed pairs and intervals are ordered, and brackets must match.
- Letters in a label are not algebra: `ACB` is not `ABC`. Letters run together are no list.
- A trailing known unit, degree sign or currency is ignored when one side has none; two different
  units differ.
- A percentage equals a bare number as its value (0.25 is 25 %), or as its figure where that is at
  least 1 (28 is 28 %; 0.25 is not 0.25 %).
- An inequality in one variable equals the interval it describes.
- Numbers written exactly must be equal; where one has a decimal point they may differ by the
  tolerances of `math_worker.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from mupo_ray.rewards import notation
from mupo_ray.rewards.grader import Grader, Outcome
from mupo_ray.rewards.math_worker import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE
from mupo_ray.rewards.notation import Brackets, Number
from mupo_ray.rewards.units import split_unit
from mupo_ray.types import Reason

MAX_CHARS = 1000
"""A longer answer is right only if it is the gold one letter by letter."""

# Deeper nesting or longer lists than any gold has; beyond it, algebra decides.
_MAX_DEPTH = 4
_MAX_ITEMS = 24
_INFINITIES = frozenset({r"\infty", r"-\infty"})

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


def compare(answer: str, gold: str, algebra: Algebra) -> Reason:
    """Decide whether an extracted answer equals the gold one.

    Args:
        answer: text from the final box.
        gold: text it should equal; not empty.
        algebra: asked where no cheap rule decides; may raise, and the error passes through.

    Returns:
        RIGHT, WRONG, UNPARSABLE or TIMEOUT.
    """
    if answer == gold:
        return Reason.RIGHT
    if max(len(answer), len(gold)) > MAX_CHARS:
        return Reason.UNPARSABLE
    if answer.isdecimal() and gold.isdecimal():
        return _reason(int(answer) == int(gold))
    return _compare(notation.normalise(answer), notation.normalise(gold), algebra, _MAX_DEPTH)


def _compare(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason:
    keys = {notation.key(answer), notation.key(gold)}
    if len(keys) == 1:
        return Reason.RIGHT
    if keys & _INFINITIES:
        return Reason.WRONG
    gold_number = notation.read_number(gold)
    if gold_number is not None:
        answer_number = notation.read_number(answer)
        if answer_number is not None:
            return _reason(numbers_agree(answer_number, gold_number))
        if "\\" not in answer and not any(char.isdigit() for char in answer):
            return Reason.WRONG
    if (reason := _compare_letters(answer, gold)) is not None:
        return reason
    if depth:
        for rule in (_compare_intervals, _compare_lists, _compare_units, _compare_assignments):
            if (reason := rule(answer, gold, algebra, depth - 1)) is not None:
                return reason
    return algebra(answer, gold)


def numbers_agree(answer: Number, gold: Number) -> bool:
    """Equal figures, with the percentage and rounding rules of the module's description."""
    is_rounded = answer.is_decimal or gold.is_decimal
    if answer.is_percent == gold.is_percent:
        return _close(answer.value, gold.value, is_rounded)
    percent, bare = (answer, gold) if answer.is_percent else (gold, answer)
    if abs(percent.value) >= 1 and _close(percent.value, bare.value, is_rounded):
        return True
    return _close(percent.value / 100, bare.value, is_rounded)


def _close(left: Fraction, right: Fraction, is_rounded: bool) -> bool:
    gap = abs(left - right)
    if not is_rounded:
        return gap == 0
    return gap <= ABSOLUTE_TOLERANCE and gap <= Fraction(RELATIVE_TOLERANCE) * max(
        abs(left), abs(right)
    )


def _compare_letters(answer: str, gold: str) -> Reason | None:
    """Multiple choice and labels: all that is made of letters but is no algebra."""
    if choice := notation.read_choice(gold):
        return _reason(notation.read_choice(answer) == choice)
    answer_letters, gold_letters = notation.read_letters(answer), notation.read_letters(gold)
    if answer_letters and gold_letters:
        return _reason(answer_letters == gold_letters)
    # One side may run the letters of several choices together, in the order of the alphabet.
    if answer_letters and gold.isalpha():
        return _reason("".join(answer_letters) == gold)
    if gold_letters and answer.isalpha():
        return _reason("".join(gold_letters) == answer)
    if label := notation.read_label(gold):
        return _reason(notation.read_label(answer) == label)
    return None


def _compare_intervals(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason | None:
    ours, theirs = notation.read_inequality(answer), notation.read_inequality(gold)
    if ours and theirs:
        if ours[0] != theirs[0]:
            return Reason.WRONG
        return _compare_brackets(ours[1], theirs[1], algebra, depth)
    if ours and (interval := notation.read_brackets(gold)):
        return _compare_brackets(ours[1], interval, algebra, depth)
    if theirs and (interval := notation.read_brackets(answer)):
        return _compare_brackets(interval, theirs[1], algebra, depth)
    return None


def _compare_lists(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason | None:
    ours, theirs = notation.read_brackets(answer), notation.read_brackets(gold)
    # A lone thing in round brackets is itself.
    if ours and ours.kind == "()" and len(ours.items) == 1:
        return _compare(ours.items[0], gold, algebra, depth)
    if theirs and theirs.kind == "()" and len(theirs.items) == 1:
        return _compare(answer, theirs.items[0], algebra, depth)
    if ours and theirs:
        return _compare_brackets(ours, theirs, algebra, depth)
    our_items = _loose_items(answer, ours)
    their_items = _loose_items(gold, theirs)
    if our_items is None or their_items is None:
        return None
    if len(our_items) == len(their_items) == 1:
        return None
    return _compare_unordered(our_items, their_items, algebra, depth)


def _loose_items(text: str, brackets: Brackets | None) -> tuple[str, ...] | None:
    """Items of a bare list or a set, where order says nothing."""
    if brackets is not None:
        return brackets.items if brackets.is_set else (text,)
    items = notation.split_top_level(text)
    if items is None:
        return None
    signs = ("", "-")
    return tuple(
        sign + item.removeprefix(r"\pm").strip()
        for item in items
        for sign in (signs if item.startswith(r"\pm") else ("",))
    )


def _compare_brackets(ours: Brackets, theirs: Brackets, algebra: Algebra, depth: int) -> Reason:
    if ours.is_set and theirs.is_set:
        return _compare_unordered(ours.items, theirs.items, algebra, depth)
    if ours.kind != theirs.kind or len(ours.items) != len(theirs.items):
        return Reason.WRONG
    for our_item, their_item in zip(ours.items, theirs.items, strict=True):
        reason = _compare(our_item, their_item, algebra, depth)
        if reason is not Reason.RIGHT:
            return reason
    return Reason.RIGHT


def _compare_unordered(
    ours: tuple[str, ...], theirs: tuple[str, ...], algebra: Algebra, depth: int
) -> Reason:
    if len(ours) != len(theirs) or len(ours) > _MAX_ITEMS:
        return Reason.WRONG
    unmatched = list(theirs)
    for our_item in ours:
        for their_item in unmatched:
            reason = _compare(our_item, their_item, algebra, depth)
            if reason is Reason.TIMEOUT:
                return reason
            if reason is Reason.RIGHT:
                unmatched.remove(their_item)
                break
        else:
            return Reason.WRONG
    return Reason.RIGHT


def _compare_units(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason | None:
    our_body, our_unit = split_unit(answer)
    their_body, their_unit = split_unit(gold)
    if our_unit is None and their_unit is None:
        return None
    if our_unit and their_unit and our_unit != their_unit:
        return Reason.WRONG
    return _compare(our_body, their_body, algebra, depth)


def _compare_assignments(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason | None:
    ours, theirs = notation.read_assignment(answer), notation.read_assignment(gold)
    if ours and theirs:
        return (
            _compare(ours[1], theirs[1], algebra, depth) if ours[0] == theirs[0] else Reason.WRONG
        )
    if ours and notation.has_no_variable(gold):
        return _compare(ours[1], gold, algebra, depth)
    if theirs and notation.has_no_variable(answer):
        return _compare(answer, theirs[1], algebra, depth)
    return None


def _reason(is_equal: bool) -> Reason:
    return Reason.RIGHT if is_equal else Reason.WRONG
