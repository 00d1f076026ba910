"""Numbers and tables as text, for a terminal and for Markdown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def number(value: float | None, form: str = ".3f") -> str:
    """A number in a format; `-` where there is none, or none that is finite."""
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def short(text: str, most: int) -> str:
    """A text on one line of at most `most` characters; `...` stands for what is cut."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def first_line(err: BaseException) -> str:
    """The first line of what an error says; its kind where it says nothing."""
    return (str(err).strip().splitlines() or [type(err).__name__])[0]


def table(rows: Sequence[Sequence[str]], *, indent: str = "", least: int = 0) -> str:
    """Rows of cells as lines for a terminal; the first column stands left, the others right.

    Args:
        rows: as many cells in each; a head is the first of them.
        indent: before every line.
        least: characters that every column but the first is wide at least.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        (
            indent
            + "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(max(width, least))
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        ).rstrip()
        for row in rows
    )


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; a `|` in a cell is no border."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
