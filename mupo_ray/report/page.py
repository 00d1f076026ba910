"""The page of a report: its style, which needs nothing from outside the file, and small pieces."""

from __future__ import annotations

import base64
import hashlib
import html
import os
from typing import TYPE_CHECKING

from mupo_ray.report.style import CSS, SCRIPT
from mupo_ray.report.svg import colour, dashes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Nothing is fetched, and no script runs but the page's own, whatever a response's text may hold.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)


def page(
    title: str,
    intro: str,
    legend: str,
    sections: Sequence[tuple[str, str, str]],
    *,
    has_maps: bool = False,
) -> str:
    """The whole document.

    Args:
        title: plain text.
        intro: HTML below the title.
        legend: HTML that stays in view.
        sections: id, heading (plain text) and HTML of each.
        has_maps: adds the script of the maps; any other page has none.
    """
    links = " ".join(f'<a href="#{name}">{html.escape(head)}</a>' for name, head, _ in sections)
    body = "".join(
        f'<section id="{name}"><h2>{html.escape(head)}</h2>{content}</section>'
        for name, head, content in sections
    )
    policy, script = _POLICY, ""
    if has_maps:
        digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        script = f"<script>{SCRIPT}</script>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html.escape(title)}</title><style>{CSS}</style></head>\n"
        f"<body><header><h1>{html.escape(title)}</h1>{intro}"
        f'<nav aria-label="Sections">{links}</nav></header>\n{legend}\n<main>{body}'
        "<footer>Made by mupo_ray from the files of the runs; this page needs no network."
        f"</footer></main>{script}</body></html>\n"
    )


def save_page(path: Path, text: str) -> Path:
    """Write a page, whole or not at all; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
    return path


def legend(names: Sequence[str]) -> str:
    """Which line of the plots is whose; stays in view."""
    items = "".join(
        f'<li><svg viewBox="0 0 34 10" aria-hidden="true"><line x1="1" y1="5" x2="33" y2="5" '
        f'style="stroke: var(--{colour(i)}); stroke-width: 2.6" '
        f'stroke-dasharray="{dashes(i)}"/></svg>{html.escape(name)}</li>'
        for i, name in enumerate(names)
    )
    return f'<div class="legend"><ul aria-label="Lines of the plots">{items}</ul></div>'


def figure(heading: str, svg: str, caption: str) -> str:
    """A plot with its heading and a caption that says what the axes are (plain text, both)."""
    return (
        f"<figure><h3>{html.escape(heading)}</h3>{svg}"
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, words: bool = False
) -> str:
    """A table that scrolls sideways on a narrow screen.

    Args:
        head: plain text of the header cells.
        rows: HTML of the cells; the first of each row is its header.
        caption: plain text for readers who cannot see it.
        words: cells are text, not numbers.
    """
    cells = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    kind = ' class="words"' if words else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}">'
        f"<table{kind}><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
    )
