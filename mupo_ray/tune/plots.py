"""Plots of a sweep, with the look of the other reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from mupo_ray.report.svg import MUTED, WIDE, render, series_colour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

Point = tuple[float, float]
_BEST, _OTHER = 1, 0


def history(
    complete: Sequence[Point], pruned: Sequence[Point], *, maximize: bool, alt: str, y_label: str
) -> str:
    """Values against the trial's number, with the best so far.

    Args:
        complete: (trial, value).
        pruned: (trial, value at the last evaluation).
        maximize: whether more is better.
        alt: what a person who cannot see the plot should know.
        y_label: of the y axis.
    """

    def draw(axes: Axes) -> None:
        numbers, values = _columns(complete)
        best = np.maximum.accumulate(values) if maximize else np.minimum.accumulate(values)
        axes.step(numbers, best, where="post", color=series_colour(_BEST), linewidth=1.4)
        axes.plot(numbers, values, "o", color=series_colour(_OTHER), markersize=4.0)
        axes.plot(*_columns(pruned), "x", color=MUTED, markersize=4.0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))

    return render(draw, alt, "trial", y_label)


def courses(lines: Mapping[int, Sequence[Point]], best: int | None, *, alt: str, y: str) -> str:
    """Each trial's evaluations against its steps, the best trial on top."""

    def draw(axes: Axes) -> None:
        for number, points in sorted(lines.items(), key=lambda item: item[0] == best):
            is_best = number == best
            axes.plot(
                *_columns(points),
                color=series_colour(_BEST if is_best else _OTHER),
                alpha=1.0 if is_best else 0.5,
                linewidth=2.2 if is_best else 0.9,
                marker="o",
                markersize=2.5,
            )
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))

    return render(draw, alt, "finished steps", y)


def bars(shares: Mapping[str, float], *, alt: str, x_label: str) -> str:
    """Named shares, the largest on top."""

    def draw(axes: Axes) -> None:
        names = sorted(shares, key=lambda name: shares[name])
        axes.barh(names, [shares[n] for n in names], color=series_colour(_OTHER), height=0.6)
        axes.grid(visible=False, axis="y")

    return render(draw, alt, x_label, "")


def parallel(
    rows: Sequence[Sequence[float]],
    names: Sequence[str],
    ticks: Sequence[tuple[str, str]],
    best: int | None,
    *,
    alt: str,
) -> str:
    """A line for each trial across upright axes.

    Args:
        rows: a trial's places from 0 to 1 on each axis; NaN where it has no value.
        names: of the axes.
        ticks: what the lower and upper end of each axis mean.
        best: row that is drawn on top.
        alt: what a person who cannot see the plot should know.
    """

    def draw(axes: Axes) -> None:
        places = range(len(names))
        for place in places:
            axes.axvline(place, color=MUTED, linewidth=0.7)
        for number, row in sorted(enumerate(rows), key=lambda item: item[0] == best):
            is_best = number == best
            axes.plot(
                places,
                row,
                color=series_colour(_BEST if is_best else _OTHER),
                alpha=1.0 if is_best else 0.45,
                linewidth=2.2 if is_best else 1.0,
                marker="o",
                markersize=3.0 if is_best else 2.0,
            )
        axes.set_ylim(-0.05, 1.05)
        axes.set_yticks([])
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.grid(visible=False)
        labels = [
            f"{high}\n\n{name}\n{low}" for name, (low, high) in zip(names, ticks, strict=True)
        ]
        axes.set_xticks(list(places), [text.partition("\n\n")[2] for text in labels], fontsize=7)
        for place, text in zip(places, labels, strict=True):
            axes.annotate(
                text.partition("\n\n")[0], (place, 1.05), ha="center", va="bottom", fontsize=7
            )

    return render(draw, alt, "", "", WIDE)


def scatter(
    points: Sequence[Point],
    best: Sequence[Point],
    *,
    alt: str,
    x_label: str,
    y_label: str,
    log: bool = False,
    whole: bool = False,
    choices: Sequence[str] = (),
    joined: bool = False,
) -> str:
    """Points, some of which stand out.

    Args:
        points: all of them.
        best: those that stand out.
        alt: what a person who cannot see the plot should know.
        x_label: of the x axis.
        y_label: of the y axis.
        log: logarithmic x axis.
        whole: x is a whole number.
        choices: names of the places 0, 1, ... on the x axis.
        joined: a line through those that stand out.
    """

    def draw(axes: Axes) -> None:
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        elif whole:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
        axes.plot(*_columns(points), "o", color=series_colour(_OTHER), markersize=4.0, alpha=0.8)
        line = "-" if joined else ""
        ordered = sorted(best)
        axes.plot(*_columns(ordered), f"D{line}", color=series_colour(_BEST), markersize=5.0)
        axes.margins(x=0.08)
        if choices:
            axes.set_xticks(range(len(choices)), choices)

    return render(draw, alt, x_label, y_label)


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
