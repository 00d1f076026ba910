"""A finished (or running) run in figures: what the base model scored, the end, and time a step."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mupo_ray.errors import CheckpointError
from mupo_ray.files import read_jsonl
from mupo_ray.text import number, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STAGES = ("rollout", "update", "embed", "judge", "score", "encode", "sync")
"""Stages of a step with a metric `time/<stage>_s`; the rest of `time/step_s` is `other`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """What a run's folder says, read once."""

    folder: Path
    rows: tuple[dict[str, float], ...]
    """Lines of `metrics.jsonl` in order, `step` among the keys; what was null is left out."""
    record: dict[str, Any]
    """`run.json`; empty where there is none."""

    @property
    def eval_set(self) -> str | None:
        """Name of the evaluation set: the config's, else the first in the metrics."""
        names = [key.split("/")[1] for row in self.rows for key in row if key.startswith("eval/")]
        configured = self.record.get("config", {}).get("eval", {}).get("name")
        return configured if configured in names else next(iter(names), None)

    @property
    def last_step(self) -> int:
        """Finished steps; 0 without any."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric, where it was logged."""
        logged = [row for row in self.rows if key in row]
        return [int(row["step"]) for row in logged], [row[key] for row in logged]

    def eval_rows(self) -> list[tuple[int, dict[str, float]]]:
        """Step and figures (names without `eval/<set>/`) of each evaluation."""
        prefix = f"eval/{self.eval_set}/"
        evaluations = []
        for row in self.rows:
            figures = {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
            if figures:
                evaluations.append((int(row["step"]), figures))
        return evaluations


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One evaluation; None where it was not measured."""

    step: int | None = None
    """Finished training steps of the weights evaluated."""
    acc_1: float | None = None
    acc_1_sampled: float | None = None
    acc_4: float | None = None
    pass_k: dict[int, float] = field(default_factory=dict)
    """k -> unbiased pass@k."""
    diversity: float | None = None
    effective_strategies: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the names of `summary.json`."""
        return {
            "acc@1": self.acc_1,
            "acc@1_sampled": self.acc_1_sampled,
            "acc@4": self.acc_4,
            "pass@k": {str(k): value for k, value in self.pass_k.items()},
            "diversity": self.diversity,
            "effective_strategies": self.effective_strategies,
        }

    def by_name(self) -> dict[str, float | None]:
        """Every figure by the name it has among a set's metrics, in a table's order."""
        plain = self.as_dict()
        # pass@1 is acc@1_sampled by definition.
        passes = {f"pass@{k}": value for k, value in sorted(self.pass_k.items()) if k > 1}
        return {
            **{name: plain[name] for name in ("acc@1", "acc@1_sampled", "acc@4")},
            **passes,
            **{name: plain[name] for name in ("diversity", "effective_strategies")},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in figures."""

    steps: int
    """Finished training steps."""
    base: Figures
    """The model that training started from."""
    final: Figures
    """The last evaluation after at least one step; empty where there was none."""
    step_s: dict[str, float]
    """`median` of a step in seconds, and the median of each stage in it; empty without steps."""


def read_run(run_dir: Path) -> RunFiles:
    """Read a run's metrics and record; a line that a running job is writing is left out.

    Raises:
        CheckpointError: the folder is not that of a run, or holds a broken file.
    """
    path = run_dir / "metrics.jsonl"
    if not path.is_file():
        what = "has no metrics.jsonl" if run_dir.is_dir() else "does not exist"
        raise CheckpointError(f"{run_dir} {what}; expected the folder of a run, such as runs/mupo")
    try:
        rows = [{k: v for k, v in row.items() if v is not None} for row in read_jsonl(path)]
    except ValueError as err:
        raise CheckpointError(str(err)) from err
    for place, row in enumerate(rows, 1):
        if "step" not in row:
            raise CheckpointError(f"{path}:{place}: no step; expected the metrics of a step")
    return RunFiles(folder=run_dir, rows=tuple(rows), record=_record(run_dir / "run.json"))


def summarise_run(run_dir: Path) -> RunSummary:
    """Figures of a run from its `metrics.jsonl`.

    Raises:
        CheckpointError: the folder is not that of a run.
    """
    return summarise(read_run(Path(run_dir)))


def summarise(run: RunFiles) -> RunSummary:
    """As `summarise_run`, from what was read already."""
    final = figures_at(run, run.last_step)
    return RunSummary(
        steps=run.last_step,
        base=figures_at(run, 0),
        final=final if final.step != 0 else Figures(),
        step_s=_step_times(run.rows),
    )


def figures_at(run: RunFiles, step: int) -> Figures:
    """The last evaluation at this step or before it; empty where there was none."""
    return next((_figures(*e) for e in reversed(run.eval_rows()) if e[0] <= step), Figures())


def stage_seconds(row: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each stage of one step, `other` being what is left of the step."""
    spent = {stage: row[f"time/{stage}_s"] for stage in STAGES if f"time/{stage}_s" in row}
    return {**spent, "other": max(0.0, row["time/step_s"] - sum(spent.values()))}


def base_columns(summaries: Mapping[str, RunSummary]) -> dict[str, Figures]:
    """The base model's figures: one column where all runs measured the same, else one a run."""
    bases = {name: s.base for name, s in summaries.items() if s.base.step is not None}
    first = next(iter(bases.values()), None)
    if first is None:
        return {}
    if all(figures == first for figures in bases.values()):
        return {"base": first}
    return {f"base of {name}": figures for name, figures in bases.items()}


def figure_order(name: str) -> tuple[int, int]:
    """Sort key that puts figures in a table's order."""
    if name.startswith("pass@"):
        return 3, int(name.removeprefix("pass@"))
    order = ("acc@1", "acc@1_sampled", "acc@4", "pass", "diversity", "effective_strategies")
    return order.index(name), 0


def comparison_table(runs: Mapping[str, Path]) -> str:
    """Figures of runs side by side, the base model first, aligned for a terminal.

    Args:
        runs: name -> folder of the run.

    Raises:
        CheckpointError: a folder is not that of a run.
    """
    summaries = {name: summarise_run(path) for name, path in runs.items()}
    columns = {**base_columns(summaries), **{n: s.final for n, s in summaries.items()}}
    names = dict.fromkeys(name for figures in columns.values() for name in figures.by_name())
    ordered = sorted(names, key=figure_order)
    cells = [
        [name, *(number(figures.by_name().get(name)) for figures in columns.values())]
        for name in ordered
    ]
    cells.append(["steps", *(number(figures.step, ".0f") for figures in columns.values())])
    for key in dict.fromkeys(key for s in summaries.values() for key in s.step_s):
        values = [summaries[n].step_s.get(key) if n in summaries else None for n in columns]
        label = "s/step, median" if key == "median" else f"  {key}"
        cells.append([label, *(number(value, ".2f") for value in values)])
    return table([["", *columns], *cells], least=7)


def _figures(step: int, values: Mapping[str, float]) -> Figures:
    passes = {int(k[5:]): v for k, v in values.items() if k.startswith("pass@")}
    return Figures(
        step=step,
        acc_1=values.get("acc@1"),
        acc_1_sampled=values.get("acc@1_sampled"),
        acc_4=values.get("acc@4"),
        pass_k=dict(sorted(passes.items())),
        diversity=values.get("diversity"),
        effective_strategies=values.get("effective_strategies"),
    )


def _step_times(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    timed = [row for row in rows if "time/step_s" in row]
    if not timed:
        return {}
    stages = [stage_seconds(row) for row in timed]
    medians = {
        stage: statistics.median(s.get(stage, 0.0) for s in stages)
        for stage in (*STAGES, "other")
        if any(stage in s for s in stages)
    }
    return {"median": statistics.median(row["time/step_s"] for row in timed), **medians}


def _record(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as err:
        raise CheckpointError(f"{path}: {err}; expected the record of a run") from err
    if not isinstance(record, dict):
        raise CheckpointError(f"{path}: got {type(record).__name__}, expected a JSON object")
    return record
