"""Sections of a run's page that hold plots: held-out questions with the alarm, training, time."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING

from mupo_ray.errors import CheckpointError
from mupo_ray.evaluation.collapse import CollapseWatch
from mupo_ray.observability.metrics import METRICS
from mupo_ray.report.page import cell, fill
from mupo_ray.report.plots import (
    Line,
    Plot,
    curves,
    noisy_curves,
    pass_curves,
    stacked,
    window_of,
)
from mupo_ray.runs.folder import early_stop
from mupo_ray.runs.summary import STAGES, base_columns, stage_seconds
from mupo_ray.settings.sections import CollapseConfig
from mupo_ray.text import number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from markupsafe import Markup

    from mupo_ray.runs.summary import RunFiles, RunSummary

    Series = Mapping[str, Sequence[tuple[float, float]]]
    """Run -> points of a metric; empty where it was not measured."""

# Heading, figure among the evaluation's metrics, y axis.
_EVAL_PLOTS = (
    ("acc@1, greedy", "acc@1", "share of questions"),
    ("acc@1, sampled", "acc@1_sampled", "share of samples"),
    ("acc@4", "acc@4", "share of questions"),
    ("Diversity", "diversity", "cosine distance"),
    ("Effective strategies", "effective_strategies", "strategies"),
)
# Heading, metric, its limit among the settings.
_COLLAPSE_PLOTS = (
    ("Diversity left", "collapse/diversity_ratio", "diversity_share"),
    ("Strategies left", "collapse/strategies_ratio", "strategies_share"),
)
# Heading, metric, y axis, logarithmic.
_TRAIN_PLOTS = (
    ("Reward: right answers", "reward/accuracy/mean", "share of responses", False),
    ("Reward: format", "reward/format/mean", "share of responses", False),
    ("Reward: diversity part", "reward/diversity/mean", "reward", False),
    ("Reward: overlong part", "reward/overlong/mean", "reward", False),
    ("Reward, total", "reward/total/mean", "reward", False),
    ("Diversity in training", "diversity/pairwise", "cosine distance", False),
    ("Response length", "response/length/mean", "tokens", False),
    ("KL to the reference", "loss/kl", "nat a token", False),
    ("Entropy", "loss/entropy", "nat a token", False),
    ("Gradient norm", "optim/grad_norm", "norm", False),
    ("Sampler against trainer", "sync/logprob_diff_max", "nat, log scale", True),
)
# A step that waits for something once should not flatten the picture of all others.
_OUTLIER = 2.0

_METRIC_TEXT = {metric.key: metric.text for metric in METRICS}


def heldout_section(files: Mapping[str, RunFiles], summaries: Mapping[str, RunSummary]) -> str:
    """Curves of the evaluations, pass@k and the collapse alarm; empty without evaluations."""
    evals = {name: run.eval_rows() for name, run in files.items()}
    if not any(evals.values()):
        return ""
    plots = []
    for heading, name, y_label in _EVAL_PLOTS:
        series = {
            run: [(step, figures[name]) for step, figures in rows if name in figures]
            for run, rows in evals.items()
        }
        if any(series.values()):
            plots.append(_against_steps(curves, heading, series, meaning(name), y_label))
    plots += [*_collapse_plots(files), *_pass_plot(summaries)]
    names = [name for _, name, _ in _EVAL_PLOTS]
    rows = [
        [f"{run}, step {step}", *(cell(figures.get(name)) for name in names)]
        for run, evaluations in evals.items()
        for step, figures in evaluations
    ]
    alarms = [(name, words) for name, run in files.items() for words in _alarm_words(run)]
    return fill("run/heldout.html", plots=plots, head=["", *names], rows=rows, alarms=alarms)


def train_section(files: Mapping[str, RunFiles]) -> str:
    """Curves of what each step measured, where any run has it; empty without steps."""
    plots = []
    for heading, key, y_label, log in _TRAIN_PLOTS:
        series = _series(files, key)
        if any(value for points in series.values() for _, value in points):
            draw = partial(noisy_curves, log=log)
            plots.append(_against_steps(draw, heading, series, _METRIC_TEXT[key], y_label))
    windows = sorted({window_of(run.last_step) for run in files.values()})
    return fill("run/training.html", plots=plots, windows=windows) if plots else ""


def time_section(files: Mapping[str, RunFiles], summaries: Mapping[str, RunSummary]) -> str:
    """Where each run's time goes, stage upon stage; empty without steps."""
    timed = {name: [r for r in run.rows if "time/step_s" in r] for name, run in files.items()}
    steps_s = {name: [r["time/step_s"] for r in rows] for name, rows in timed.items() if rows}
    if not steps_s:
        return ""
    longest = max(map(statistics.median, steps_s.values()))
    top = min(max(map(max, steps_s.values())), _OUTLIER * longest) * 1.05
    stages = (*STAGES, "other")
    plots = []
    for name, totals in steps_s.items():
        spent = [stage_seconds(row) for row in timed[name]]
        layers = [[s.get(stage, 0.0) for s in spent] for stage in stages]
        medians = summaries[name].step_s
        parts = ", ".join(f"{s} {medians[s]:.2f} s" for s in stages if s in medians)
        alt = f"Seconds of each stage of a step of {name}. Medians: {parts}."
        svg = stacked([row["step"] for row in timed[name]], layers, top=top, alt=alt)
        num_cut = sum(total > top for total in totals)
        cut = f" Slower steps, beyond the axis: {num_cut}." if num_cut else ""
        caption = f"Up: seconds, stage upon stage; across: finished steps.{cut}"
        plots.append(Plot(f"{name}: time a step", svg, caption))
    rows = [
        ["whole step" if key == "median" else key]
        + [number(s.step_s.get(key), ".2f") for s in summaries.values()]
        for key in dict.fromkeys(key for s in summaries.values() for key in s.step_s)
    ]
    head = ["", *summaries]
    return fill("run/time.html", stages=stages, plots=plots, head=head, rows=rows)


