r"""One spelling for the many ways to write the same answer; no algebra, microseconds each.

`normalise` brings LaTeX, full-width and plain spellings together; the readers below it take a
normalised text apart (number, brackets, list, inequality, choice letter, label) and return None
where it is not of their kind. Callers bound the length of what they pass (`verify.MAX_CHARS`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_CHARACTERS = str.maketrans(
    {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width ASCII
    | {
        "\u3000": " ",
        "\u3001": ",",
        "\u3002": ".",
        "\u2212": "-",
        "\u2013": "-",
        "\u00d7": r"\times ",
        "\u00b7": r"\cdot ",
        "\u00f7": "/",
        "\u00b0": r"^\circ ",
        "\u03c0": r"\pi ",
        "\u221e": r"\infty ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u2220": r"\angle ",
        "\u25b3": r"\triangle ",
        "\u00b2": "^2",
        "\u00b3": "^3",
        "\u00bd": r"\frac{1}{2}",
        "\u00bc": r"\frac{1}{4}",
        "\u00be": r"\frac{3}{4}",
    }
)
_WRAPPER = re.compile(
    r"\\(?:text(?:bf|it|rm|tt)?|math(?:rm|bf|it|sf)|mbox|operatorname)\*? ?\{([^{}]*)\}"
)
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\!|\\displaystyle|\\left(?![a-z])|\\right(?![a-z])", ""),
        (r"\{,\}", ","),
        (r"(?<!\\)\\[,;:> ()\[\]]|~|\\q?quad(?![a-z])", " "),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\leq?(?:slant)?(?![a-z])", r"\\le "),
        (r"\\geq?(?:slant)?(?![a-z])", r"\\ge "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"\\lt(?![a-z])", "<"),
        (r"\\gt(?![a-z])", ">"),
        (r"\\([%$])", r"\1"),
        (r"\^ ?\{ ?\\circ ?\}", r"^\\circ"),
        (r"\\degree(?![a-z])", r"^\\circ"),
        (r"\^ ?\\circ ?([CF])(?![a-z])", r"^\\circ\1"),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<![A-Za-z\\])sqrt(?=[ ({])", r"\\sqrt"),
        (r"\\sqrt ?\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt ?(\d)", r"\\sqrt{\1}"),
        (r"\\frac ?(\d) ?(\d)", r"\\frac{\1}{\2}"),
        (r"\s+", " "),
    )
)

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_SIGN = r"(?P<sign>[+-]?) ?"
_POWER_OF_TEN = r"10 ?\^ ?(?:\{ ?(?P<power>[+-]?\d+) ?\}|(?P<bare_power>\d))"
_NUMBER_FORMS = tuple(
    re.compile(_SIGN + form)
    for form in (
        rf"(?P<mantissa>{_DECIMAL})(?: ?[eE](?P<power>[+-]?\d+))?",
        rf"(?P<mantissa>{_DECIMAL}) ?(?:\\times|\\cdot|\*) ?{_POWER_OF_TEN}",
        _POWER_OF_TEN,
        rf"(?:(?P<whole>\d+) ?)?\\frac ?\{{ ?(?P<top>-?{_DECIMAL}) ?\}} ?"
        rf"\{{ ?(?P<bottom>{_DECIMAL}) ?\}}",
        rf"(?:(?P<whole>\d+) )?(?P<top>{_DECIMAL}) ?/ ?(?P<bottom>{_DECIMAL})",
    )
)
# A power beyond this is left to the worker: expanding it here could take for ever.
_MAX_POWER = 400

_OPENING, _CLOSING = "([{", ")]}"
_AND = re.compile(r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_RELATION = r" ?(<|>|\\le|\\ge) ?"
_VARIABLE = r"([A-Za-z])"
_ONE_SIDED = re.compile(rf"{_VARIABLE}{_RELATION}([^<>=]+)")
_ONE_SIDED_REVERSED = re.compile(rf"([^<>=]+?){_RELATION}{_VARIABLE}")
_TWO_SIDED = re.compile(rf"([^<>=]+?){_RELATION}{_VARIABLE}{_RELATION}([^<>=]+)")
_ASSIGNMENT = re.compile(r"([A-Za-z](?:_\{?\w+\}?)?|\\[a-z]+) ?= ?([^=<>]+)")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_CHOICE = re.compile(r"(?:\(([A-J])\)|([A-J])(?![^.:)]))[.:)]?(?P<rest>.*)", re.DOTALL)
_ANOTHER_CHOICE = re.compile(r"(?<![A-Za-z])[A-J](?![A-Za-z])")
_LETTERS = re.compile(r"[A-J](?:(?: ?[,;&] ?| and | )[A-J])+")
_GEOMETRY = re.compile(
    r"\\(?:angle|triangle|overline|overrightarrow|overleftrightarrow|widehat|odot)(?![a-z])"
)


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


@lru_cache(maxsize=1024)
def normalise(text: str) -> str:
    """Spell `text` in the one way the readers below expect; idempotent on what it returns."""
    text = text.translate(_CHARACTERS).strip()
    unwrapped = _WRAPPER.sub(r" \1 ", text)
    while unwrapped != text:
        text, unwrapped = unwrapped, _WRAPPER.sub(r" \1 ", unwrapped)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == "$":
        text = text.strip("$").strip()
    return text.rstrip(".").rstrip() if not text.endswith("..") else text


def key(text: str) -> str:
    """What two normalised texts share that differ in spacing, needless braces or case only.

    Case is dropped from words alone: `Yes` is `yes`, but `x` is not `X`.
    """
    # A space between digits stays: `1 1/4` is not `11/4`.
    text = re.sub(r"(?<!\d) | (?!\d)", "", text).removeprefix("+")
    text = re.sub(r"([\^_])\{(\w)\}", r"\1\2", text)
    return text.casefold() if len(text) > 1 and text.isalpha() else text


def read_number(text: str) -> Number | None:
    """Integers, decimals, fractions, mixed numbers, powers of ten; `%` marks a percentage."""
    is_percent = text.endswith(("%", " percent"))
    if is_percent:
        text = text.removesuffix("%").removesuffix(" percent").rstrip()
    for form in _NUMBER_FORMS:
        if match := form.fullmatch(text):
            value = _value(match.groupdict())
            return None if value is None else Number(value, "." in text, is_percent)
    return None


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
        The items, stripped; one where there is no separator. None where brackets do not match or an
        item is empty.
    """
    text = _AND.sub(",", text)
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


