"""The options of a multiple-choice question, however a data set writes them down."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mupo_ray.data.table import DropReason, RowError
from mupo_ray.prepare.source_text import literal

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Where an option begins in `A. 200;B. 32` or on a line of its own.
_LABEL = re.compile(r"(?:^|[;\n])\s*\(?([A-Z])\s*[.):\u3001\uff1a\uff0e\uff09]\s*")


def parse_options(cell: Any) -> dict[str, Any]:
    """Letter -> option, in order.

    Args:
        cell: an object by letter, an object of `label` and `text`, a list, or text: one of these as
            JSON or Python writes it, or options that begin with `A.`, `B.`, ... and end in
            semicolons or line ends.

    Raises:
        RowError: none of these, other labels than letters, or more options than letters.
    """
    found = {letter.strip().upper(): option for letter, option in _parse(cell).items()}
    if any(len(letter) != 1 or letter not in _LETTERS for letter in found):
        raise _error("have other labels than the letters A to Z", cell)
    return found


def shows_options(question: str, options: Mapping[str, str]) -> bool:
    """Whether a question names each of its options itself, as `A.`, `(A)` or `A:`."""
    return all(
        re.search(rf"(?<![A-Za-z0-9]){re.escape(letter)}\s*[.):\u3001\uff1a\uff0e\uff09]", question)
        for letter in options
    )


def _parse(cell: Any) -> dict[str, Any]:
    if cell is None or cell == "":
        return {}
    if isinstance(cell, str):
        found = literal(cell)
        return _labelled(cell) if found is None else _parse(found)
    if isinstance(cell, dict):
        if isinstance(cell.get("label"), list) and isinstance(cell.get("text"), list):
            return dict(zip(map(str, cell["label"]), cell["text"], strict=False))
        return {str(letter): option for letter, option in cell.items() if option is not None}
    if not isinstance(cell, list):
        raise _error(f"are a {type(cell).__name__}", cell)
    if len(cell) > len(_LETTERS):
        raise _error(f"are {len(cell)}, more than there are letters", cell)
    return dict(zip(_LETTERS, _unlabelled(cell), strict=False))


def _labelled(text: str) -> dict[str, Any]:
    pieces = _LABEL.split(text)
    letters, options = pieces[1::2], pieces[2::2]
    if pieces[0].strip() or len(letters) < 2 or letters != list(_LETTERS[: len(letters)]):
        raise _error("cannot be told apart", text)
    return {
        letter: option.strip().rstrip(";").rstrip()
        for letter, option in zip(letters, options, strict=True)
    }


def _unlabelled(options: list[Any]) -> list[Any]:
    """Options without their own letters, where all of them begin with theirs."""
    cut = []
    for letter, option in zip(_LETTERS, options, strict=False):
        label = _LABEL.match(option) if isinstance(option, str) else None
        if label is None or label[1] != letter:
            return options
        cut.append(option[label.end() :])
    return cut


def _error(what: str, cell: Any) -> RowError:
    return RowError(
        DropReason.BAD_OPTIONS,
        f"options {what}; expected a list, an object by letter or text such as 'A. 3;B. 5', got "
        f"{str(cell)[:100]!r}",
    )
