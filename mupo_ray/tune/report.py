"""`sweep.html`: how a sweep went, on one page that needs no network."""

from __future__ import annotations

import copy
import html
import math
import os
import warnings
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import TrialState

from mupo_ray.report.page import figure, page, save_page, table
from mupo_ray.tune import plots
from mupo_ray.tune.spec import Choices, IntRange
from mupo_ray.tune.trials import Row, best_trials, rows_of, short_names, shown, start_up_share

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from optuna.trial import FrozenTrial

    from mupo_ray.tune.study import Sweep

PAGE_FILE = "sweep.html"
_MAX_TOP = 10


def write_sweep_report(sweep: Sweep) -> Path:
    """Write the page, whole or not at all."""
    rows = rows_of(sweep)
    complete = [t for t in sweep.trials if t.state is TrialState.COMPLETE]
    sections = [
        ("top", "Top trials", _top(sweep, rows)),
        ("front", "Pareto front", _front(sweep, complete)),
        ("history", "History", _history(sweep, complete)),
        ("importance", "What matters", _importances(sweep, complete)),
        ("parallel", "All values at once", _parallel(sweep, complete)),
        ("slices", "Each value alone", _slices(sweep, complete)),
        ("trials", "All trials", _trials(sweep, rows)),
    ]
    kept = [section for section in sections if section[2]]
    return save_page(
        sweep.folder / PAGE_FILE, page(sweep.config.name, _intro(sweep, rows), "", kept)
    )


def _intro(sweep: Sweep, rows: Sequence[Row]) -> str:
    counts = {s: sum(r.state == s for r in rows) for s in dict.fromkeys(r.state for r in rows)}
    states = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none yet"
    aims = " and ".join(f"{o.direction} {o.metric}" for o in sweep.config.objectives)
    share = start_up_share(rows)
    timed = (
        f" {share[0]:.0f} s of the trials' time, {share[1]:.0%}, were start-up, in no step, "
        "evaluation or checkpoint."
        if share is not None
        else ""
    )
    return (
        f'<p class="intro">{html.escape(aims.capitalize())}, by {sweep.config.sampler.name}, '
        f"pruner {sweep.config.pruner.name}. Trials: {states} of {sweep.config.trials}.{timed}</p>"
    )


def _top(sweep: Sweep, rows: Sequence[Row]) -> str:
    front = {t.number: place for place, t in enumerate(best_trials(sweep))}
    sign = -1 if sweep.config.objectives[0].direction == "maximize" else 1
    complete = [r for r in rows if r.state == "complete"]
    ranked = sorted(
        complete, key=lambda r: (front.get(r.number, len(rows)), sign * (r.values[0] or 0.0))
    )
    if not ranked:
        return '<p class="hint">No trial has succeeded yet.</p>'
    return _table(sweep, ranked[:_MAX_TOP], "The best trials")


def _trials(sweep: Sweep, rows: Sequence[Row]) -> str:
    return _table(sweep, rows, "All trials")


def _table(sweep: Sweep, rows: Sequence[Row], caption: str) -> str:
    names = short_names(sweep.space.paths)
    head = ["trial", "state", *(o.text for o in sweep.objectives), *names.values()]
    body = [
        [
            _link(sweep, row),
            row.state,
            *(_number(value, ".4f") for value in row.values),
            *(html.escape(row.params.get(path, "-")) for path in names),
            _number(row.wall_s, ".0f"),
            _number(row.start_up_frac, ".0%"),
        ]
        for row in rows
    ]
    notes = "".join(
        f'<p class="hint">Trial {row.number}: {html.escape(row.note)}</p>'
        for row in rows
        if row.note
    )
    return table([*head, "seconds", "start-up"], body, caption=caption) + notes


def _link(sweep: Sweep, row: Row) -> str:
    if not (row.run_dir / "report.html").is_file():
        return str(row.number)
    path = os.path.relpath(row.run_dir / "report.html", sweep.folder)
    return f'<a href="{html.escape(path)}">{row.number}</a>'


def _history(sweep: Sweep, complete: Sequence[FrozenTrial]) -> str:
    pruned = [t for t in sweep.trials if t.state is TrialState.PRUNED and t.value is not None]
    figures = []
    for i, objective in enumerate(sweep.config.objectives):
        text = sweep.objectives[i].text
        points = [(float(t.number), t.values[i]) for t in complete]
        left = [(float(t.number), t.values[i]) for t in pruned if math.isfinite(t.values[i])]
        if points:
            svg = plots.history(
                points,
                left,
                maximize=objective.direction == "maximize",
                alt=f"{text} of {len(points)} trials",
                y_label=text,
            )
            figures.append(
                figure(text, svg, "Points: trials; line: the best so far; crosses: pruned.")
            )
    lines = {t.number: sorted(t.intermediate_values.items()) for t in sweep.trials}
    kept = {n: [(float(s), v) for s, v in points] for n, points in lines.items() if points}
    if kept and len(sweep.objectives) == 1:
        best = best_trials(sweep)
        text = sweep.objectives[0].text
        svg = plots.courses(
            kept, best[0].number if best else None, alt=f"{text} during training", y=text
        )
        figures.append(figure("During training", svg, "One line a trial; thick: the best."))
    return _grid(figures)


