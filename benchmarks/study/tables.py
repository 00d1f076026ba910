"""Tables and one figure of a study, out of what each run showed on the test set.

A cell is the mean over seeds and problems. Its interval is over problems, each with the mean of its
seeds; `+-` is half the range of the seeds' means.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mupo_ray.core.intervals import score_interval
from mupo_ray.files import write_text
from mupo_ray.runs.summary import read_run
from mupo_ray.text import markdown_table
from study.plan import BASE, GRPO, STOPPED, TEMPERATURES, Arm, Study
from study.run import is_done, stop_of, values_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

KS = (1, 2, 4, 8)
_PASSES = tuple(f"pass@{k}" for k in KS)
_AT_1 = "1"
_BOUNDS = {"diversity": (0.0, 2.0), "strategies": (0.0, 4.0), "length": (0.0, 1e6)}
_COLUMNS = (
    *("acc@1", *_PASSES),
    *("diversity", "strategies", "fidelity", "unrecognised"),
)

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

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmValues:
    """What an arm showed: temperature -> measure -> [S, P] values of S seeds and P problems."""

    arm: Arm
    values: Mapping[str, Mapping[str, Floats]]

    def over_seeds(self, measure: str, temperature: str = _AT_1) -> Floats:
        """[P] mean of the seeds that have a value."""
        rows = self.values[temperature][measure]
        known = ~np.isnan(rows)
        sums = np.where(known, rows, 0.0).sum(axis=0)
        counts = known.sum(axis=0)
        means: Floats = np.full(sums.shape, np.nan)
        np.divide(sums, counts, out=means, where=counts > 0)
        return means

    def mean(self, measure: str, temperature: str = _AT_1) -> float:
        """Mean over seeds and problems."""
        return float(np.nanmean(self.over_seeds(measure, temperature)))

    def interval(self, measure: str, temperature: str = _AT_1) -> tuple[float, float]:
        """95 % interval of the mean over problems."""
        values = self.over_seeds(measure, temperature)
        values = values[~np.isnan(values)]
        interval = score_interval([values], bounds=_BOUNDS.get(measure, (0.0, 1.0)))
        low, high = interval.low, interval.high
        return interval.value if low is None else low, interval.value if high is None else high

    def half_range(self, measure: str, temperature: str = _AT_1) -> float:
        """Of the seeds' means."""
        return float(np.ptp(np.nanmean(self.values[temperature][measure], axis=1)) / 2)

    def best(self, measure: str) -> str:
        """The temperature at which the mean is highest."""
        return max(self.values, key=lambda temperature: self.mean(measure, temperature))


def write_tables(study: Study, tasks: Sequence[str]) -> str:
    """Write `tables.md` and `study.png`; the tables as text.

    Args:
        study: whose finished runs are read; arms with a seed missing are left out and named.
        tasks: in order.
    """
    parts = []
    by_task = {}
    for task in tasks:
        by_task[task], missing = read_task(study, task)
        parts.append(task_tables(study, task, by_task[task], missing))
    text = "\n\n".join(parts) + "\n"
    write_text(study.folder / "tables.md", text)
    _draw(study, by_task, study.folder / "study.png")
    return text


def read_task(study: Study, task: str) -> tuple[dict[str, ArmValues], list[str]]:
    """What the arms with all their seeds showed, by name, and the names of the others."""
    arms, missing = {}, []
    for arm in study.arms:
        folders = [study.config(task, arm, seed).run_dir for seed in study.seeds]
        if not all(map(is_done, folders)):
            missing.append(arm.name)
            continue
        files = [json.loads(values_file(folder).read_text()) for folder in folders]
        arms[arm.name] = ArmValues(
            arm=arm,
            values={
                temperature: {
                    measure: np.array([file[temperature][measure] for file in files], np.float64)
                    for measure in files[0][temperature]
                }
                for temperature in files[0]
            },
        )
    return arms, missing


