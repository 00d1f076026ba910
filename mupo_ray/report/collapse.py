"""What the collapse alarm saw of each run: the shares left of step 0, and its words."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from mupo_ray.errors import CheckpointError
from mupo_ray.evaluation.collapse import CollapseWatch
from mupo_ray.report.lines import METRIC_TEXT, ends_of, lines_of, sentence
from mupo_ray.report.page import figure
from mupo_ray.report.plots import curves
from mupo_ray.runs.folder import early_stop
from mupo_ray.settings.sections import CollapseConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mupo_ray.runs.summary import RunFiles

# Heading, metric, its limit among the settings.
_PLOTS = (
    ("Diversity left", "collapse/diversity_ratio", "diversity_share"),
    ("Strategies left", "collapse/strategies_ratio", "strategies_share"),
)


def collapse_plots(files: Mapping[str, RunFiles]) -> list[str]:
    """A figure for each share that any run has, with the alarm's limits."""
    plots = []
    for heading, key, setting in _PLOTS:
        series = {name: list(zip(*run.series(key), strict=True)) for name, run in files.items()}
        lines = lines_of(series)
        if not lines:
            continue
        limits = {
            name: limit
            for name, run in files.items()
            if series[name] and (limit := getattr(_settings(run), setting, 0.0)) > 0
        }
        said = _limits_in_words(limits)
        svg = curves(
            lines,
            alt=f"{heading} of step 0's against finished steps. {ends_of(series)}. {said}",
            x_label="finished steps",
            y_label="share of step 0's",
            limits=sorted(set(limits.values())),
        )
        caption = f"{sentence(METRIC_TEXT[key])} {said} Up: share; across: finished steps."
        plots.append(figure(heading, svg, caption))
    return plots


def collapse_words(files: Mapping[str, RunFiles]) -> str:
    """What the alarm said of each run that was evaluated; empty without one."""
    items = [
        f"<li><b>{html.escape(name)}</b>: {html.escape(text)}</li>"
        for name, run in files.items()
        for text in _said(run)
    ]
    if not items:
        return ""
    return f"<h3>Collapse alarm</h3><ul>{''.join(items)}</ul>"


def _said(run: RunFiles) -> list[str]:
    """The alarm's words, by a watch that sees the run's evaluations again."""
    settings = _settings(run)
    if settings is None or run.eval_set is None or run.last_step == 0:
        return []
    watch = CollapseWatch(settings, run.eval_set)
    said = [*watch.restore(run.rows[:1])]
    for row in run.rows[1:]:
        said += watch.observe(int(row["step"]), row).warnings
    stopped = early_stop(run.folder)
    if stopped is not None:
        said.append(stopped)
    if not said and run.series("collapse/alarm")[0]:
        said.append("no alarm; both shares stayed above their limits")
    return said


def _settings(run: RunFiles) -> CollapseConfig | None:
    """As the run's record has them; None where it does not say."""
    found = run.record.get("config", {}).get("collapse")
    if found is None:
        return None
    try:
        return CollapseConfig.model_validate(found)
    except ValueError as err:
        raise CheckpointError(f"{run.folder / 'run.json'}: config.collapse: {err}") from err


def _limits_in_words(limits: Mapping[str, float]) -> str:
    if not limits:
        return "Without a limit."
    values = sorted(set(limits.values()))
    if len(values) == 1:
        return f"Alarm below {values[0]:g}."
    return f"Alarm below {', '.join(f'{limit:g} ({name})' for name, limit in limits.items())}."
