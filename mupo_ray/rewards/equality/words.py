r"""Answers made of letters that are no algebra: choices, labels, words."""

from __future__ import annotations

import re

from mupo_ray.rewards.equality.notation import AND
from mupo_ray.rewards.equality.spelling import is_word

_CHOICE = re.compile(r"(?:\(([A-J])\)|([A-J])(?![^.:)]))[.:)]?(?P<rest>.*)", re.DOTALL)
_ANOTHER_CHOICE = re.compile(r"(?<![A-Za-z])[A-J](?![A-Za-z])")
_LETTERS = re.compile(r"\(?[A-J]\)?(?:(?: ?[,;&] ?| and | )\(?[A-J]\)?)+")
_GEOMETRY = re.compile(
    r"\\(?:angle|triangle|overline|overrightarrow|overleftrightarrow|widehat|odot)(?![a-z])"
)
_LABEL_NOISE = str.maketrans("", "", " {}'")
# Outside these a text is a formula, a list or something else that words say nothing about.
_TEXT = re.compile(r"[^\W_]+(?:[ .!?'\":-]+[^\W_]+)*[ .!?'\":-]*")
_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_ARTICLES = frozenset({"a", "an", "the"})
_FUNCTIONS = frozenset(
    ("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan")
    + ("log", "ln", "lg", "exp", "max", "min", "lim", "det", "mod", "gcd", "lcm")
)
_CLOSED = frozenset({"yes", "no", "true", "false", "none", "correct", "incorrect"})


def read_choice(text: str) -> str | None:
    """The letter of a multiple choice answer: `B`, `(B)`, `B.` or `B. 12 cm`, not `(A) or (B)`."""
    match = _CHOICE.fullmatch(text)
    if not match or _ANOTHER_CHOICE.search(match["rest"]):
        return None
    return match[1] or match[2]


def read_letters(text: str) -> tuple[str, ...] | None:
    """Sorted letters of `A, C` or `(A) and (C)`; None for letters run together, maybe a label."""
    return tuple(sorted(re.findall("[A-J]", text))) if _LETTERS.fullmatch(text) else None


def read_label(text: str) -> str | None:
    r"""The letters of a name such as `\angle ABC`, `AB` or `Sunday`; their order matters.

    Two small letters are no label, for `ab` may be a product; neither are words joined by `and`.
    """
    if AND.search(text):
        return None
    bare = _GEOMETRY.sub("", text).translate(_LABEL_NOISE)
    is_named = (
        _GEOMETRY.search(text) is not None or len(bare) > 2 or (len(bare) > 1 and bare.isupper())
    )
    return bare if is_named and bare.isalpha() and bare.isascii() else None


def read_words(text: str) -> tuple[str, ...] | None:
    """Words of a text answer in small letters, without articles; None for formulas and lists.

    At least one word must be longer than a name of variables: `ab` and `2 x` are algebra.
    """
    if AND.search(text) or not _TEXT.fullmatch(text.strip("\"' ")):
        return None
    words = [word.casefold() for word in _TOKEN.findall(text)]
    if not _FUNCTIONS.isdisjoint(words) or not any(_is_plain_word(word) for word in words):
        return None
    if any(not word.isdecimal() and any(map(str.isdecimal, word)) for word in words):
        return None
    return tuple(word for word in words if word not in _ARTICLES) or None


def is_open_answer(gold: str) -> bool:
    """Whether a normalised gold is free text, which can be said in other words.

    Yes and no, labels of points and single letters are not.
    """
    words = [word for part in re.split("[,;]", AND.sub(",", gold)) for word in _TOKEN.findall(part)]
    return (
        bool(words)
        and not any(char in gold for char in "\\^_=<>+*/|[]{}")
        and any(_is_plain_word(word.casefold()) and is_word(word) for word in words)
        and not (len(words) == 1 and words[0].casefold() in _CLOSED)
    )


def _is_plain_word(word: str) -> bool:
    return word.replace("'", "").isalpha() and (len(word) > 2 or not word.isascii())
