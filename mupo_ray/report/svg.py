"""How plots of a report look: inline SVG with the colours and font of the page around them."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import matplotlib
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

# Stand-ins that no plot would use for itself; in the SVG they become variables of the page's style,
# which follows the reader's light or dark scheme.
_INK, MUTED, _GRID = "#010101", "#010102", "#010103"
_VARIABLES = {_INK: "ink", MUTED: "muted", _GRID: "grid"}
_SERIES = [f"#0102{i:02x}" for i in range(6)]
STAGE_COLOURS = [f"#0103{i:02x}" for i in range(8)]
"""Of the stages of a step, from the bottom up."""
_VARIABLES |= {colour: f"s{i}" for i, colour in enumerate(_SERIES)}
_VARIABLES |= {colour: f"t{i}" for i, colour in enumerate(STAGE_COLOURS)}

# A run differs by dashes as well as by colour, for readers who cannot tell the colours apart.
_DASHES = ("", "6 2", "2 1.5", "7 2 1.5 2", "9 3", "4 1 1 1 1 1")

_SIZE = (4.0, 2.5)
WIDE = (9.0, 2.8)
"""Inches of a plot as wide as the page."""
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "figure.constrained_layout.use": True,
}


def dashes(series: int) -> str:
    """SVG `stroke-dasharray` of a run's lines; empty for an unbroken one."""
    return _DASHES[series % len(_DASHES)]


def colour(series: int) -> str:
    """Name of the page's colour variable of a run."""
    return f"s{series % len(_SERIES)}"


def series_colour(series: int) -> str:
    """What a plot draws a run in; the page's colour once it is rendered."""
    return _SERIES[series % len(_SERIES)]


def render(
    draw: Callable[[Axes], None],
    alt: str,
    x_label: str,
    y_label: str,
    size: tuple[float, float] = _SIZE,
) -> Markup:
    """One plot as part of a page.

    Args:
        draw: draws into the axes.
        alt: what a person who cannot see the plot should know.
        x_label: of the x axis, with its unit.
        y_label: of the y axis, with its unit.
        size: width and height in inches, at which text has its size.
    """
    # Ids of clip paths and markers are hashes with this salt: unlike ones for every figure of a
    # page, the same ones whenever the report is made again.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": alt}):
        figure = Figure(figsize=size)
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.margins(x=0.02)
        draw(axes)
        out = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return _inline(out.getvalue(), alt)


def _inline(svg: str, alt: str) -> Markup:
    """A file's SVG as part of a page: no prologue, no fixed size, colours by the page's names."""
    body = svg[svg.index("<svg") :]
    view_box = re.search(r'viewBox="[^"]*"', body)
    assert view_box is not None
    body = body[body.index(">") + 1 :]
    # matplotlib's style rule for `*` would reach the whole page.
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", body)
    body = re.sub(r"#0[0-9a-f]{5}\b", lambda m: f"var(--{_VARIABLES[m[0]]})", body)
    body = re.sub(r" font-family: [^;\"]*;", "", body)
    body = re.sub(r"\s*\n\s*", "\n", body)
    head = Markup('<svg {} role="img" aria-label="{}">').format(Markup(view_box[0]), alt)
    return head + Markup(body.strip())
