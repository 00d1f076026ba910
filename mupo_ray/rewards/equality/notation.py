r"""Readers that take a normalised answer apart: number, brackets, list, matrix, assignment.

Each returns None where the text is not of its kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_SIGN = r"(?P<sign>[+-]?) ?"
_POWER_OF_TEN = r"10 ?\^ ?(?:\{ ?(?P<power>[+-]?\d+) ?\}|(?P<bare_power>[+-]?\d+))"
_NUMBER_FORMS = tuple(
    re.compile(_SIGN + form)
    for form in (
        rf"(?P<mantissa>{_DECIMAL})(?: ?[eE](?P<power>[+-]?\d+))?",
        rf"(?P<mantissa>{_DECIMAL}) ?(?:\\times|\\cdot|\*) ?{_POWER_OF_TEN}",
        _POWER_OF_TEN,
        rf"(?:(?P<whole>\d+) ?)?\\frac ?\{{ ?(?P<top>-?{_DECIMAL}) ?\}} ?"
        rf"\{{ ?(?P<bottom>{_DECIMAL}) ?\}}",
        rf"(?:(?P<whole>\d+) )?(?P<top>{_DECIMAL}) ?/ ?(?P<bottom>{_DECIMAL})",
        r"(?P<mantissa>\d*\.\d*)\\(?:overline|dot|bar) ?\{ ?(?P<period>\d+) ?\}",
    )
)
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12, "\u4e07": 4, "\u4ebf": 8}
_SCALE = re.compile(rf"(.*\d) ?({'|'.join(_SCALES)})")
# A power beyond this is left to the worker: expanding it here could take for ever.
_MAX_POWER = 400

_OPENING, _CLOSING = "([{", ")]}"
AND = re.compile(r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|[\u548c\u6216]")
"""A word that joins the items of a list."""
_ASSIGNMENT = re.compile(r"([A-Za-z](?:_\{?\w+\}?)?|\\[a-z]+|\([A-Za-z, ]+\)) ?= ?([^<>]+)")
_COMMAND = re.compile(r"\\(?:begin|end) ?\{[a-zA-Z]+\}|\\[A-Za-z]+")
_MATRIX = re.compile(
    r"(?P<open>[(\[]?) ?\\begin ?\{(?P<name>[pbB]?(?:small)?matrix|array)\} ?(?:\{[clr| ]+\})?"
    r"(?P<body>.*)\\end ?\{(?P=name)\} ?[)\]]?"
)
_ROW_BREAK = re.compile(r"\\\\(?: ?\[[^\]]*\])?")
# Figures side by side, two points in a figure, a dollar sign that is no currency's, degrees twice.
_MISREAD = re.compile(r"(?<![_^\d.])\d[\d.]* +\.?\d|\.\d+\.\d|\$|\\circ ?\^|\^ ?\\\\")
# What may stand on the left of `=` as the name of what stands on its right.
_NAME = re.compile(r"(?:\\?[A-Za-z]|_ ?(?:\{[^{}]*\}|\w)|\^ ?\{ ?-1 ?\}|[ '|(){},])+")
_EQUALS = re.compile(r"(?<![<>!])=")


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written."""

    value: Fraction
    """Of a percentage: the figure, not the hundredth of it."""
    is_decimal: bool
    """Written with a decimal point, so possibly rounded."""
    is_percent: bool


@dataclass(frozen=True, slots=True)
class Brackets:
    """Comma-separated items inside one pair of brackets."""

    kind: str
    """Opening and closing bracket, such as `(]`."""
    items: tuple[str, ...]

    @property
    def is_set(self) -> bool:
        """True for braces: the order of items says nothing."""
        return self.kind == "{}"


def read_number(text: str) -> Number | None:
    """Integers, decimals, fractions, mixed numbers, powers of ten; `%` marks a percentage."""
    is_percent = text.endswith("%")
    if is_percent:
        text = text[:-1].rstrip()
    scale = 0
    if match := _SCALE.fullmatch(text):
        text, scale = match[1], _SCALES[match[2]]
    for form in _NUMBER_FORMS:
        if match := form.fullmatch(text):
            value = _value(match.groupdict())
            if value is None:
                return None
            is_decimal = "." in text and match.groupdict().get("period") is None
            return Number(value * 10**scale, is_decimal, is_percent)
    return None