def task_tables(
    study: Study, task: str, arms: Mapping[str, ArmValues], missing: Sequence[str]
) -> str:
    """The tables of one task, in Markdown."""
    at_1 = [
        [_title(study, task, s), *(_cell(s, column) for column in _COLUMNS)] for s in arms.values()
    ]
    best = [[_title(study, task, s), *(_best_cell(s, k) for k in KS)] for s in arms.values()]
    base = arms.get(GRPO)
    against = (
        []
        if base is None
        else [
            [
                _title(study, task, s),
                *(_difference(s, base, column) for column in ("acc@1", *_PASSES)),
            ]
            for s in arms.values()
            if s is not base
        ]
    )
    tables = [
        f"### {task}: samples at T=1",
        markdown_table(["", *_COLUMNS], at_1),
        f"### {task}: each k at its best of T = {', '.join(f'{t:g}' for t in TEMPERATURES)}",
        markdown_table(["", *_PASSES], best),
        f"### {task}: difference to GRPO at T=1, problem by problem",
        markdown_table(["", "acc@1", *_PASSES], against),
    ]
    if missing:
        tables.append(f"Without runs at every seed: {', '.join(missing)}.")
    return "\n\n".join(tables)


def _title(study: Study, task: str, values: ArmValues) -> str:
    title, stop = values.arm.title, stop_of(study, task, values.arm)
    return title if stop in (0, study.steps) else f"{title} (step {stop})"


def _cell(values: ArmValues, measure: str) -> str:
    low, high = values.interval(measure)
    digits = 2 if measure == "strategies" else 3
    return (
        f"{_number(values.mean(measure), digits)} ({_number(low, digits)} to "
        f"{_number(high, digits)}) +-{_number(values.half_range(measure), digits)}"
    )


def _best_cell(values: ArmValues, k: int) -> str:
    temperature = values.best(f"pass@{k}")
    low, high = values.interval(f"pass@{k}", temperature)
    mean = values.mean(f"pass@{k}", temperature)
    return f"{_number(mean)} ({_number(low)} to {_number(high)}), T={temperature}"


def _difference(arm: ArmValues, base: ArmValues, measure: str) -> str:
    """Mean difference and its 95 % interval over problems; marked where it leaves out 0."""
    values = arm.over_seeds(measure) - base.over_seeds(measure)
    interval = score_interval([values], bounds=(-1.0, 1.0))
    low, high = interval.low or 0.0, interval.high or 0.0
    mark = "**" if low > 0.0 or high < 0.0 else ""
    return f"{mark}{interval.value:+.3f}{mark} ({low:+.3f} to {high:+.3f})"


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".removeprefix("0") if 0.0 <= value < 1.0 else f"{value:.{digits}f}"


def _draw(study: Study, by_task: Mapping[str, Mapping[str, ArmValues]], path: Path) -> None:
    """One row of three plots a task: pass@k, one sample against four, the course of training."""
    figure = Figure(figsize=(13.0, 4.0 * len(by_task)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(by_task), 3, squeeze=False)
    for row, (task, arms) in zip(grid, by_task.items(), strict=True):
        _pass_curves(row[0], task, arms)
        _trade(row[1], task, arms)
        _course(row[2], study, task)
    figure.savefig(path, dpi=110)


def _pass_curves(axes: Axes, task: str, arms: Mapping[str, ArmValues]) -> None:
    for name, colour in _COLOURS.items():
        values = arms.get(name)
        if values is None:
            continue
        ks = sorted(int(m[5:]) for m in values.values[_AT_1] if m.startswith("pass@"))
        low, high = np.transpose([values.interval(f"pass@{k}") for k in ks])
        means = [values.mean(f"pass@{k}") for k in ks]
        axes.plot(ks, means, color=colour, label=values.arm.title)
        axes.fill_between(ks, low, high, color=colour, alpha=0.1, linewidth=0)
    axes.set(title=f"{task}: pass@k at T=1, 95 % bands", xlabel="k", ylabel="share of problems")
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.legend(fontsize=7)
    axes.grid(alpha=0.2)


def _trade(axes: Axes, task: str, arms: Mapping[str, ArmValues]) -> None:
    for name, values in arms.items():
        x, y = values.mean("pass@1"), values.mean("pass@4")
        colour = _COLOURS.get(name, "#b0b4b8")
        axes.errorbar(
            x,
            y,
            xerr=values.half_range("pass@1"),
            yerr=values.half_range("pass@4"),
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


def _course(axes: Axes, study: Study, task: str) -> None:
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
