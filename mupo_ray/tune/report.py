"""What a sweep leaves beside its runs: `sweep.html`, and `best.yaml` to train again."""

from __future__ import annotations

import html
import json
import os
from typing import TYPE_CHECKING

from optuna.trial import TrialState

from mupo_ray.config import load_config
from mupo_ray.files import read_jsonl, write_text
from mupo_ray.report.page import page, table
from mupo_ray.report.run_page import write_report
from mupo_ray.runs.folder import load_resolved
from mupo_ray.settings.text import to_yaml
from mupo_ray.text import number
from mupo_ray.tune import plots
from mupo_ray.tune.trials import (
    Row,
    best_trials,
    count_states,
    rows_of,
    short_names,
    start_up_share,
    value_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from optuna.trial import FrozenTrial

    from mupo_ray.tune.study import Sweep

PAGE_FILE = "sweep.html"
BEST_FILE = "best.yaml"
_MAX_TOP = 10
# Fewer finished trials say nothing of what matters.
_MIN_FOR_IMPORTANCES = 4


def write_results(sweep: Sweep, ended: int | None = None) -> None:
    """Write the sweep's page and best configuration anew.

    Args:
        sweep: as it stands.
        ended: number of a trial that has just ended, whose run gets its report.
    """
    if ended is not None:
        run_dir = sweep.run_dir(sweep.trials[ended])
        if read_jsonl(run_dir / "metrics.jsonl"):
            title = f"{sweep.config.name}, trial {ended}"
            write_report({f"trial {ended}": run_dir}, run_dir / "report.html", title)
    write_sweep_report(sweep)
    write_best(sweep)


def write_best(sweep: Sweep) -> Path | None:
    """The configuration of the best trial, as a run of its own; None before there is one.

    With several objectives it is that of the front which is best in the first of them.
    """
    best = best_trials(sweep)
    if not best:
        return None
    trial = best[0]
    config = load_resolved(sweep.run_dir(trial))
    place = ["run.name=best", f"run.storage_path={json.dumps(str(sweep.folder))}"]
    values = ", ".join(
        f"{o.text} = {v:.4f}" for o, v in zip(sweep.objectives, trial.values, strict=True)
    )
    head = [f"# Trial {trial.number} of {sweep.config.name}: {values}"]
    head += [f"#   {path} = {value_text(value)}" for path, value in trial.params.items()]
    if len(best) > 1:
        others = ", ".join(str(t.number) for t in best[1:])
        head.append(f"# The front has others too: trials/<number>/run.json of {others}.")
    path = sweep.folder / BEST_FILE
    write_text(path, "\n".join([*head, to_yaml(load_config([], place, base=config))]))
    return path


def write_sweep_report(sweep: Sweep) -> Path:
    """Write the page, whole or not at all."""
    rows = rows_of(sweep)
    complete = [t for t in sweep.trials if t.state is TrialState.COMPLETE]
    sections = [
        ("top", "Top trials", _top(sweep, rows)),
        ("front", "Pareto front", _grid(plots.fronts(sweep, complete))),
        ("history", "History", _history(sweep, complete)),
        ("importance", "What matters", _importances(sweep, complete)),
        ("parallel", "All values at once", _parallel(sweep, complete)),
        ("slices", "Each value alone", _slices(sweep, complete)),
        ("trials", "All trials", _table(sweep, rows, "All trials")),
    ]
    filled = [section for section in sections if section[2]]
    path = sweep.folder / PAGE_FILE
    write_text(path, page(sweep.config.name, _intro(sweep, rows), "", filled))
    return path


def _intro(sweep: Sweep, rows: Sequence[Row]) -> str:
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
        f"pruner {sweep.config.pruner.name}. Trials: {count_states(rows)} of "
        f"{sweep.config.trials}.{timed}</p>"
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


def _table(sweep: Sweep, rows: Sequence[Row], caption: str) -> str:
    names = short_names(sweep.space.paths)
    head = ["trial", "state", *(o.text for o in sweep.objectives), *names.values()]
    body = [
        [
            _link(sweep, row),
            row.state,
            *(number(value, ".4f") for value in row.values),
            *(html.escape(row.params.get(path, "-")) for path in names),
            number(row.wall_s, ".0f"),
            number(row.start_up_frac, ".0%"),
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
    objectives = range(len(sweep.objectives)) if complete else ()
    figures = [plots.history(sweep, complete, i) for i in objectives]
    return _grid([*figures, *plots.courses(sweep)])


def _importances(sweep: Sweep, complete: Sequence[FrozenTrial]) -> str:
    if len(complete) < _MIN_FOR_IMPORTANCES:
        return ""
    figures = [
        figure
        for i in range(len(sweep.objectives))
        for figure in plots.importances(sweep, complete, i)
    ]
    hint = '<p class="hint">With few trials these shares say little.</p>'
    return hint + _grid(figures) if figures else ""


def _parallel(sweep: Sweep, complete: Sequence[FrozenTrial]) -> str:
    if len(complete) < 2:
        return ""
    return f'<div class="scroll">{plots.parallel(sweep, complete)}</div>'


def _slices(sweep: Sweep, complete: Sequence[FrozenTrial]) -> str:
    return _grid(plots.slices(sweep, complete)) if len(complete) > 1 else ""


def _grid(figures: Sequence[str]) -> str:
    return f'<div class="plots">{"".join(figures)}</div>' if figures else ""