def read_inequality(text: str) -> tuple[str, Brackets] | None:
    r"""Variable and interval of `x < 3`, `3 \ge x` or `1 < x \le 2`."""
    if match := _TWO_SIDED.fullmatch(text):
        low, first, variable, second, high = match.groups()
        if _is_less(first) != _is_less(second):
            return None
        if not _is_less(first):
            low, first, second, high = high, second, first, low
        kind = ("(" if first in "<>" else "[") + (")" if second in "<>" else "]")
        return variable, Brackets(kind, (low.strip(), high.strip()))
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
        return variable, Brackets("()" if is_open else "(]", (r"-\infty", bound.strip()))
    return variable, Brackets("()" if is_open else "[)", (bound.strip(), r"\infty"))


def read_assignment(text: str) -> tuple[str, str] | None:
    """Left and right side of `x = 5`, where the right side has no variable."""
    match = _ASSIGNMENT.fullmatch(text)
    if not match or not has_no_variable(match[2]):
        return None
    return match[1], match[2].strip()


def read_choice(text: str) -> str | None:
    """The letter of a multiple choice answer: `B`, `(B)`, `B.` or `B. 12 cm`, not `(A) or (B)`."""
    match = _CHOICE.fullmatch(text)
    if not match or _ANOTHER_CHOICE.search(match["rest"]):
        return None
    return match[1] or match[2]


def read_letters(text: str) -> tuple[str, ...] | None:
    """Sorted letters of `A, C` or `A and C`; None for letters run together, maybe a label."""
    return tuple(sorted(re.findall("[A-J]", text))) if _LETTERS.fullmatch(text) else None


def read_label(text: str) -> str | None:
    r"""The letters of a name such as `\angle ABC`, `AB` or `Sunday`; their order matters.

    Two small letters are no label, for `ab` may be a product; neither are words joined by `and`.
    """
    if _AND.search(text):
        return None
    bare = _GEOMETRY.sub("", text).translate(str.maketrans("", "", " {}'"))
    is_named = (
        _GEOMETRY.search(text) is not None or len(bare) > 2 or (len(bare) > 1 and bare.isupper())
    )
    return bare if is_named and bare.isalpha() and bare.isascii() else None


def has_no_variable(text: str) -> bool:
    r"""True where no letter stands outside a command: `4\sqrt{3}`, `25\pi`, `-3`."""
    return not any(char.isalpha() for char in _COMMAND.sub("", text))


def _is_less(relation: str) -> bool:
    return relation in ("<", r"\le")


def _value(parts: dict[str, str | None]) -> Fraction | None:
    value = Fraction(1)
    if mantissa := parts.get("mantissa"):
        value = Fraction(mantissa.replace(",", ""))
    if power := parts.get("power") or parts.get("bare_power"):
        if len(power) > 4 or abs(int(power)) > _MAX_POWER:
            return None
        value *= Fraction(10) ** int(power)
    if (top := parts.get("top")) and (bottom := parts.get("bottom")):
        divisor = Fraction(bottom.replace(",", ""))
        if not divisor:
            return None
        value = int(parts.get("whole") or 0) + Fraction(top.replace(",", "")) / divisor
    return -value if parts["sign"] == "-" else value
