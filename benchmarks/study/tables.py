"""Tables and one figure of a study, out of what each run showed on the test set.

A cell is the mean over seeds and problems. Its interval is over problems, each with the mean of its
seeds; `+-` is half the range of the seeds' means.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mupo_ray.core.intervals import score_interval
from study.figure import draw
from study.plan import GRPO, TEMPERATURES, Arm, Study
from study.run import is_done, stop_of, values_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KS = (1, 2, 4, 8)
_AT_1 = "1"
_BOUNDS = {"diversity": (0.0, 2.0), "strategies": (0.0, 4.0), "length": (0.0, 1e6)}
_COLUMNS = (
    *("acc@1", *(f"pass@{k}" for k in KS)),
    *("diversity", "strategies", "fidelity", "unrecognised"),
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
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
        found = score_interval([values], bounds=_BOUNDS.get(measure, (0.0, 1.0)))
        return (found.value if found.low is None else found.low), (
            found.value if found.high is None else found.high
        )

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
    seen_of = {}
    for task in tasks:
        seen, missing = read_task(study, task)
        seen_of[task] = seen
        parts.append(task_tables(study, task, seen, missing))
    text = "\n\n".join(parts) + "\n"
    (study.folder / "tables.md").write_text(text, encoding="utf-8")
    draw(study, seen_of, study.folder / "study.png")
    return text


def read_task(study: Study, task: str) -> tuple[dict[str, Seen], list[str]]:
    """What the arms with all their seeds showed, by name, and the names of the others."""
    seen, missing = {}, []
    for arm in study.arms:
        folders = [study.config(task, arm, seed).run_dir for seed in study.seeds]
        if not all(map(is_done, folders)):
            missing.append(arm.name)
            continue
        files = [json.loads(values_file(folder).read_text()) for folder in folders]
        seen[arm.name] = Seen(
            arm=arm,
            values={
                temperature: {
                    measure: np.array([file[temperature][measure] for file in files], np.float64)
                    for measure in files[0][temperature]
                }
                for temperature in files[0]
            },
        )
    return seen, missing


def task_tables(study: Study, task: str, seen: Mapping[str, Seen], missing: Sequence[str]) -> str:
    """The tables of one task, in Markdown."""
    at_1 = [
        [_title(study, task, s), *(_cell(s, column) for column in _COLUMNS)] for s in seen.values()
    ]
    best = [[_title(study, task, s), *(_best_cell(s, k) for k in KS)] for s in seen.values()]
    base = seen.get(GRPO)
    against = (
        []
        if base is None
        else [
            [
                _title(study, task, s),
                *(_difference(s, base, column) for column in ("acc@1", *_PASSES)),
            ]
            for s in seen.values()
            if s is not base
        ]
    )
    tables = [
        f"### {task}: samples at T=1",
        _table(["", *_COLUMNS], at_1),
        f"### {task}: each k at its best of T = {', '.join(f'{t:g}' for t in TEMPERATURES)}",
        _table(["", *_PASSES], best),
        f"### {task}: difference to GRPO at T=1, problem by problem",
        _table(["", "acc@1", *_PASSES], against),
    ]
    if missing:
        tables.append(f"Without runs at every seed: {', '.join(missing)}.")
    return "\n\n".join(tables)


_PASSES = tuple(f"pass@{k}" for k in KS)


def _title(study: Study, task: str, seen: Seen) -> str:
    stop = stop_of(study, task, seen.arm)
    return seen.arm.title if stop in (0, study.steps) else f"{seen.arm.title} (step {stop})"


def _cell(seen: Seen, measure: str) -> str:
    low, high = seen.interval(measure)
    digits = 2 if measure == "strategies" else 3
    return (
        f"{_number(seen.mean(measure), digits)} ({_number(low, digits)} to "
        f"{_number(high, digits)}) +-{_number(seen.half_range(measure), digits)}"
    )


def _best_cell(seen: Seen, k: int) -> str:
    temperature = seen.best(f"pass@{k}")
    low, high = seen.interval(f"pass@{k}", temperature)
    mean = seen.mean(f"pass@{k}", temperature)
    return f"{_number(mean)} ({_number(low)} to {_number(high)}), T={temperature}"


def _difference(seen: Seen, base: Seen, measure: str) -> str:
    """Mean difference and its 95 % interval over problems; marked where it leaves out 0."""
    values = seen.over_seeds(measure) - base.over_seeds(measure)
    found = score_interval([values], bounds=(-1.0, 1.0))
    low, high = found.low or 0.0, found.high or 0.0
    mark = "**" if low > 0.0 or high < 0.0 else ""
    return f"{mark}{found.value:+.3f}{mark} ({low:+.3f} to {high:+.3f})"


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".removeprefix("0") if 0.0 <= value < 1.0 else f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
