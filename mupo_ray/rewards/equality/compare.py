"""Is an extracted answer equal to the gold one?

Cheap rules first, in an order where each either decides or passes on: spelling, options, numbers,
words, choice letters, regions, lists and brackets, matrices, units, assignments. Only what is left
needs algebra and goes to a worker (`algebra_pool.py`). Two plain integers take a microsecond.

The rules where a choice had to be made; `docs/rewards.md` has an example of each:

- Lists and sets are unordered, bracketed pairs and intervals are ordered, and brackets must match.
- Letters in a label are not algebra: `ACB` is not `ABC`. Letters run together are no list.
- A trailing known unit, degree sign or currency is ignored when one side has none; two different
  units differ.
- A percentage equals a bare number as its value (0.25 is 25 %), or as its figure where that is at
  least 1 (28 is 28 %; 0.25 is not 0.25 %).
- An inequality in one variable equals the interval it describes.
- Numbers written exactly must be equal; where one has a decimal point they may differ by the
  tolerances of `algebra_worker.py`.
- Figures side by side are no product, an equation between numbers is right only where all its sides
  are, and what stands behind an approximate sign is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import chain
from typing import TypeVar

from mupo_ray.rewards.algebra_worker import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE
from mupo_ray.rewards.equality import notation, words
from mupo_ray.rewards.equality.choices import Options, compare_choices
from mupo_ray.rewards.equality.notation import Brackets, Number
from mupo_ray.rewards.equality.regions import read_region
from mupo_ray.rewards.equality.spelling import key, normalise, separate_cases
from mupo_ray.rewards.equality.units import split_unit
from mupo_ray.types import Reason

MAX_CHARS = 1000
"""A longer answer is right only if it is the gold one letter by letter."""

Algebra = Callable[[str, str], Reason]
"""Compares normalised (answer, gold) where the cheap rules do not decide."""

# Deeper nesting or longer lists than any gold has; beyond it, algebra decides.
_MAX_DEPTH = 4
_MAX_ITEMS = 24
_INFINITIES = frozenset({r"\infty", r"-\infty"})

T = TypeVar("T")


class NeedsAlgebraError(Exception):
    """Raised by `no_algebra`: the cheap rules do not decide this pair."""


def no_algebra(answer: str, gold: str) -> Reason:
    """The `Algebra` of a caller that wants cheap decisions alone.

    Raises:
        NeedsAlgebraError: always.
    """
    raise NeedsAlgebraError(f"no cheap rule decides {answer!r} against {gold!r}")


def compare(answer: str, gold: str, algebra: Algebra, options: Options = ()) -> Reason:
    """Decide whether an extracted answer equals the gold one.

    Args:
        answer: text from the final box.
        gold: text it should equal; not empty.
        algebra: asked where no cheap rule decides; may raise, and the error passes through.
        options: of a multiple choice question.

    Returns:
        RIGHT, WRONG, UNPARSABLE or TIMEOUT.
    """
    if answer == gold:
        return Reason.RIGHT
    if max(len(answer), len(gold)) > MAX_CHARS:
        return Reason.UNPARSABLE
    if not options and answer.isdecimal() and gold.isdecimal():
        return _reason(int(answer) == int(gold))
    answer, gold = normalise(answer), normalise(gold)
    if options:
        reason = compare_choices(
            answer, gold, options, lambda ours, theirs: _compare(ours, theirs, algebra, _MAX_DEPTH)
        )
        if reason is not None:
            return reason
    return _compare(answer, gold, algebra, _MAX_DEPTH)


def _compare(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason:
    keys = {key(answer), key(gold)}
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
        for rule in _RULES:
            if (reason := rule(answer, gold, algebra, depth - 1)) is not None:
                return reason
    if notation.is_misread(answer) or notation.is_misread(gold):
        return Reason.UNPARSABLE
    # The parser drops primes: f' would be f.
    if _primes(answer) != _primes(gold):
        return Reason.WRONG
    return algebra(*separate_cases(answer, gold))


def _primes(text: str) -> int:
    """Those of the right side: what a function is called matters less."""
    return text.rpartition("=")[2].count("'")


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
    """Multiple choice, words and labels: all that is made of letters but is no algebra."""
    if choice := words.read_choice(gold):
        return _reason(words.read_choice(answer) == choice)
    answer_letters, gold_letters = words.read_letters(answer), words.read_letters(gold)
    if answer_letters and gold_letters:
        return _reason(answer_letters == gold_letters)
    # One side may run the letters of several choices together, in the order of the alphabet.
    if answer_letters and gold.isalpha():
        return _reason("".join(answer_letters) == gold)
    if gold_letters and answer.isalpha():
        return _reason("".join(gold_letters) == answer)
    if not any(map(str.isdigit, answer + gold)) and (reason := _compare_words(answer, gold)):
        return reason
    if label := words.read_label(gold):
        return _reason(words.read_label(answer) == label)
    return None


def _compare_words(
    answer: str, gold: str, algebra: Algebra | None = None, depth: int = 0
) -> Reason | None:
    answer_words, gold_words = words.read_words(answer), words.read_words(gold)
    return _reason(answer_words == gold_words) if answer_words and gold_words else None


def _compare_approximations(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason | None:
    r"""`\sqrt{2} \approx 1.41` says `\sqrt{2}`."""
    ours, theirs = _before_approximation(answer), _before_approximation(gold)
    return None if (ours, theirs) == (answer, gold) else _compare(ours, theirs, algebra, depth)


def _before_approximation(text: str) -> str:
    return text.partition(r"\approx ")[0].strip() or text


def _compare_regions(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason | None:
    ours, theirs = read_region(answer), read_region(gold)
    if ours is None or theirs is None or (ours.is_pair and theirs.is_pair):
        return None
    if ours.variable and theirs.variable and ours.variable != theirs.variable:
        return Reason.WRONG
    return _match_all(
        ours.intervals,
        theirs.intervals,
        lambda our, their: _compare_brackets(our, their, algebra, depth),
    )


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
    return _compare_pairs(zip(ours.items, theirs.items, strict=True), algebra, depth)


def _compare_unordered(
    ours: tuple[str, ...], theirs: tuple[str, ...], algebra: Algebra, depth: int
) -> Reason:
    names = [
        {part[0] for item in side if (part := notation.read_assignment(item))}
        for side in (ours, theirs)
    ]
    if all(names) and names[0] != names[1]:
        return Reason.WRONG
    # "x = 1, y = 2" against "1, 2": the order says which is which.
    if sorted(map(len, names)) == [0, len(ours)] and len(ours) == len(theirs) > 1:
        return _compare_brackets(Brackets("()", ours), Brackets("()", theirs), algebra, depth)
    return _match_all(ours, theirs, lambda our, their: _compare(our, their, algebra, depth))


def _match_all(
    ours: tuple[T, ...], theirs: tuple[T, ...], compare_two: Callable[[T, T], Reason]
) -> Reason:
    """Whether each of ours has a partner of its own among theirs."""
    if len(ours) != len(theirs) or len(ours) > _MAX_ITEMS:
        return Reason.WRONG
    unmatched = list(theirs)
    for our_item in ours:
        for index, their_item in enumerate(unmatched):
            reason = compare_two(our_item, their_item)
            if reason is Reason.TIMEOUT:
                return reason
            if reason is Reason.RIGHT:
                del unmatched[index]
                break
        else:
            return Reason.WRONG
    return Reason.RIGHT


def _compare_matrices(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason | None:
    if r"\begin" not in answer and r"\begin" not in gold:
        return None
    ours, theirs = notation.read_matrix(answer), notation.read_matrix(gold)
    if ours is None or theirs is None:
        return None
    if len(ours) != len(theirs) or len(ours[0]) != len(theirs[0]):
        return Reason.WRONG
    if len(ours) * len(ours[0]) > _MAX_ITEMS**2:
        return Reason.WRONG
    cells = zip(chain.from_iterable(ours), chain.from_iterable(theirs), strict=True)
    return _compare_pairs(cells, algebra, depth)


def _compare_measures(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason | None:
    """Units behind single numbers: the comma of `1,200 m` makes no list."""
    measures = [split_unit(side) for side in (answer, gold)]
    if any(unit and not notation.read_number(body) for body, unit in measures):
        return None
    return _compare_units(answer, gold, algebra, depth)


def _compare_units(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason | None:
    ours, theirs = split_unit(answer), split_unit(gold)
    (our_body, our_unit), (their_body, their_unit) = ours, theirs
    if our_unit is None and their_unit is None:
        return None
    if our_unit and their_unit and our_unit != their_unit:
        return Reason.WRONG
    if any(unit and split_unit(body)[1] for body, unit in (ours, theirs)):
        return Reason.UNPARSABLE
    return _compare(our_body, their_body, algebra, depth)


def _compare_assignments(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason | None:
    ours, theirs = notation.read_assignment(answer), notation.read_assignment(gold)
    if ours and theirs and ours[0] != theirs[0]:
        return Reason.WRONG
    if ours and (theirs or notation.has_no_variable(gold)):
        answers = ours[1]
    elif theirs and notation.has_no_variable(answer):
        answers = (answer,)
    else:
        return None
    wanted = theirs[1][-1] if theirs else gold
    return _compare_pairs(((side, wanted) for side in answers), algebra, depth)


def _compare_equations(answer: str, gold: str, algebra: Algebra, depth: int) -> Reason | None:
    """`f(x) = x(x + 2) = x^2 + 2x` says what all its sides say; a parser reads the last alone."""
    ours, theirs = notation.split_equation(answer), notation.split_equation(gold)
    # Two expressions, or two equations, are for algebra.
    if len(ours) == len(theirs) <= 2:
        return None
    if not all(ours):
        return Reason.UNPARSABLE
    if len(ours) == 1 and not notation.is_name(theirs[0]):
        return Reason.WRONG
    wanted = theirs[-1] if len(theirs) > 1 and notation.is_name(theirs[0]) else gold
    sides = ours[1:] if len(ours) > 1 and notation.is_name(ours[0]) else ours
    return _compare_pairs(((side, wanted) for side in sides), algebra, depth)


def _compare_pairs(pairs: Iterable[tuple[str, str]], algebra: Algebra, depth: int) -> Reason:
    """RIGHT where all pairs are; else what the first says that is not, and no more is compared."""
    reasons = (_compare(answer, gold, algebra, depth) for answer, gold in pairs)
    return next((reason for reason in reasons if reason is not Reason.RIGHT), Reason.RIGHT)


_RULES = (
    _compare_approximations,
    _compare_regions,
    _compare_matrices,
    _compare_measures,
    _compare_lists,
    _compare_units,
    # With figures in them: "Route 66". Before units, "12 inches" would be words.
    _compare_words,
    _compare_assignments,
    _compare_equations,
)


def _reason(is_equal: bool) -> Reason:
    return Reason.RIGHT if is_equal else Reason.WRONG
