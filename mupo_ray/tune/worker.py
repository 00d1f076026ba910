"""One worker of a sweep: claims a trial, trains it as an ordinary run, tells its value.

    lock -> dead workers' trials queued again -> claim -> let go
                  -> Config of the trial -> trainer trains it ------> value, pruned or failed
                        metrics.jsonl, line by line -> pruner -> trainer stops it

A trial that fails says why and is not fatal to the sweep; one whose worker is interrupted or killed
is queued again, and goes on from its run's checkpoint.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Protocol

import optuna
from optuna.trial import TrialState

from mupo_ray.errors import ConfigError, MupoError
from mupo_ray.files import read_jsonl
from mupo_ray.train.entry import early_stop
from mupo_ray.tune.objective import value_in
from mupo_ray.tune.storage import retry_callback
from mupo_ray.tune.study import (
    REASON,
    RUN,
    START_UP_S,
    WALL_S,
    WORKER,
    Move,
    Sweep,
    counted_trials,
    living,
    no_success,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mupo_ray.config import Config

# The checkpoint at a run's end has no line after it, and is missing.
_WORK = ("time/step_s", "time/eval_s", "time/checkpoint_s")
_POLL_S = 0.5
_WAIT_S = 2.0


class Trainer(Protocol):
    """Trains the runs of a worker one after another, and keeps what they share."""

    def prepare(self, config: Config, still_wanted: Callable[[], bool]) -> None:
        """Get what such runs need, or return once they are not wanted any more.

        Raises:
            MupoError: it can never be had.
        """
        ...

    def train(self, config: Config) -> None:
        """Train a run to its end.

        Raises:
            MupoError: whatever kept it from its end.
        """
        ...

    def stop(self, reason: str) -> None:
        """End the run that is being trained; called from another thread."""
        ...

    def let_go(self) -> None:
        """Give back what the runs share."""
        ...


class _TrialFailedError(Exception):
    """A trial ended without a value; its reason is with the trial."""


class Watcher(Protocol):
    """Shows a sweep while it goes on."""

    def show(self, sweep: Sweep) -> None:
        """Show where the trials stand."""
        ...

    def say(self, line: str) -> None:
        """Show a line."""
        ...

    def ended(self, sweep: Sweep, number: int) -> None:
        """A trial of this worker has ended."""
        ...


def work(sweep: Sweep, trainer: Trainer, watcher: Watcher) -> None:
    """Train trials until the sweep has all of them, or this worker is out of time.

    Raises:
        SweepError: no trial succeeded.
        MupoError: no run can be trained here.
    """
    minutes = sweep.config.minutes
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    waits_for: list[int] | None = None
    with living(sweep):
        while True:
            with sweep.lock:
                move = sweep.next_move()
            watcher.show(sweep)
            if move is Move.END:
                break
            if time.monotonic() > deadline:
                watcher.say(f"out of time after {minutes:g} minutes; start again to go on")
                return
            if move is Move.WAIT:
                trainer.let_go()
                running = [t.number for t in sweep.trials if t.state is TrialState.RUNNING]
                if running != waits_for:
                    numbers = ", ".join(map(str, running))
                    watcher.say(f"all trials are taken; waiting for the end of {numbers}")
                    waits_for = running
                time.sleep(_WAIT_S)
                continue
            trainer.prepare(sweep.base, lambda: _is_wanted(sweep))
            number = _claim_and_train(sweep, trainer, watcher)
            if number is not None:
                watcher.ended(sweep, number)
    counted = counted_trials(sweep.trials)
    if not any(t.state is TrialState.COMPLETE for t in counted):
        raise no_success(counted)


def _is_wanted(sweep: Sweep) -> bool:
    with sweep.lock:
        return sweep.next_move() is Move.TRAIN


def _claim_and_train(sweep: Sweep, trainer: Trainer, watcher: Watcher) -> int | None:
    """Train the next trial; its number, or None where others have taken the last."""
    numbers: list[int] = []

    def objective(trial: optuna.Trial) -> float | list[float]:
        numbers.append(trial.number)
        trial.set_user_attr(RUN, trial.user_attrs.get(RUN, str(trial.number)))
        trial.set_user_attr(WORKER, sweep.worker)
        # A retried trial comes with the attributes of the one before.
        trial.set_user_attr(REASON, None)
        sweep.lock.let_go()
        return _train(sweep, trial, trainer, watcher)

    with sweep.lock:
        if sweep.next_move() is not Move.TRAIN:
            return None
        try:
            sweep.study.optimize(objective, n_trials=1, catch=(_TrialFailedError,))
        except KeyboardInterrupt:
            # Optuna calls it failed.
            if numbers:
                retry_callback(sweep.config)(sweep.study, sweep.trials[numbers[0]])
            raise
    return numbers[0]


def _train(
    sweep: Sweep, trial: optuna.Trial, trainer: Trainer, watcher: Watcher
) -> float | list[float]:
    began = time.monotonic()
    course = None
    try:
        place = {
            "run.name": trial.user_attrs[RUN],
            "run.storage_path": str(sweep.folder / "trials"),
        }
        config = sweep.space.config(sweep.space.sample(trial) | place)
        course = Course(sweep, trial, config)
        with ThreadPoolExecutor(1, thread_name_prefix="trial") as pool:
            _follow(sweep, pool.submit(trainer.train, config), course, trainer, watcher)
        if (reason := early_stop(config.run_dir)) is not None:
            raise _pruned(sweep, trial, reason)
        return course.values()
    except (MupoError, _TrialFailedError) as err:
        trial.set_user_attr(REASON, str(err).partition("\n")[0])
        raise _TrialFailedError(str(err)) from err
    finally:
        wall_s = time.monotonic() - began
        trial.set_user_attr(WALL_S, wall_s)
        trial.set_user_attr(START_UP_S, wall_s - (course.work_s() if course else 0.0))


def _pruned(sweep: Sweep, trial: optuna.Trial, reason: str) -> Exception:
    if len(sweep.objectives) > 1:
        # Optuna knows no pruned trials of several objectives.
        return _TrialFailedError(reason)
    trial.set_user_attr(REASON, reason)
    return optuna.TrialPruned(reason)


def _follow(
    sweep: Sweep, run: Future[None], course: Course, trainer: Trainer, watcher: Watcher
) -> None:
    """Report a run's evaluations until it has ended, and stop it where it should be pruned."""
    is_stopped = False
    try:
        while not run.done():
            wait([run], timeout=_POLL_S)
            reason = course.look()
            if reason is not None and not is_stopped and not run.done():
                trainer.stop(reason)
                is_stopped = True
            watcher.show(sweep)
    except BaseException:
        trainer.stop("its worker was interrupted")
        raise
    run.result()
    course.look()


