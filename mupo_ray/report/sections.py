"""The sections of a report that hold plots: held-out questions, training, time."""

from __future__ import annotations

import html
import statistics
from typing import TYPE_CHECKING

from mupo_ray.report.collapse import collapse_plots, collapse_words
from mupo_ray.report.lines import METRIC_TEXT, ends_of, lines_of, sentence
from mupo_ray.report.page import figure, table
from mupo_ray.report.plots import (
    curves,
    noisy_curves,
    pass_curves,
    stacked,
    window_of,
)
from mupo_ray.runs.summary import STAGES, RunFiles, RunSummary, base_columns, stage_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Heading, figure among the evaluation's metrics, y axis.
_EVAL_PLOTS = (
    ("acc@1, greedy", "acc@1", "share of questions"),
    ("acc@1, sampled", "acc@1_sampled", "share of samples"),
    ("acc@4", "acc@4", "share of questions"),
    ("Diversity", "diversity", "cosine distance"),
    ("Effective strategies", "effective_strategies", "strategies"),
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


def eval_section(files: Mapping[str, RunFiles], summaries: Mapping[str, RunSummary]) -> str:
    """Curves of the evaluations against step, and pass@k; empty without evaluations."""
    evals = {name: run.eval_rows() for name, run in files.items()}
    if not any(evals.values()):
        return ""
    plots = []
    for heading, name, y_label in _EVAL_PLOTS:
        series = {
            run: [(step, figures[name]) for step, figures in rows if name in figures]
            for run, rows in evals.items()
        }
        lines = lines_of(series)
        if lines:
            alt = f"{heading} against finished steps. {ends_of(series)}"
            svg = curves(lines, alt=alt, x_label="finished steps", y_label=y_label)
            caption = f"{sentence(meaning(name))} Up: {y_label}; across: finished steps."
            plots.append(figure(heading, svg, caption))
    plots += collapse_plots(files)
    plots.append(_pass_plot(summaries))
    shown = f'<div class="plots">{"".join(plots)}</div>'
    return f"{shown}{_eval_details(evals)}{collapse_words(files)}"


def _pass_plot(summaries: Mapping[str, RunSummary]) -> str:
    start = [figures.pass_k for figures in base_columns(summaries).values() if figures.pass_k]
    series = {name: list(s.final.pass_k.items()) for name, s in summaries.items()}
    lines = lines_of(series)
    if not lines and not start:
        return ""
    ends = "; ".join(
        f"{name}: {', '.join(f'{value:.3f} at k = {k}' for k, value in points)}"
        for name, points in [*((("base model"), list(f.items())) for f in start), *series.items()]
        if points
    )
    svg = pass_curves(start, lines, alt=f"pass@k against k. {ends}", y_label="share of questions")
    caption = (
        "Unbiased chance of a right one among k samples: grey the base model, coloured the end of "
        "each run. Across: k, doubling."
    )
    return figure("pass@k, start and end", svg, caption)


def _eval_details(evals: Mapping[str, Sequence[tuple[int, Mapping[str, float]]]]) -> str:
    names = [name for _, name, _ in _EVAL_PLOTS]
    rows = [
        [f"{html.escape(run)}, step {step}", *(cell(figures.get(name)) for name in names)]
        for run, found in evals.items()
        for step, figures in found
    ]
    inner = table(["", *names], rows, caption="Every evaluation of each run")
    return f"<details><summary>The same in figures</summary>{inner}</details>"


def train_section(files: Mapping[str, RunFiles]) -> str:
    """Curves of what each step measured, where any run has it; empty without steps."""
    plots = []
    for heading, key, y_label, log in _TRAIN_PLOTS:
        series = {name: list(zip(*run.series(key), strict=True)) for name, run in files.items()}
        lines = lines_of(series)
        if not any(any(line.y) for line in lines):
            continue
        alt = f"{heading} against finished steps. {ends_of(series)}"
        svg = noisy_curves(lines, alt=alt, x_label="finished steps", y_label=y_label, log=log)
        caption = f"{sentence(METRIC_TEXT[key])} Up: {y_label}; across: finished steps."
        plots.append(figure(heading, svg, caption))
    if not plots:
        return ""
    windows = sorted({window_of(run.last_step) for run in files.values()})
    return (
        '<p class="hint">Measured on the prompts trained on. Thin: each step; thick: centred mean '
        f'over {" or ".join(map(str, windows))} steps.</p><div class="plots">{"".join(plots)}</div>'
    )


def time_section(files: Mapping[str, RunFiles], summaries: Mapping[str, RunSummary]) -> str:
    """Where each run's time goes, stage upon stage; empty without steps."""
    timed = {name: [r for r in run.rows if "time/step_s" in r] for name, run in files.items()}
    totals = [row["time/step_s"] for rows in timed.values() for row in rows]
    if not totals:
        return ""
    longest = max(
        statistics.median([r["time/step_s"] for r in rows]) for rows in timed.values() if rows
    )
    top = min(max(totals), _OUTLIER * longest) * 1.05
    stages = (*STAGES, "other")
    plots = []
    for name, rows in timed.items():
        if not rows:
            continue
        spent = [stage_seconds(row) for row in rows]
        layers = [[s.get(stage, 0.0) for s in spent] for stage in stages]
        medians = summaries[name].step_s
        parts = ", ".join(f"{s} {medians[s]:.2f} s" for s in stages if s in medians)
        alt = f"Seconds of each stage of a step of {name}. Medians: {parts}."
        svg = stacked([row["step"] for row in rows], layers, top=top, alt=alt)
        num_cut = sum(row["time/step_s"] > top for row in rows)
        cut = f" Slower steps, beyond the axis: {num_cut}." if num_cut else ""
        caption = f"Up: seconds, stage upon stage; across: finished steps.{cut}"
        plots.append(figure(f"{name}: time a step", svg, caption))
    items = "".join(
        f'<li><i style="background: var(--t{i})"></i>{stage}</li>' for i, stage in enumerate(stages)
    )
    order = dict.fromkeys(key for s in summaries.values() for key in s.step_s)
    rows_ = [
        ["whole step" if key == "median" else key]
        + [cell(s.step_s.get(key), None, 2) for s in summaries.values()]
        for key in order
    ]
    return (
        '<p class="hint">Evaluation and checkpoints are not part of a step.</p>'
        f'<ul class="stages" aria-label="Stages, from the bottom up">{items}</ul>'
        f'<div class="plots">{"".join(plots)}</div><h3>Median seconds</h3>'
        + table(["", *summaries], rows_, caption="Median seconds of a step and its stages")
    )


def meaning(name: str) -> str:
    """What a figure of an evaluation is, in words."""
    if name.startswith("pass@"):
        return f"unbiased chance of a right one among {name[5:]} samples"
    return METRIC_TEXT[f"eval/<set>/{name}"]


def cell(value: float | None, interval: tuple[float, float] | None = None, digits: int = 3) -> str:
    """HTML of a table's number, with its interval below it; a dash where there is none."""
    if value is None:
        return "-"
    spread = "" if interval is None else f"<small>{interval[0]:.3f}&ndash;{interval[1]:.3f}</small>"
    return f"{value:.{digits}f}{spread}"
