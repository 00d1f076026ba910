"""Figures of `sweep.html`, with the look of the other reports.

Not those of `optuna.visualization.matplotlib`: in a page's width their legends and numbers cover
what they stand beside, most tell the best trial from no other, and they stay black where the page
is dark.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import TrialState

from mupo_ray.report.page import figure
from mupo_ray.report.svg import MUTED, WIDE, render, series_colour
from mupo_ray.tune.spec import Choices, IntRange
from mupo_ray.tune.trials import best_trials, short_names, value_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from optuna.trial import FrozenTrial

    from mupo_ray.tune.study import Sweep

    Point = tuple[float, float]

_BEST, _OTHER = 1, 0


def history(sweep: Sweep, complete: Sequence[FrozenTrial], place: int) -> str:
    """An objective against the trial's number, with the best so far."""
    text = sweep.objectives[place].text
    is_max = sweep.config.objectives[place].direction == "maximize"
    numbers, values = [t.number for t in complete], [t.values[place] for t in complete]
    # Optuna prunes by one objective alone.
    pruned = [
        (float(t.number), t.value)
        for t in sweep.trials
        if t.state is TrialState.PRUNED and t.value is not None and math.isfinite(t.value)
    ]

    def draw(axes: Axes) -> None:
        best = np.maximum.accumulate(values) if is_max else np.minimum.accumulate(values)
        axes.step(numbers, best, where="post", color=series_colour(_BEST), linewidth=1.4)
        axes.plot(numbers, values, "o", color=series_colour(_OTHER), markersize=4.0)
        axes.plot(*_columns(pruned), "x", color=MUTED, markersize=4.0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))

    svg = render(draw, f"{text} of {len(complete)} trials", "trial", text)
    return figure(text, svg, "Points: trials; line: the best so far; crosses: pruned.")


def courses(sweep: Sweep) -> list[str]:
    """Each trial's evaluations against its steps, the best trial on top."""
    lines = {t.number: sorted(t.intermediate_values.items()) for t in sweep.trials}
    lines = {number: points for number, points in lines.items() if points}
    if not lines or len(sweep.objectives) > 1:
        return []
    best = next((t.number for t in best_trials(sweep)), None)
    text = sweep.objectives[0].text

    def draw(axes: Axes) -> None:
        for number, points in sorted(lines.items(), key=lambda item: item[0] == best):
            axes.plot(*zip(*points, strict=True), **_line(number == best, 0.5, 0.9, 2.5))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))

    svg = render(draw, f"{text} during training", "finished steps", text)
    return [figure("During training", svg, "One line a trial; thick: the best.")]


def importances(sweep: Sweep, complete: Sequence[FrozenTrial], place: int) -> list[str]:
    """How much of an objective's differences each path makes; nothing where it cannot be told."""
    text = sweep.objectives[place].text
    sign = -1 if sweep.config.objectives[place].direction == "maximize" else 1
    names = short_names(sweep.space.paths)
    try:
        study = _with_widest_ranges(sweep, complete)
        with warnings.catch_warnings():
            # It says that it takes low values for good ones, as they are here.
            warnings.simplefilter("ignore", UserWarning)
            by_path = optuna.importance.get_param_importances(
                study, target=lambda trial: sign * float(trial.values[place])
            )
    except (ValueError, RuntimeError):
        return []  # all trials have one value, or too few differ
    shares = {names[path]: share for path, share in by_path.items()}

    def draw(axes: Axes) -> None:
        ordered = sorted(shares, key=lambda name: shares[name])
        axes.barh(ordered, [shares[n] for n in ordered], color=series_colour(_OTHER), height=0.6)
        axes.grid(visible=False, axis="y")

    alt = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    svg = render(draw, alt, "share of the differences", "")
    return [figure(text, svg, "PED-ANOVA, over the trials that succeeded.")]


def parallel(sweep: Sweep, complete: Sequence[FrozenTrial]) -> str:
    """A line for each trial across upright axes, one for each path and objective."""
    names = [*short_names(sweep.space.paths).values(), *(o.text for o in sweep.objectives)]
    columns = [_column(sweep, path, complete) for path in sweep.space.paths]
    for i in range(len(sweep.objectives)):
        values = [t.values[i] for t in complete]
        columns.append((values, f"{min(values):.3g}", f"{max(values):.3g}"))
    heights = np.transpose([_scaled(values) for values, _, _ in columns])
    best = best_trials(sweep)[0].number

    def draw(axes: Axes) -> None:
        places = range(len(names))
        for place in places:
            axes.axvline(place, color=MUTED, linewidth=0.7)
        for trial, row in sorted(
            zip(complete, heights, strict=True), key=lambda item: item[0].number == best
        ):
            is_best = trial.number == best
            axes.plot(places, row, **_line(is_best, 0.45, 1.0, 3.0 if is_best else 2.0))
        axes.set_ylim(-0.05, 1.05)
        axes.set_yticks([])
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.grid(visible=False)
        lines = [name.replace("/", "/\n").replace(".", ".\n") for name in names]
        below = [f"{name}\n{low}" for name, (_, low, _) in zip(lines, columns, strict=True)]
        axes.set_xticks(list(places), below, fontsize=7)
        for place, (_, _, high) in zip(places, columns, strict=True):
            axes.annotate(high, (place, 1.05), ha="center", va="bottom", fontsize=7)

    svg = render(draw, f"{len(complete)} trials over {', '.join(names)}", "", "", WIDE)
    caption = "One line a trial, low values at the bottom; thick: the best."
    return figure("Trials across their values", svg, caption)


