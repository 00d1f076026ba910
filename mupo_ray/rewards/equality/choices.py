r"""Multiple choice where the options are known: by letter, letter with text, or option text.

An answer picks letters, and so does the gold; the two sets must be the same:

- `B`, `(b)`, `Option B`, `B. 12 cm` and `12 cm` pick B where B is "12 cm";
- `A, C`, `A and C`, `AC` and the texts of both pick A and C; `A or C` picks nothing;
- a letter with the text of another option contradicts itself and picks nothing;
- a text that fits two options alike picks nothing, unless it is one of them by the letter;
- a lone letter is a letter first, even where it is the text of an option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from mupo_ray.rewards.equality.notation import read_brackets, split_top_level
from mupo_ray.rewards.equality.spelling import key, normalise
from mupo_ray.types import Reason

Options = tuple[tuple[str, str], ...]
"""Letter and normalised text of each option, sorted; empty where there are none."""

Compare = Callable[[str, str], Reason]
"""Compares a normalised answer with a normalised text."""

_LEAD = re.compile(
    r"(?:the )?(?:correct )?(?:answer|option|choice)s?(?: is| are)? ?:? ?"
    r"|(?:\u7b54\u6848|\u9009\u9879|\u9009\u62e9|\u9009)(?:\u662f|\u4e3a)? ?:? ?",
    re.IGNORECASE,
)
_LONE = re.compile(r"\(?([A-Za-z])\)?[.:)]?(?: ?\u9879)?")
_LETTER_AND_TEXT = re.compile(r"(?:\(([A-Za-z])\)[.:]?|([A-Za-z]) ?[.:)]| ?([A-Za-z]) ?[,-]) ?(.+)")
_LETTER_THEN_TEXT = re.compile(r"([A-Za-z]) (.+)")
_OR = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])|\u6216")


def check_options(value: object) -> dict[str, str]:
    """Options as a row may hold them.

    Args:
        value: a mapping of letters to texts, or the JSON text of one.

    Raises:
        ValueError: anything else; the message says what is wrong.
    """
    if isinstance(value, str):
        text = value
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f'options: got {text[:60]!r}, should be JSON like {{"A": "..."}}'
            ) from error
    if not isinstance(value, Mapping):
        raise ValueError(f'options: got {str(value)[:60]}, should read {{"A": "...", "B": "..."}}')
    for letter, text in value.items():
        if not isinstance(letter, str) or not re.fullmatch("[A-Za-z]", letter):
            raise ValueError(f"options: got {letter!r} as a letter, should be one of A to Z")
        if not isinstance(text, str):
            raise ValueError(f"options: got {text!r} for {letter}, should be text")
    return {letter.upper(): text for letter, text in value.items()}


def normalise_options(options: Mapping[str, str] | None) -> Options:
    """Options ready to compare with; a text's own letter in front (`B. 12 cm`) is taken off."""
    return _normalised(tuple(sorted((options or {}).items())))


@lru_cache(maxsize=1024)
def _normalised(options: tuple[tuple[str, str], ...]) -> Options:
    """The N responses to a prompt share its options."""
    return tuple(
        (letter, normalise(re.sub(rf"^\s*(?:\({letter}\)|{letter}[.:)])\s*", "", text)))
        for letter, text in options
    )


def compare_choices(answer: str, gold: str, options: Options, compare: Compare) -> Reason | None:
    """Decide by the letters that a normalised answer and gold pick.

    Returns:
        None where the gold picks none of the options: then they say nothing about it.
    """
    texts = dict(options)
    wanted = _picks(gold, texts, compare)
    if wanted is None:
        return None
    picked = _picks_by_letter(answer, texts, compare) or _picks_by_text(answer, texts)
    if picked is not None:
        is_twin = len(picked) == len(wanted) == 1 and (
            key(texts[picked[0]]) == key(texts[wanted[0]]) != ""
        )
        return Reason.RIGHT if picked == wanted or is_twin else Reason.WRONG
    if len(wanted) > 1 or _contradicts(answer, texts):
        return Reason.WRONG
    return _compare_text(answer, wanted[0], texts, compare)


def _compare_text(answer: str, wanted: str, texts: dict[str, str], compare: Compare) -> Reason:
    """Whether an answer that is no option by the letter equals the wanted one and no other."""
    if not texts[wanted]:
        return Reason.WRONG
    reason = compare(answer, texts[wanted])
    if reason is not Reason.RIGHT:
        return reason
    others = (text for letter, text in texts.items() if letter != wanted and text)
    is_ambiguous = any(compare(answer, text) is Reason.RIGHT for text in others)
    return Reason.WRONG if is_ambiguous else Reason.RIGHT


