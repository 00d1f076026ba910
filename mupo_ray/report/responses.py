"""One response as a person reads it: verdict, text (folded where it is long), and notes."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_TEXT = 3000
"""Characters of a response that a page holds; it says how many more there were."""

# A text beyond this opens with its beginning, and the whole on request.
_FOLD = 600


def ask_html(pictures: str, question: str, facts: str) -> str:
    """The head of a cohort: what was asked.

    Args:
        pictures: HTML of the question's pictures.
        question: text of the row.
        facts: HTML of the lines below the question.
    """
    asked = html.escape(question.replace("<image>", "").strip())
    return f'<div class="ask">{pictures}<div><p class="question">{asked}</p>{facts}</div></div>'


def response_html(
    text: str,
    reason: str,
    notes: Sequence[str],
    *,
    is_right: bool,
    anchor: str = "",
) -> str:
    """A list item.

    Args:
        text: the response.
        reason: of its verdict.
        notes: HTML of the small print below the text.
        is_right: colours the verdict.
        anchor: id of the item; empty for none.
    """
    name = f' id="{anchor}"' if anchor else ""
    verdict = html.escape(reason.replace("_", " "))
    return (
        f'<li{name} class="{"right" if is_right else "wrong"}"><b class="verdict">{verdict}</b>'
        f'<div>{_text(text.strip())}<p class="notes">{" &middot; ".join(notes)}</p></div></li>'
    )


def answer_note(extracted: str) -> str:
    """Note that says which answer was found in a response."""
    return f"answer {html.escape(extracted[:80])}"


def clipped(text: str, limit: int = MAX_TEXT) -> str:
    """HTML of a text, cut at a number of characters, which it then says."""
    rest = len(text) - limit
    return html.escape(text if rest <= 0 else f"{text[:limit]} ... ({rest} characters more)")


def _text(text: str) -> str:
    if len(text) <= _FOLD:
        return f'<p class="text">{html.escape(text) or "(empty)"}</p>'
    return (
        f'<details class="long"><summary class="text">{html.escape(text[: _FOLD // 2])} ...'
        f'</summary><p class="text">{clipped(text)}</p></details>'
    )