def _importances(sweep: Sweep, complete: Sequence[FrozenTrial]) -> str:
    if len(complete) < 4:
        return ""
    names = short_names(sweep.space.paths)
    figures = []
    for i, objective in enumerate(sweep.objectives):
        sign = -1 if sweep.config.objectives[i].direction == "maximize" else 1

        def loss(trial: FrozenTrial, place: int = i, sign: int = sign) -> float:
            return sign * float(trial.values[place])

        try:
            study = _with_widest_ranges(sweep, complete)
            with warnings.catch_warnings():
                # It says that it takes low values for good ones, as they are here.
                warnings.simplefilter("ignore", UserWarning)
                found = optuna.importance.get_param_importances(study, target=loss)
        except (ValueError, RuntimeError):
            continue  # all trials have one value, or too few differ
        shares = {names[path]: share for path, share in found.items()}
        alt = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
        svg = plots.bars(shares, alt=alt, x_label="share of the differences")
        figures.append(figure(objective.text, svg, "PED-ANOVA, over the trials that succeeded."))
    hint = '<p class="hint">With few trials these shares say little.</p>'
    return hint + _grid(figures) if figures else ""


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


def _parallel(sweep: Sweep, complete: Sequence[FrozenTrial]) -> str:
    if len(complete) < 2:
        return ""
    paths = sweep.space.paths
    columns = [_column(sweep, path, complete) for path in paths]
    names = [*short_names(paths).values(), *(o.text for o in sweep.objectives)]
    for i in range(len(sweep.objectives)):
        values = [t.values[i] for t in complete]
        columns.append((values, f"{min(values):.3g}", f"{max(values):.3g}"))
    scaled = [_scaled(values) for values, _, _ in columns]
    best = best_trials(sweep)[0].number
    svg = plots.parallel(
        list(zip(*scaled, strict=True)),
        [name.replace("/", "/\n").replace(".", ".\n") for name in names],
        [(low, high) for _, low, high in columns],
        next(i for i, t in enumerate(complete) if t.number == best),
        alt=f"{len(complete)} trials over {', '.join(names)}",
    )
    caption = "One line a trial, low values at the bottom; thick: the best."
    return f'<div class="scroll">{figure("Trials across their values", svg, caption)}</div>'


def _column(
    sweep: Sweep, path: str, complete: Sequence[FrozenTrial]
) -> tuple[list[float], str, str]:
    """Places of the trials on an axis, and what its ends mean."""
    given = sweep.config.search[path]
    raw = [t.params.get(path) for t in complete]
    if isinstance(given, Choices):
        places = [given.choices.index(v) if path in t.params else math.nan
                  for v, t in zip(raw, complete, strict=True)]  # fmt: skip
        return [float(p) for p in places], shown(given.choices[0]), shown(given.choices[-1])
    numbers = [math.nan if v is None else float(v) for v in raw]
    there = [v for v in numbers if not math.isnan(v)] or [0.0]
    ends = shown(min(there)), shown(max(there))
    return [math.log(v) if given.log else v for v in numbers], *ends


def _scaled(values: Sequence[float]) -> list[float]:
    there = [v for v in values if not math.isnan(v)]
    low, high = (min(there), max(there)) if there else (0.0, 0.0)
    return [0.5 if high == low else (v - low) / (high - low) for v in values]


def _slices(sweep: Sweep, complete: Sequence[FrozenTrial]) -> str:
    if len(complete) < 2:
        return ""
    front = {t.number for t in best_trials(sweep)}
    text = sweep.objectives[0].text
    names = short_names(sweep.space.paths)
    figures = []
    for path in sweep.space.paths:
        given = sweep.config.search[path]
        choices = given.choices if isinstance(given, Choices) else ()
        there = [t for t in complete if path in t.params]
        points = {
            t.number: (float(choices.index(t.params[path]) if choices else t.params[path]),
                       t.values[0])
            for t in there
        }  # fmt: skip
        if not points:
            continue
        svg = plots.scatter(
            list(points.values()),
            [point for number, point in points.items() if number in front],
            alt=f"{text} against {path} of {len(points)} trials",
            x_label=path,
            y_label=text,
            log=not isinstance(given, Choices) and given.log,
            whole=isinstance(given, IntRange),
            choices=[shown(c) for c in choices],
        )
        figures.append(figure(names[path], svg, "One point a trial; diamond: the best."))
    return _grid(figures)


def _front(sweep: Sweep, complete: Sequence[FrozenTrial]) -> str:
    if len(sweep.objectives) < 2 or not complete:
        return ""
    front = best_trials(sweep)
    first = sweep.objectives[0].text
    figures = []
    for i, other in enumerate(sweep.objectives[1:], 1):
        svg = plots.scatter(
            [(t.values[0], t.values[i]) for t in complete],
            [(t.values[0], t.values[i]) for t in front],
            alt=f"{other.text} against {first}; on the front: trials "
            + ", ".join(str(t.number) for t in front),
            x_label=first,
            y_label=other.text,
            joined=len(sweep.objectives) == 2,
        )
        caption = "Diamonds: no other trial is better in all objectives."
        figures.append(figure(f"{first} and {other.text}", svg, caption))
    return _grid(figures)


def _grid(figures: Sequence[str]) -> str:
    return f'<div class="plots">{"".join(figures)}</div>' if figures else ""


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