def _picks(gold: str, texts: dict[str, str], compare: Compare) -> tuple[str, ...] | None:
    picked = _picks_by_letter(gold, texts, compare) or _picks_by_text(gold, texts)
    if picked is not None or _contradicts(gold, texts):
        return picked
    same = [letter for letter, text in texts.items() if text and _is_right(compare, gold, text)]
    return (same[0],) if len(same) == 1 else None


def _picks_by_letter(text: str, texts: dict[str, str], compare: Compare) -> tuple[str, ...] | None:
    """Sorted letters of `B`, `(b)`, `B. 12 cm`, `A, C`, `A and C` or `AC`."""
    lone = _lone(text, texts)
    if lone is not None:
        return (lone,)
    if _by_text(text, texts):
        return None
    bare = _LEAD.sub("", text, count=1) if _LEAD.match(text) else text
    if (letter := _lone(bare, texts) or _letter_with_text(bare, texts, compare)) is not None:
        return (letter,)
    is_run = re.fullmatch("[A-Z]{2,}", bare) and list(bare) == sorted(set(bare))
    if is_run and set(bare) <= set(texts):
        return tuple(bare)
    if _OR.search(bare):
        return None
    items = _items(bare)
    if len(items) == 1 and re.fullmatch("[A-Z](?: [A-Z])+", bare):
        items = tuple(bare.split())
    if len(items) < 2:
        return None
    picked = [_lone(item, texts) or _letter_with_text(item, texts, compare) for item in items]
    return _distinct(picked)


def _picks_by_text(text: str, texts: dict[str, str]) -> tuple[str, ...] | None:
    """Letters of the options that a text is, or that its items are, by the letter."""
    if letters := _by_text(text, texts):
        return (letters[0],)
    items = _items(text)
    if len(items) < 2 or _OR.search(text):
        return None
    return _distinct([next(iter(_by_text(item, texts)), None) for item in items])


def _letter_with_text(text: str, texts: dict[str, str], compare: Compare) -> str | None:
    """The letter of `B. 12 cm`, where what follows is not the text of another option."""
    if match := _LETTER_AND_TEXT.fullmatch(text):
        letter, rest = str(match[1] or match[2] or match[3]).upper(), match[4].strip()
        is_loose = match[3] is None
    elif match := _LETTER_THEN_TEXT.fullmatch(text):
        letter, rest, is_loose = match[1].upper(), match[2].strip(), False
    else:
        return None
    if letter not in texts:
        return None
    if key(rest) == key(texts[letter]) or _is_right(compare, rest, texts[letter]):
        return letter
    if not is_loose or _names_another(rest, letter, texts):
        return None
    others = [text for other, text in texts.items() if other != letter and text]
    return None if any(_is_right(compare, rest, other) for other in others) else letter


def _contradicts(text: str, texts: dict[str, str]) -> bool:
    """Whether a text starts like a letter with its text, though it is none that counts."""
    match = _LETTER_AND_TEXT.fullmatch(text)
    return match is not None and str(match[1] or match[2] or match[3]).upper() in texts


def _names_another(rest: str, letter: str, texts: dict[str, str]) -> bool:
    named = re.findall(r"(?<![A-Za-z\\])[A-Z](?![A-Za-z])", rest)
    return any(other in texts and other != letter for other in named)


def _lone(text: str, texts: dict[str, str]) -> str | None:
    match = _LONE.fullmatch(text)
    if not match:
        return None
    # A small letter may be a variable, and so may be an option's text.
    if match[1].islower() and _by_text(text, texts):
        return None
    letter = match[1].upper()
    return letter if letter in texts else None


def _by_text(text: str, texts: dict[str, str]) -> list[str]:
    """Letters of the options whose text this is."""
    wanted = key(text)
    return [letter for letter, option in texts.items() if option and key(option) == wanted]


def _items(text: str) -> tuple[str, ...]:
    brackets = read_brackets(text)
    items = brackets.items if brackets is not None else split_top_level(text)
    return items or (text,)


def _distinct(picked: list[str | None]) -> tuple[str, ...] | None:
    letters = [letter for letter in picked if letter is not None]
    if len(letters) < len(picked) or len(set(letters)) < len(letters):
        return None
    return tuple(sorted(letters))


def _is_right(compare: Compare, answer: str, text: str) -> bool:
    return bool(text) and compare(answer, text) is Reason.RIGHT