def is_misread(text: str) -> bool:
    """Whether a parser would make something of a text that says nothing: `3 4` is not 12."""
    return _MISREAD.search(text) is not None


def read_brackets(text: str) -> Brackets | None:
    r"""A pair, tuple, interval or set: `(1, 2)`, `[0, 3)`, `\{1, 2\}`; one item will do."""
    text = text.replace(r"\{", "{").replace(r"\}", "}")
    if len(text) < 3 or text[0] not in _OPENING or text[-1] not in _CLOSING:
        return None
    items = split_top_level(text[1:-1])
    if items is None:
        return None
    return Brackets(text[0] + text[-1], items)


def split_top_level(text: str) -> tuple[str, ...] | None:
    """Items between the commas, semicolons and `and`s outside all brackets.

    Returns:
        The items, stripped; one where there is no separator. None where brackets do not match or
        all items are empty.
    """
    text = AND.sub(",", text)
    items, depth, start = [], 0, 0
    for index, char in enumerate(text):
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
            if depth < 0:
                return None
        elif char in ",;" and depth == 0:
            items.append(text[start:index].strip())
            start = index + 1
    items.append(text[start:].strip())
    # "1, 2, and 3" leaves an empty item between its two separators.
    items = [item for item in items if item]
    return tuple(items) if depth == 0 and items else None


def read_matrix(text: str) -> tuple[tuple[str, ...], ...] | None:
    r"""Rows of a matrix in any of LaTeX's environments, or of `[[1, 2], [3, 4]]`."""
    if match := _MATRIX.fullmatch(text):
        if match["name"] == "array" and not match["open"]:
            return None
        lines = [line for line in _ROW_BREAK.split(match["body"]) if line.strip()]
        rows = tuple(tuple(cell.strip() for cell in line.split("&")) for line in lines)
    else:
        outer = read_brackets(text) if text.startswith("[") else None
        if outer is None or outer.kind != "[]":
            return None
        inner = [read_brackets(item) for item in outer.items]
        rows = tuple(row.items for row in inner if row is not None and row.kind == "[]")
        if len(rows) != len(inner):
            return None
    return rows if rows and len({len(row) for row in rows}) == 1 else None


def read_assignment(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Left side of `x = 5` or `x = 6/2 = 3` and all that follows, where none has a variable."""
    match = _ASSIGNMENT.fullmatch(text)
    if not match or not has_no_variable(match[2]):
        return None
    sides = split_equation(match[2])
    return (match[1].replace(" ", ""), sides) if all(sides) else None


def split_equation(text: str) -> tuple[str, ...]:
    """All that equals signs part, stripped; one part where there is none."""
    return tuple(side.strip() for side in _EQUALS.split(text))


def is_name(text: str) -> bool:
    r"""Whether a left side only names the right one: `x`, `f(x)`, `S_{ABC}`, `m\angle A`."""
    return _NAME.fullmatch(text) is not None


def has_no_variable(text: str) -> bool:
    r"""True where no letter stands outside a command: `4\sqrt{3}`, `25\pi`, `-3`."""
    return not any(char.isalpha() for char in _COMMAND.sub("", text))


def _value(parts: dict[str, str | None]) -> Fraction | None:
    value = Fraction(1)
    if period := parts.get("period"):
        whole, _, digits = str(parts["mantissa"]).partition(".")
        value = Fraction(int(period), 10 ** len(digits) * (10 ** len(period) - 1))
        value += Fraction(int(whole + digits or "0"), 10 ** len(digits))
    elif mantissa := parts.get("mantissa"):
        value = _figure(mantissa)
    if power := parts.get("power") or parts.get("bare_power"):
        if len(power) > 4 or abs(int(power)) > _MAX_POWER:
            return None
        value *= Fraction(10) ** int(power)
    if (top := parts.get("top")) and (bottom := parts.get("bottom")):
        divisor = _figure(bottom)
        if not divisor:
            return None
        value = int(parts.get("whole") or 0) + _figure(top) / divisor
    return -value if parts["sign"] == "-" else value


def _figure(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", ""))
