r"""Parts of the number line, however written: inequality, interval, union, set-builder.

`x < 1 or x > 2`, `(-\infty, 1) \cup (2, \infty)` and `\{x \mid x < 1 or x > 2\}` are one region.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mupo_ray.rewards.equality.notation import (
    AND,
    Brackets,
    read_brackets,
    read_number,
    split_top_level,
)

_RELATION = r" ?(<|>|\\le|\\ge) ?"
_VARIABLE = r"([A-Za-z]|\\theta)"
_BOUND = r"((?:(?!\\[lg]e)[^<>=,])+?)"
_ONE_SIDED = re.compile(rf"{_VARIABLE}{_RELATION}{_BOUND}")
_ONE_SIDED_REVERSED = re.compile(rf"{_BOUND}{_RELATION}{_VARIABLE}")
_TWO_SIDED = re.compile(rf"{_BOUND}{_RELATION}{_VARIABLE}{_RELATION}{_BOUND}")
_UNEQUAL = re.compile(rf"{_VARIABLE} ?\\ne ?{_BOUND}")
_MEMBER = re.compile(rf"{_VARIABLE} ?\\in(?![a-z]) ?(.+)")
_BUILDER = re.compile(
    rf"\\?\{{ ?{_VARIABLE} ?(?:\\in ?\\mathbb\{{R\}} ?)?(?:\\mid|[|:]) ?(.+?) ?\\?\}}"
)
_UNION = re.compile(r" ?(?:\\cup(?![a-z])|(?<=[)\]]) ?U(?= ?[(\[])) ?")
_ALL = frozenset({r"\mathbb{R}", "all real numbers", "all reals"})
_WHOLE_LINE = Brackets("()", (r"-\infty", r"\infty"))
_KINDS = frozenset({"()", "[]", "(]", "[)"})


@dataclass(frozen=True, slots=True)
class Region:
    """Intervals of one variable."""

    variable: str | None
    """None where only intervals are written."""
    intervals: tuple[Brackets, ...]
    is_pair: bool = False
    """One interval on its own, which may as well be a pair of numbers."""


def read_region(text: str) -> Region | None:
    """The region that a normalised text describes."""
    if text in _ALL:
        return Region(None, (_WHOLE_LINE,))
    if match := _BUILDER.fullmatch(text):
        inner = _read_inequalities(match[2])
        return inner if inner is not None and inner.variable == match[1] else None
    if match := _MEMBER.fullmatch(text):
        intervals = _read_union(match[2])
        return None if intervals is None else Region(match[1], intervals)
    if text[:1] in "([" and (intervals := _read_union(text)) is not None:
        return Region(None, intervals, is_pair=len(intervals) == 1)
    return _read_inequalities(text)


def _read_union(text: str) -> tuple[Brackets, ...] | None:
    if text in _ALL:
        return (_WHOLE_LINE,)
    parts = [read_brackets(part) for part in _UNION.split(text)]
    good = tuple(
        part for part in parts if part is not None and part.kind in _KINDS and len(part.items) == 2
    )
    return good if len(good) == len(parts) else None


def _read_inequalities(text: str) -> Region | None:
    if not any(sign in text for sign in ("<", ">", r"\le", r"\ge", r"\ne")):
        return None
    parts = split_top_level(text)
    inequalities = [_read_inequality(part) for part in parts or ()]
    good = [inequality for inequality in inequalities if inequality is not None]
    if not good or len(good) < len(inequalities):
        return None
    variable = good[0][0]
    if any(name != variable for name, _ in good):
        return None
    intervals = tuple(interval for _, several in good for interval in several)
    if len(good) == 2 and len(intervals) == 2 and _is_meet(text, intervals):
        low, high = sorted(intervals, key=lambda interval: interval.items[0] == r"-\infty")
        intervals = (Brackets(low.kind[0] + high.kind[1], (low.items[0], high.items[1])),)
    return Region(variable, intervals)


def _is_meet(text: str, intervals: tuple[Brackets, ...]) -> bool:
    """Whether two inequalities hold at once. A comma says so where they overlap."""
    lows = [interval.items[0] for interval in intervals if interval.items[1] == r"\infty"]
    highs = [interval.items[1] for interval in intervals if interval.items[0] == r"-\infty"]
    if len(lows) != 1 or len(highs) != 1:
        return False
    if word := AND.search(text):
        return word[0] in ("and", "\u548c")
    low, high = read_number(lows[0]), read_number(highs[0])
    return low is not None and high is not None and low.value < high.value


def _read_inequality(text: str) -> tuple[str, tuple[Brackets, ...]] | None:
    r"""Variable and intervals of `x < 3`, `3 \ge x`, `1 < x \le 2` or `x \ne 1`."""
    if match := _UNEQUAL.fullmatch(text):
        hole = match[2].strip()
        return match[1], (Brackets("()", (r"-\infty", hole)), Brackets("()", (hole, r"\infty")))
    if match := _TWO_SIDED.fullmatch(text):
        low, first, variable, second, high = match.groups()
        if _is_less(first) != _is_less(second):
            return None
        if not _is_less(first):
            low, first, second, high = high, second, first, low
        kind = ("(" if first in "<>" else "[") + (")" if second in "<>" else "]")
        return variable, (Brackets(kind, (low.strip(), high.strip())),)
    if match := _ONE_SIDED.fullmatch(text):
        variable, relation, bound = match.groups()
        is_upper = _is_less(relation)
    elif match := _ONE_SIDED_REVERSED.fullmatch(text):
        bound, relation, variable = match.groups()
        is_upper = not _is_less(relation)
    else:
        return None
    is_open = relation in "<>"
    if is_upper:
        return variable, (Brackets("()" if is_open else "(]", (r"-\infty", bound.strip())),)
    return variable, (Brackets("()" if is_open else "[)", (bound.strip(), r"\infty")),)


def _is_less(relation: str) -> bool:
    return relation in ("<", r"\le")