def slices(sweep: Sweep, complete: Sequence[FrozenTrial]) -> list[str]:
    """The first objective against each path alone."""
    front = {t.number for t in best_trials(sweep)}
    figures = []
    for path, name in short_names(sweep.space.paths).items():
        trials = [t for t in complete if path in t.params]
        if trials:
            svg = _slice(sweep, path, trials, front)
            figures.append(figure(name, svg, "One point a trial; diamond: the best."))
    return figures


def fronts(sweep: Sweep, complete: Sequence[FrozenTrial]) -> list[str]:
    """Each further objective against the first, with the trials of the front."""
    front = best_trials(sweep)
    first = sweep.objectives[0].text
    figures = []
    for i, other in enumerate(sweep.objectives[1:] if front else (), 1):
        points = [(t.values[0], t.values[i]) for t in complete]
        best = [(t.values[0], t.values[i]) for t in front]
        numbers = ", ".join(str(t.number) for t in front)
        alt = f"{other.text} against {first}; on the front: trials {numbers}"
        line = "-" if len(sweep.objectives) == 2 else ""
        svg = render(_dots(points, best, line), alt, first, other.text)
        caption = "Diamonds: no other trial is better in all objectives."
        figures.append(figure(f"{first} and {other.text}", svg, caption))
    return figures


def _slice(sweep: Sweep, path: str, trials: Sequence[FrozenTrial], front: set[int]) -> str:
    domain, text = sweep.config.search[path], sweep.objectives[0].text
    choices = domain.choices if isinstance(domain, Choices) else ()
    points = {
        t.number: (float(choices.index(t.params[path]) if choices else t.params[path]), t.values[0])
        for t in trials
    }
    dots = _dots(list(points.values()), [p for number, p in points.items() if number in front])

    def draw(axes: Axes) -> None:
        if not isinstance(domain, Choices) and domain.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        elif isinstance(domain, IntRange):
            axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
        dots(axes)
        if choices:
            axes.set_xticks(range(len(choices)), [value_text(c) for c in choices])

    return render(draw, f"{text} against {path} of {len(points)} trials", path, text)


def _dots(points: Sequence[Point], best: Sequence[Point], line: str = "") -> Callable[[Axes], None]:
    """Draws points, and on top of them those that stand out."""

    def draw(axes: Axes) -> None:
        colour, best_colour = series_colour(_OTHER), series_colour(_BEST)
        axes.plot(*_columns(points), "o", color=colour, markersize=4.0, alpha=0.8)
        axes.plot(*_columns(sorted(best)), f"D{line}", color=best_colour, markersize=5.0)
        axes.margins(x=0.08)

    return draw


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _line(is_best: bool, alpha: float, width: float, marker: float) -> dict[str, Any]:
    """How a trial's line looks among the others, whose opacity and width are given."""
    return {
        "color": series_colour(_BEST if is_best else _OTHER),
        "alpha": 1.0 if is_best else alpha,
        "linewidth": 2.2 if is_best else width,
        "marker": "o",
        "markersize": marker,
    }


def _column(
    sweep: Sweep, path: str, complete: Sequence[FrozenTrial]
) -> tuple[list[float], str, str]:
    """Places of the trials on an axis, NaN where one has no value, and what its ends mean."""
    domain = sweep.config.search[path]
    values = [t.params.get(path, math.nan) for t in complete]
    if isinstance(domain, Choices):
        first, last = value_text(domain.choices[0]), value_text(domain.choices[-1])
        places = [
            float(domain.choices.index(v)) if path in t.params else math.nan
            for v, t in zip(values, complete, strict=True)
        ]
        return places, first, last
    numbers = [v for v in values if not math.isnan(v)] or [0.0]
    ends = value_text(min(numbers)), value_text(max(numbers))
    return [math.log(v) if domain.log else float(v) for v in values], *ends


def _scaled(values: Sequence[float]) -> list[float]:
    numbers = [v for v in values if not math.isnan(v)]
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 0.0)
    return [0.5 if high == low else (v - low) / (high - low) for v in values]


def _with_widest_ranges(sweep: Sweep, complete: Sequence[FrozenTrial]) -> optuna.Study:
    """The trials as if every range had always been as wide as it ever was.

    A range that follows other choices has another width in each trial, which Optuna's measures of
    importance take for another parameter.
    """
    widest: dict[str, Any] = {}
    for trial in complete:
        for path, distribution in trial.distributions.items():
            old = widest.setdefault(path, distribution)
            if isinstance(distribution, IntDistribution | FloatDistribution):
                wider = copy.copy(distribution)
                wider.low = min(old.low, distribution.low)
                wider.high = max(old.high, distribution.high)
                widest[path] = wider
    study = optuna.create_study(directions=sweep.study.directions)
    for trial in complete:
        study.add_trial(
            optuna.create_trial(
                values=trial.values,
                params=trial.params,
                distributions={path: widest[path] for path in trial.params},
            )
        )
    return study
