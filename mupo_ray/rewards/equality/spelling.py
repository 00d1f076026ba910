r"""One spelling for the many ways to write the same answer; no algebra, microseconds each.

`normalise` brings LaTeX, full-width and plain spellings together, for the readers in `notation.py`,
`regions.py`, `words.py` and `units.py`. Callers bound the length of what they pass
(`compare.MAX_CHARS`).
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

_VULGAR = "\u00bc\u00bd\u00be" + "".join(map(chr, range(0x2150, 0x215F)))
_FRACTIONS = {
    char: r"\frac{"
    + str(Fraction(unicodedata.numeric(char)).limit_denominator(10)).replace("/", "}{")
    + "}"
    for char in _VULGAR
}
_CHARACTERS = str.maketrans(
    {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width ASCII
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")
    | _FRACTIONS
    | {
        "\u3000": " ",
        "\u3001": ",",
        "\u3002": ".",
        "\u3010": "[",
        "\u3011": "]",
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u00d7": r"\times ",
        "\u00b7": r"\cdot ",
        "\u22c5": r"\cdot ",
        "\u00f7": "/",
        "\u2044": "/",
        "\u00b1": r"\pm ",
        "\u00b0": r"^\circ ",
        "\u2103": r"^\circ C",
        "\u2109": r"^\circ F",
        "\u03c0": r"\pi ",
        "\u03b8": r"\theta ",
        "\u221e": r"\infty ",
        "\u221a": r"\sqrt ",
        "\u221b": r"\sqrt[3] ",
        "\u2248": r"\approx ",
        "\u2260": r"\ne ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u2208": r"\in ",
        "\u222a": r"\cup ",
        "\u2205": r"\emptyset ",
        "\u211d": r"\mathbb{R}",
        "\u2220": r"\angle ",
        "\u25b3": r"\triangle ",
    }
)
_SUPERSCRIPT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_SUPERSCRIPTS = str.maketrans(
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b", "0123456789+-"
)
_WRAPPER = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt)?|math(?:rm|bf|it|sf)|mbox|operatorname|boldsymbol|bm)\*? ?"
    r"\{([^{}]*)\}"
)
_END = r"(?![A-Za-z])"
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"\\!|\\(?:displaystyle|left|right|[bB]igg?[lrm]?){_END}", ""),
        (r"\{,\}", ","),
        (rf"(?<!\\)\\[,;:> ()\[\]]|~|\\q?quad{_END}", " "),
        (rf"\\lbrace{_END}", r"\\{"),
        (rf"\\rbrace{_END}", r"\\}"),
        (rf"\\langle{_END}", "("),
        (rf"\\rangle{_END}", ")"),
        (r"\\[dtc]frac", r"\\frac"),
        (rf"\{{ ?([^{{}}]+?) ?\\over{_END} ?([^{{}}]+?) ?\}}", r"\\frac{\1}{\2}"),
        (rf"\\leq?(?:slant)?{_END}", r"\\le "),
        (rf"\\geq?(?:slant)?{_END}", r"\\ge "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (rf"\\lt{_END}", "<"),
        (rf"\\gt{_END}", ">"),
        (rf"\\neq?{_END}|\\not ?=|!=", r"\\ne "),
        (r"\\varnothing|\\\{ ?\\\}|^\{ ?\}$", r"\\emptyset "),
        (rf"\\mathbb ?R{_END}", r"\\mathbb{R}"),
        (rf"(?<![A-Za-z\\])(?:infinity|infty|inf|oo){_END}", r"\\infty "),
        (r"\\([%$])", r"\1"),
        (rf"(?<=\d) ?per ?cent{_END}", "%"),
        (r"\^ ?\{ ?\\circ ?\}", r"^\\circ"),
        (rf"\\degree{_END}", r"^\\circ"),
        (rf"\^ ?\\circ ?([CF]){_END}", r"^\\circ\1"),
        (rf"(?<![A-Za-z\\])pi{_END}", r"\\pi "),
        (r"(?<![A-Za-z\\])sqrt(?=[ ({])", r"\\sqrt"),
        (r"\\sqrt ?(\[\d\])? ?\(([^()]*)\)", r"\\sqrt\1{\2}"),
        # All the digits: that is what whoever leaves out the braces means, whatever TeX would do.
        (r"\\sqrt ?(\[\d\])? ?(\d+)", r"\\sqrt\1{\2}"),
        (r"\\frac ?(\d) ?(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac ?(\d) ?\{", r"\\frac{\1}{"),
        (r"\\frac ?(\{[^{}]*\}) ?(\d)", r"\\frac\1{\2}"),
        (r"(?<=\d) ?[xX] ?(?=10 ?\^)", r"\\times "),
        (r"\s+", " "),
    )
)
_COMMAND = re.compile(r"\\(?:begin|end) ?\{[a-zA-Z]+\}|\\[A-Za-z]+")
_COMMAND_OR_CAPITAL = re.compile(rf"{_COMMAND.pattern}|[A-Z]")
_MATH = r"\$+ ?[^$]+\$+"
_MATH_DOLLARS = re.compile(rf"{_MATH}(?: ?(?:[,;]|,? ?and|,? ?or) ?{_MATH})*[.,]?")
_HEAD = re.compile(r"(?:=|\\approx(?![a-z])) ?")


@lru_cache(maxsize=4096)
def normalise(text: str) -> str:
    """Spell `text` in the one way that the readers expect; idempotent on what it returns."""
    if text.isascii() and text.isalnum():
        return r"\pi" if text == "pi" else text
    text = text.translate(_CHARACTERS).strip()
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match[0].translate(_SUPERSCRIPTS)}}}", text)
    unwrapped = _WRAPPER.sub(r" \1 ", text)
    while unwrapped != text:
        text, unwrapped = unwrapped, _WRAPPER.sub(r" \1 ", unwrapped)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip()
    if _MATH_DOLLARS.fullmatch(text):
        text = " ".join(text.replace("$", " ").split())
    text = _HEAD.sub("", text, count=1) if _HEAD.match(text) else text
    return text.rstrip(".").rstrip() if not text.endswith("..") else text


def key(text: str) -> str:
    """What two normalised texts share that differ in spacing, needless braces or case only.

    Case is dropped from words alone: `Yes` is `yes`, but `x` is not `X` and `AB` not `ab`.
    """
    # A space between digits stays: `1 1/4` is not `11/4`.
    text = re.sub(r"(?<!\d) | (?!\d)", "", text).removeprefix("+")
    text = re.sub(r"([\^_])\{(\w)\}", r"\1\2", text)
    return text.casefold() if is_word(text) else text


def is_word(text: str) -> bool:
    """Whether letters are a word, whose case says nothing, and not variables or points."""
    if not text.isalpha():
        return False
    if text.isupper():
        return len(text) > 3 or text in ("NO", "YES")
    return len(text) > 2 or text.casefold() == "no"


def separate_cases(*texts: str) -> tuple[str, ...]:
    """Texts in which no letter stands for two: math-verify takes `X` for `x`.

    A capital whose small letter occurs as well gets the name of a letter that occurs in none.
    """
    letters = {char for text in texts for char in _COMMAND.sub("", text) if char.isascii()}
    clashes = sorted(char for char in letters if char.isupper() and char.lower() in letters)
    if not clashes:
        return texts
    taken = {char.lower() for char in letters}
    free = [char for char in "abcfghjklmnopqrstuvwxyz" if char not in taken]
    names = dict(zip(clashes, free, strict=False))
    return tuple(
        _COMMAND_OR_CAPITAL.sub(lambda match: names.get(match[0], match[0]), text) for text in texts
    )
