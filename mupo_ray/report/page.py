"""The page of a report: templates of this room, filled with escaped text, in one file.

    cells, plots, responses -> fill  a section's HTML          templates/run, templates/eval
            (id, heading, HTML) -> page  the document              templates/page.html

Templates escape every string that is not `Markup`. Style and script lie beside them and become part
of the page, which needs nothing from outside.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jinja2
from markupsafe import Markup

from mupo_ray.files import write_text
from mupo_ray.report.svg import colour, dashes
from mupo_ray.text import number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Row = Sequence["Cell | str"]

_FOLDER = Path(__file__).parent / "templates"
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_FOLDER),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of a table that holds more than plain text."""

    text: str
    small: str = ""
    """Below the text."""
    kind: Literal["", "up", "down", "total"] = ""
    """Better, worse, or a sum of the rows above."""
    bar: tuple[float, str] | None = None
    """Share that a bar below is filled, and its colour's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedResponse:
    """One response as a person reads it: verdict, text, and notes in small print."""

    text: str
    reason: str
    """Of its verdict."""
    is_right: bool
    extracted: str | None
    """The answer found in it."""
    notes: Sequence[str]
    times: int = 1
    """How many responses are like this one."""
    anchor: str = ""
    """Id of the list's item; empty for none."""


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
    script = _file("page.js") if has_maps else ""
    return fill(
        "page.html",
        title=title,
        intro=Markup(intro),
        legend=Markup(legend),
        sections=[(name, heading, Markup(content)) for name, heading, content in sections],
        style=_file("style.css"),
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def fill(template: str, **values: Any) -> Markup:
    """HTML of a template; every string among the values is escaped."""
    return Markup(_TEMPLATES.get_template(template).render(values))


def save_page(path: Path, text: str) -> Path:
    """Write a page, whole or not at all; folders are made."""
    write_text(path, text)
    return path


def legend(names: Sequence[str]) -> Markup:
    """Which line of the plots is whose; stays in view."""
    lines = [(colour(i), dashes(i), name) for i, name in enumerate(names)]
    return fill("legend.html", lines=lines)


def figure(heading: str, svg: str, caption: str) -> str:
    """A plot with its heading and a caption that says what the axes are (plain text, both)."""
    return str(_piece("figure")(heading, Markup(svg), caption))


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, words: bool = False
) -> str:
    """A table that scrolls sideways on a narrow screen, for pages that make their own HTML.

    Args:
        head: plain text of the header cells.
        rows: HTML of the cells; the first of each row is its header.
        caption: plain text for readers who cannot see it.
        words: cells are text, not numbers.
    """
    cells = [[Markup(cell) for cell in row] for row in rows]
    return str(_piece("table")(head, cells, caption, words))


def cell(
    value: float | None,
    interval: tuple[float | None, float | None] | None = None,
    form: str = ".3f",
) -> Cell:
    """A number with its interval below it; a dash where there is none."""
    small = ""
    if value is not None and interval is not None and None not in interval:
        small = Markup("{}&ndash;{}").format(*(number(end, form) for end in interval))
    return Cell(text=number(value, form), small=small)


def breakable(name: str) -> Markup:
    """A name that a narrow column may break after its underscores."""
    return Markup("_<wbr>").join(name.split("_"))


def clipped(text: str, limit: int) -> str:
    """A text, cut at a number of characters, which it then says."""
    rest = len(text) - limit
    return text if rest <= 0 else f"{text[:limit]} ... ({rest} characters more)"


def _piece(name: str) -> Callable[..., Markup]:
    macro: Callable[..., Markup] = getattr(_TEMPLATES.get_template("pieces.html").module, name)
    return macro


def _file(name: str) -> Markup:
    return Markup((_FOLDER / name).read_text(encoding="utf-8"))


_TEMPLATES.filters |= {"number": number, "clipped": clipped}