class Course:
    """The metrics of a trial's run, as they are written."""

    def __init__(self, sweep: Sweep, trial: optuna.Trial, config: Config) -> None:
        self._sweep = sweep
        self._trial = trial
        self._file = config.run_dir / "metrics.jsonl"
        self._before = read_jsonl(self._file)
        self._last_step = 0

    def look(self) -> str | None:
        """Report what is new; why the run should end, where it should."""
        if len(self._sweep.objectives) > 1:
            return None
        for row in read_jsonl(self._file):
            step = int(row["step"])
            value = value_in(self._sweep.objectives[0], row)
            # Step 0 is the base model's, the same for all trials.
            if step <= self._last_step or value is None:
                continue
            self._last_step = step
            self._trial.report(value, step)
            if self._trial.should_prune():
                pruner = self._sweep.config.pruner.name
                return f"pruned ({pruner}) at {value:.4g}"
        return None

    def values(self) -> float | list[float]:
        """The objectives at the end of the run.

        Raises:
            ConfigError: one was never measured, or is not finite.
        """
        rows = read_jsonl(self._file)
        found = []
        for expression in self._sweep.objectives:
            values = [v for row in rows if (v := value_in(expression, row)) is not None]
            if not values:
                raise ConfigError(f"no line of {self._file} has all of {expression.text}")
            if not math.isfinite(values[-1]):
                raise ConfigError(f"{expression.text} is {values[-1]} at the end of the run")
            found.append(values[-1])
        return found if len(found) > 1 else found[0]

    def work_s(self) -> float:
        """Seconds in steps, evaluations and checkpoints since the trial began."""
        before = [dict[str, Any](row) for row in self._before]
        new = [row for row in read_jsonl(self._file) if row not in before]
        return float(sum(row.get(key) or 0.0 for row in new for key in _WORK))
