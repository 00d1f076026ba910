"""The trials of a sweep as people read them: in the terminal, and in `sweep.html`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState

from mupo_ray.tune.study import REASON, START_UP_S, WALL_S, superseded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from optuna.trial import FrozenTrial

    from mupo_ray.tune.study import Sweep

_STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "queued",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trial."""

    number: int
    state: str
    is_best: bool
    values: tuple[float | None, ...]
    """Of the objectives; of a running or pruned trial the last evaluation's."""
    params: dict[str, str]
    step: int | None
    """Last step with an evaluation of the objective."""
    wall_s: float | None
    start_up_s: float | None
    note: str
    run_dir: Path

    @property
    def start_up_frac(self) -> float | None:
        """Share of the time that was spent in no step, evaluation or checkpoint."""
        if not self.wall_s or self.start_up_s is None:
            return None
        return self.start_up_s / self.wall_s


def rows_of(sweep: Sweep) -> list[Row]:
    """Every trial, by number."""
    trials = sweep.trials
    best = {t.number for t in best_trials(sweep)}
    gone = superseded(trials)
    return [_row(sweep, trial, trial.number in best, trial.number in gone) for trial in trials]


def best_trials(sweep: Sweep) -> list[FrozenTrial]:
    """The best one, or with several objectives those of the Pareto front, best in the first first.

    Of equal ones the earliest comes first.
    """
    if not any(t.state is TrialState.COMPLETE for t in sweep.trials):
        return []
    if len(sweep.objectives) == 1:
        return [sweep.study.best_trial]
    sign = -1 if sweep.config.objectives[0].direction == "maximize" else 1
    return sorted(sweep.study.best_trials, key=lambda t: (sign * t.values[0], t.number))


def start_up_share(rows: Sequence[Row]) -> tuple[float, float] | None:
    """(seconds of start-up, their share of all time) over trials; None before the first."""
    timed = [(r.start_up_s, r.wall_s) for r in rows if r.wall_s and r.start_up_s is not None]
    if not timed:
        return None
    start_up_s = sum(s for s, _ in timed)
    return start_up_s, start_up_s / sum(w for _, w in timed)


def _row(sweep: Sweep, trial: FrozenTrial, is_best: bool, is_gone: bool) -> Row:
    attrs = trial.user_attrs
    step = trial.last_step
    values: tuple[float | None, ...] = (None,) * len(sweep.objectives)
    if trial.state is TrialState.COMPLETE:
        values = tuple(trial.values)
    elif step is not None:
        values = (trial.intermediate_values[step],)
    return Row(
        number=trial.number,
        state="interrupted" if is_gone else _STATES[trial.state],
        is_best=is_best,
        values=values,
        params={name: shown(value) for name, value in trial.params.items()},
        step=step,
        wall_s=attrs.get(WALL_S) if trial.state.is_finished() and not is_gone else None,
        start_up_s=attrs.get(START_UP_S) if trial.state.is_finished() and not is_gone else None,
        note=_note(sweep, trial),
        run_dir=sweep.run_dir(trial),
    )


def _note(sweep: Sweep, trial: FrozenTrial) -> str:
    history = trial.system_attrs.get("retry_history", ())
    after = [t.number for t in sweep.trials if trial.number in _history(t)]
    parts = [trial.user_attrs.get(REASON)] if trial.state.is_finished() else []
    if after:
        parts = [f"interrupted, taken up as trial {after[0]}"]
    if history:
        parts.append(f"goes on with trial {history[-1]}")
    return "; ".join(part for part in parts if part)


def _history(trial: FrozenTrial) -> Sequence[int]:
    return trial.system_attrs.get("retry_history", ())  # type: ignore[no-any-return]


def shown(value: Any) -> str:
    """A value of a configuration in a few characters."""
    return f"{value:.3g}" if isinstance(value, float) else json.dumps(value).strip('"')


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Path -> it without its section, where that tells it from the others."""
    short = {path: path.partition(".")[2] for path in paths}
    counts = Counter(short.values())
    return {path: name if counts[name] == 1 else path for path, name in short.items()}
