"""The kinds of plot that a report has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator, ScalarFormatter

from mupo_ray.report.svg import MUTED, STAGE_COLOURS, dashes, render, series_colour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes

# More points than this cannot be told apart at the size shown, and make the file large.
_MAX_POINTS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One run's curve."""

    series: int
    """Number of the run: its colour and dashes."""
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Lower and upper end of each point's interval."""


class Plot(NamedTuple):
    """A plot with what stands around it."""

    heading: str
    svg: Markup
    caption: str
    """Says what the axes are."""


def window_of(num_points: int) -> int:
    """Steps that the thick line of a noisy metric averages over: odd, about a twelfth of all."""
    return min(2 * (num_points // 24) + 1, 51)


def smooth(values: Sequence[float]) -> np.ndarray:
    """Centred running mean over `window_of` points; fewer at the ends, always the same on both."""
    half = window_of(len(values)) // 2
    total = np.concatenate([[0.0], np.cumsum(np.asarray(values, float))])
    place = np.arange(len(values))
    reach = np.minimum(np.minimum(place, len(values) - 1 - place), half)
    mean: np.ndarray = (total[place + reach + 1] - total[place - reach]) / (2 * reach + 1)
    return mean


def curves(
    lines: Sequence[Line],
    *,
    alt: str,
    x_label: str,
    y_label: str,
    limits: Sequence[float] = (),
) -> Markup:
    """Lines with a marker at each point: metrics measured now and then.

    Args:
        lines: one a run.
        alt: what a person who cannot see the plot should know.
        x_label: of the x axis, with its unit.
        y_label: of the y axis, with its unit.
        limits: heights of grey lines across the plot.
    """

    def draw(axes: Axes) -> None:
        for limit in limits:
            axes.axhline(limit, color=MUTED, linewidth=1.2)
        for line in lines:
            _draw(axes, line, marker="o", markersize=3.0)
        _whole_steps(axes)

    return render(draw, alt, x_label, y_label)


def noisy_curves(
    lines: Sequence[Line], *, alt: str, x_label: str, y_label: str, log: bool = False
) -> Markup:
    """Each point thin and pale, a running mean thick: metrics measured at each step.

    Args:
        lines: one a run.
        alt: as `curves`.
        x_label: as `curves`.
        y_label: as `curves`.
        log: logarithmic y axis, without the values that have no place on it.
    """

    def draw(axes: Axes) -> None:
        if log:
            axes.set_yscale("log")
            axes.set_autoscaley_on(False)
        heights: list[float] = []
        for line in lines:
            drawn = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y > 0 or not log]
            y = [y for _, y in drawn]
            heights += y
            x, points, mean = (_thin(v) for v in ([x for x, _ in drawn], y, smooth(y)))
            _draw(axes, Line(series=line.series, x=x, y=points), linewidth=0.7, alpha=0.4)
            _draw(axes, Line(series=line.series, x=x, y=mean))
        if log and heights:
            # Matplotlib's own choice gives a constant a range without width.
            axes.set_ylim(min(heights) / 1.5, max(heights) * 1.5)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        _whole_steps(axes)

    return render(draw, alt, x_label, y_label)


def sample_curves(
    lines: Sequence[Line], *, limits: tuple[float, float], alt: str, y_label: str
) -> Markup:
    """A measure against k with its band, k doubling along the axis.

    Args:
        lines: one a model; x is k.
        limits: of the y axis, so that several plots compare.
        alt: as `curves`.
        y_label: as `curves`.
    """

    def draw(axes: Axes) -> None:
        for line in lines:
            if line.band is not None:
                shade = series_colour(line.series)
                axes.fill_between(line.x, *line.band, color=shade, alpha=0.16, linewidth=0.0)
        for line in lines:
            doubling = [i for i, k in enumerate(line.x) if int(k) & (int(k) - 1) == 0]
            _draw(axes, line, marker="o", markersize=3.0, markevery=doubling)
        axes.set_ylim(*limits)
        most = max(int(max(line.x)) for line in lines)
        _doubling_axis(axes, [1 << i for i in range(most.bit_length())])

    return render(draw, alt, "k, samples drawn for a question", y_label)


def span_plot(lines: Sequence[Line], *, alt: str, x_label: str, y_label: str) -> Markup:
    """For each model an upright line between two values, at its place on the x axis.

    Args:
        lines: one a model; x is twice its place, y the two values, and `band` the ends of the
            interval of its place.
        alt: as `curves`.
        x_label: as `curves`.
        y_label: as `curves`.
    """

    def draw(axes: Axes) -> None:
        axes.set_ylim(0.0, 1.02)
        for line in lines:
            shade = series_colour(line.series)
            _draw(axes, line, linewidth=2.4)
            axes.plot(line.x[0], line.y[0], "_", color=shade, markersize=9.0)
            axes.plot(line.x[1], line.y[1], "o", color=shade, markersize=6.0)
            if line.band is not None:
                for y in line.y:
                    ends = [line.band[0][0], line.band[1][0]]
                    axes.plot(ends, [y, y], color=shade, linewidth=0.8, alpha=0.6)
        most = max(ends for line in lines for ends in (line.band or (line.x, line.x))[1])
        axes.set_xlim(0.0, 1.15 * max(most, 0.01))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))

    return render(draw, alt, x_label, y_label)


def pass_curves(
    start: Sequence[Mapping[int, float]], lines: Sequence[Line], *, alt: str, y_label: str
) -> Markup:
    """pass@k against k: grey where training started, coloured at the end.

    Args:
        start: k -> pass@k of each base model.
        lines: one a run; x is k.
        alt: as `curves`.
        y_label: as `curves`.
    """

    def draw(axes: Axes) -> None:
        for figures in start:
            ks, values = list(figures), list(figures.values())
            axes.plot(ks, values, color=MUTED, marker="o", markersize=3.0, linewidth=1.2)
        for line in lines:
            _draw(axes, line, marker="o", markersize=3.0)
        ticks = {k for line in lines for k in line.x} | {k for f in start for k in f}
        _doubling_axis(axes, sorted(ticks))

    return render(draw, alt, "k, samples drawn for a question", y_label)


def stacked(
    steps: Sequence[float], stages: Sequence[Sequence[float]], *, top: float, alt: str
) -> Markup:
    """Seconds of each stage on top of each other, over steps.

    Args:
        steps: [S] of the x axis.
        stages: [S] seconds of each stage, from the bottom up.
        top: end of the y axis in seconds.
        alt: as `curves`.
    """

    def draw(axes: Axes) -> None:
        colours = STAGE_COLOURS[: len(stages)]
        layers = [_thin(stage) for stage in stages]
        axes.stackplot(_thin(steps), *layers, colors=colours, linewidth=0.0)
        axes.set_ylim(0.0, top)
        _whole_steps(axes)

    return render(draw, alt, "finished steps", "seconds")


def _draw(axes: Axes, line: Line, **style: Any) -> None:
    pattern = dashes(line.series)
    style.setdefault("linestyle", (0, tuple(map(float, pattern.split()))) if pattern else "-")
    axes.plot(line.x, line.y, color=series_colour(line.series), **style)


def _doubling_axis(axes: Axes, ticks: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())


def _whole_steps(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))


def _thin(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Means of equal stretches, where there are more points than can be seen."""
    array = np.asarray(values, float)
    stretch = -(-len(array) // _MAX_POINTS)
    if stretch <= 1:
        return array
    starts = np.arange(0, len(array), stretch)
    lengths = np.diff([*starts, len(array)])
    return np.add.reduceat(array, starts) / lengths
