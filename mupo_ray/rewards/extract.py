r"""What a response's text holds: the boxed answer, the reasoning span, the asked-for shape.

The policies, in one place:

- The answer is the last complete, brace-balanced `\boxed{...}` after the last `</think>`. Reasoning
  that never closes, a last box that never closes, an empty box and no box all mean no answer.
  Neighbouring boxes are not joined.
- The reasoning span is what gets embedded: the first `<think>...</think>` with its tags, else all
  before the first box, else the whole text (MUPO's released rollout worker).
- The shape is a full match of `<think>.*</think>.*\boxed{.*}.*` with white space around `<`, `>`
  and `/` ignored (MUPO's released reward).

White space inside tags is tolerated throughout: `< / think >` closes. All functions take time
linear in the length of the text: a policy can emit any text, and a backtracking pattern with four
`.*` takes minutes on an unlucky one.
"""

from __future__ import annotations

import re

_OPEN = re.compile(r"<\s*think\s*>")
_CLOSE = re.compile(r"<\s*/\s*think\s*>")
# A tag and the white space behind it fit into that.
_TAIL_CHARS = 64
_BOX = re.compile(r"\\boxed\s*(?:\{|\Z)")


def extract_answer(text: str) -> str | None:
    r"""The final boxed answer.

    Args:
        text: the whole response.

    Returns:
        What stands between the braces of the last box, stripped; None where there is no answer.
    """
    closes = list(_CLOSE.finditer(text))
    tail = text[closes[-1].end() :] if closes else text
    if _OPEN.search(tail):
        return None
    boxes = list(_BOX.finditer(tail))
    # A text cut right after `\boxed` has a last box that never closes.
    if not boxes or not boxes[-1].group().endswith("{"):
        return None
    start = boxes[-1].end()
    end = _closing_brace(tail, start)
    if end is None:
        return None
    return tail[start:end].strip() or None


def reasoning_span(text: str) -> str:
    r"""The part of a response whose embedding tells reasoning strategies apart.

    Args:
        text: the whole response.

    Returns:
        The first `<think>...</think>` including its tags; else all before the first `\boxed`; else
        the whole text. May be empty.
    """
    opening = _OPEN.search(text)
    if opening and (closing := _CLOSE.search(text, opening.end())):
        return text[opening.start() : closing.end()]
    before_box, _, _ = text.partition(r"\boxed")
    return before_box or text


def opens_think(prompt: str) -> bool:
    """Whether a rendered prompt ends with `<think>`, so that no response needs to open it.

    Args:
        prompt: with the chat template's own markup, or just its end.
    """
    tail = prompt[-_TAIL_CHARS:]
    openings = list(_OPEN.finditer(tail))
    return bool(openings) and not tail[openings[-1].end() :].strip()


def has_format(text: str) -> bool:
    """Whether a response has the asked-for shape; it must start with `<think>`.

    Args:
        text: the whole response.

    Returns:
        True exactly where the pattern in the module's description matches.
    """
    opening = _OPEN.match(text.lstrip())
    if not opening:
        return False
    body = text.lstrip()[opening.end() :]
    closing = _CLOSE.search(body)
    if not closing:
        return False
    box = body.find(r"\boxed{", closing.end())
    return box >= 0 and "}" in body[box:]


def _closing_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one opened just before `start`; escaped ones are text."""
    depth = 1
    index = start
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return index
        index += 1
    return None
