"""The figure of a study: pass@k, one sample against four, and the course of training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mupo_ray.runs.summary import read_run
from study.plan import BASE, GRPO, STOPPED, Arm, Study

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from study.tables import Seen

# Arms with a colour of their own; the others are small grey marks.
_COLOURS = {
    BASE: "#8a8f94",
    GRPO: "#1f6fbf",
    STOPPED: "#62a8ee",
    "pass_4": "#1d8a5b",
    "mupo_k2": "#e0a030",
    "mupo_k3": "#d2601a",
    "mupo_k4": "#a03010",
}


def draw(study: Study, seen_of: Mapping[str, Mapping[str, Seen]], path: Path) -> None:
    """One row of three plots a task, as a PNG.

    Args:
        study: whose runs are drawn.
        seen_of: task -> name of an arm -> what it showed.
        path: of the file.
    """
    figure = Figure(figsize=(13.0, 4.0 * len(seen_of)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(seen_of), 3, squeeze=False)
    for row, (task, seen) in zip(grid, seen_of.items(), strict=True):
        _pass_curves(row[0], task, seen)
        _trade(row[1], task, seen)
        _course(row[2], study, task)
    figure.savefig(path, dpi=110)


def _pass_curves(axes: Any, task: str, seen: Mapping[str, Seen]) -> None:
    for name, colour in _COLOURS.items():
        if name not in seen:
            continue
        ks = sorted(int(m[5:]) for m in seen[name].values["1"] if m.startswith("pass@"))
        low, high = np.transpose([seen[name].interval(f"pass@{k}") for k in ks])
        axes.plot(
            ks, [seen[name].mean(f"pass@{k}") for k in ks], color=colour, label=seen[name].arm.title
        )
        axes.fill_between(ks, low, high, color=colour, alpha=0.1, linewidth=0)
    axes.set(title=f"{task}: pass@k at T=1, 95 % bands", xlabel="k", ylabel="share of problems")
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.legend(fontsize=7)
    axes.grid(alpha=0.2)


def _trade(axes: Any, task: str, seen: Mapping[str, Seen]) -> None:
    for name, arm in seen.items():
        x, y = arm.mean("pass@1"), arm.mean("pass@4")
        colour = _COLOURS.get(name, "#b0b4b8")
        axes.errorbar(
            x,
            y,
            xerr=arm.half_range("pass@1"),
            yerr=arm.half_range("pass@4"),
            marker="o",
            markersize=6 if name in _COLOURS else 4,
            color=colour,
            linewidth=1,
        )
        axes.annotate(name, (x, y), fontsize=6, xytext=(4, 3), textcoords="offset points")
    axes.set(
        title=f"{task}: one sample against four, T=1 (bars: seeds)",
        xlabel="pass@1",
        ylabel="pass@4",
    )
    axes.grid(alpha=0.2)


def _course(axes: Any, study: Study, task: str) -> None:
    for name in (GRPO, "pass_4", "mupo_k2", "mupo_k3", "mupo_k4"):
        arm = next((a for a in study.arms if a.name == name), None)
        if arm is None:
            continue
        for measure, style in (("pass@4", "-"), ("diversity", "--")):
            steps, values = _mean_course(study, task, arm, f"eval/heldout/{measure}")
            if steps:
                axes.plot(steps, values, style, color=_COLOURS[name], label=f"{name}, {measure}")
    axes.set(title=f"{task}: held-out problems while training", xlabel="step")
    axes.legend(fontsize=6, ncols=2)
    axes.grid(alpha=0.2)


def _mean_course(study: Study, task: str, arm: Arm, key: str) -> tuple[list[int], list[float]]:
    """Mean over the seeds at the steps that all of them have."""
    courses = []
    for seed in study.seeds:
        folder = study.config(task, arm, seed).run_dir
        if not (folder / "metrics.jsonl").is_file():
            return [], []
        steps, values = read_run(folder).series(key)
        courses.append(dict(zip(steps, values, strict=True)))
    common = sorted(set.intersection(*(set(course) for course in courses)))
    return common, [float(np.mean([course[step] for course in courses])) for step in common]