def meaning(name: str) -> str:
    """What a figure of an evaluation is, in words."""
    if name.startswith("pass@"):
        return f"unbiased chance of a right one among {name[5:]} samples"
    return _METRIC_TEXT[f"eval/<set>/{name}"]


def _against_steps(
    draw: Callable[..., Markup], heading: str, series: Series, text: str, y_label: str
) -> Plot:
    alt = f"{heading} against finished steps. {_ends_of(series)}"
    svg = draw(_lines_of(series), alt=alt, x_label="finished steps", y_label=y_label)
    return Plot(heading, svg, f"{_sentence(text)} Up: {y_label}; across: finished steps.")


def _pass_plot(summaries: Mapping[str, RunSummary]) -> list[Plot]:
    start = [figures.pass_k for figures in base_columns(summaries).values() if figures.pass_k]
    series = {name: list(s.final.pass_k.items()) for name, s in summaries.items()}
    if not start and not any(series.values()):
        return []
    ends = "; ".join(
        f"{name}: {', '.join(f'{value:.3f} at k = {k}' for k, value in points)}"
        for name, points in [*(("base model", list(f.items())) for f in start), *series.items()]
        if points
    )
    alt = f"pass@k against k. {ends}"
    svg = pass_curves(start, _lines_of(series), alt=alt, y_label="share of questions")
    caption = (
        "Unbiased chance of a right one among k samples: grey the base model, coloured the end of "
        "each run. Across: k, doubling."
    )
    return [Plot("pass@k, start and end", svg, caption)]


def _collapse_plots(files: Mapping[str, RunFiles]) -> list[Plot]:
    """A plot for each share of step 0's that any run has, with the alarm's limits."""
    plots = []
    for heading, key, setting in _COLLAPSE_PLOTS:
        series = _series(files, key)
        if not any(series.values()):
            continue
        limits = {
            name: limit
            for name, run in files.items()
            if series[name] and (limit := getattr(_collapse_config(run), setting, 0.0)) > 0
        }
        sentences = _limits_in_words(limits)
        svg = curves(
            _lines_of(series),
            alt=f"{heading} of step 0's against finished steps. {_ends_of(series)}. {sentences}",
            x_label="finished steps",
            y_label="share of step 0's",
            limits=sorted(set(limits.values())),
        )
        caption = f"{_sentence(_METRIC_TEXT[key])} {sentences} Up: share; across: finished steps."
        plots.append(Plot(heading, svg, caption))
    return plots


def _limits_in_words(limits: Mapping[str, float]) -> str:
    if not limits:
        return "Without a limit."
    values = sorted(set(limits.values()))
    if len(values) == 1:
        return f"Alarm below {values[0]:g}."
    return f"Alarm below {', '.join(f'{limit:g} ({name})' for name, limit in limits.items())}."


def _alarm_words(run: RunFiles) -> list[str]:
    """What the alarm sentences of a run, by a watch that sees the run's evaluations again."""
    settings = _collapse_config(run)
    if settings is None or run.eval_set is None or run.last_step == 0:
        return []
    watch = CollapseWatch(settings, run.eval_set)
    sentences = [*watch.restore(run.rows[:1])]
    for row in run.rows[1:]:
        sentences += watch.observe(int(row["step"]), row).warnings
    stopped = early_stop(run.folder)
    if stopped is not None:
        sentences.append(stopped)
    if not sentences and run.series("collapse/alarm")[0]:
        sentences.append("no alarm; both shares stayed above their limits")
    return sentences


def _collapse_config(run: RunFiles) -> CollapseConfig | None:
    """As the run's record has it; None where it does not say."""
    section = run.record.get("config", {}).get("collapse")
    if section is None:
        return None
    try:
        return CollapseConfig.model_validate(section)
    except ValueError as err:
        raise CheckpointError(f"{run.folder / 'run.json'}: config.collapse: {err}") from err


def _series(files: Mapping[str, RunFiles], key: str) -> dict[str, list[tuple[float, float]]]:
    return {name: list(zip(*run.series(key), strict=True)) for name, run in files.items()}


def _lines_of(series: Series) -> list[Line]:
    """A line for each run that has points; a run's number stays its own."""
    return [
        Line(series=i, x=[x for x, _ in points], y=[y for _, y in points])
        for i, points in enumerate(series.values())
        if points
    ]


def _ends_of(series: Series) -> str:
    """First and last point of each run in words."""
    return "; ".join(
        f"{name}: {points[0][1]:.4g} at step {points[0][0]}, {points[-1][1]:.4g} at step "
        f"{points[-1][0]}"
        for name, points in series.items()
        if points
    )


def _sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    return f"{text[0].upper()}{text[1:]}."
