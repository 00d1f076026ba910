"""The study that all workers of a sweep share: made once, its trials claimed one by one.

    <run.storage_path>/<name>/
      journal.log        Optuna's records, where no database is given
      trials/<number>/   the run of each trial
      workers/<number>   held by a living worker
      lock               held while a worker makes the study or claims a trial
      sweep.html, best.yaml

Workers are processes, on one host or on several that share the folder.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.trial import TrialState

from mupo_ray.errors import SweepError
from mupo_ray.settings.load import differences, leaves
from mupo_ray.tune.expression import parse_objectives
from mupo_ray.tune.space import SearchSpace, values_of
from mupo_ray.tune.storage import held, is_held, open_storage, retry_callback

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from filelock import FileLock
    from optuna.trial import FrozenTrial

    from mupo_ray.config import Config
    from mupo_ray.tune.expression import Expression
    from mupo_ray.tune.spec import SweepConfig

# Attributes of a trial.
RUN = "run"
"""Its run's folder below `trials/`: that of the interrupted trial where it goes on with one."""
WORKER = "worker"
REASON = "reason"
"""Why it was pruned or failed."""
WALL_S = "wall_s"
START_UP_S = "start_up_s"
"""Of the wall time, what was spent in no step, evaluation or checkpoint."""

_LOCK_FILE, _WORKERS = "lock", "workers"
_IDENTITY = "mupo_ray"
"""The study's attribute that says what it searches."""
# May change between the starts of a sweep.
_NOT_IDENTITY = ("run.name", "run.storage_path", "tracking.", "checkpoint.", "placement.", "sync.")


class Move(Enum):
    """What a worker may do next."""

    TRAIN = auto()
    WAIT = auto()
    """All trials are claimed; some are running, and come back if their worker dies."""
    END = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep as one worker sees it."""

    config: SweepConfig
    base: Config
    space: SearchSpace
    objectives: tuple[Expression, ...]
    folder: Path
    study: optuna.Study
    worker: int
    """Number of this worker, counted over all starts."""

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials that began or are queued, by number."""
        return self.study.get_trials(deepcopy=False)

    def run_dir(self, trial: FrozenTrial) -> Path:
        """Folder of a trial's run."""
        return self.folder / "trials" / str(trial.user_attrs.get(RUN, trial.number))

    def locked(self) -> AbstractContextManager[FileLock]:
        """Nobody else makes the study or claims a trial meanwhile."""
        return held(self.folder / _LOCK_FILE)

    def living(self) -> AbstractContextManager[FileLock]:
        """Says that this worker lives, as long as it does."""
        return held(_worker_file(self.folder, self.worker))

    def next_move(self) -> Move:
        """What to do next; the lock must be held.

        Trials of workers that died are queued again first.

        Raises:
            SweepError: enough trials failed, and none succeeded.
        """
        self._revive()
        trials = self.trials
        counted = counted_trials(trials)
        failed = [t for t in counted if t.state is TrialState.FAIL]
        ended = [t for t in counted if t.state.is_finished()]
        if failed == ended and len(failed) >= self.config.max_failures:
            raise no_success(counted)
        is_queued = any(t.state is TrialState.WAITING for t in trials)
        is_open = self.config.sampler.name != "grid" or is_queued
        if len(counted) < self.config.trials and is_open:
            return Move.TRAIN
        return Move.END if len(ended) == len(counted) else Move.WAIT

    def _revive(self) -> None:
        """Queue the trials of dead workers again; with a database Optuna does, by heartbeats."""
        if self.config.storage is not None:
            optuna.storages.fail_stale_trials(self.study)
            return
        for trial in self.trials:
            # Who claims a trial says so before it lets go of the lock.
            if trial.state is not TrialState.RUNNING or (
                WORKER in trial.user_attrs
                and is_held(_worker_file(self.folder, trial.user_attrs[WORKER]))
            ):
                continue
            try:
                self.study.tell(trial.number, state=TrialState.FAIL)
            except (UpdateFinishedTrialError, ValueError):
                continue  # it was told meanwhile
            retry_callback(self.config)(self.study, trial)


def open_sweep(config: SweepConfig, base: Config) -> Sweep:
    """Open a sweep, made by whoever comes first.

    Args:
        config: the sweep.
        base: the configuration it varies.

    Raises:
        ConfigError: the search, an objective or the storage's address is wrong.
        SweepError: the storage cannot be reached, or holds another sweep of this name.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
    objectives = parse_objectives(config.objectives, base)
    space = SearchSpace(config.search, base, baseline=config.baseline)
    queued = [space.baseline()] if config.baseline else []
    if config.sampler.name == "grid":
        queued += [point for point in space.grid() if point not in queued]
    folder = base.run_dir.parent / config.name
    with held(folder / _LOCK_FILE):
        storage = open_storage(config, folder)
        worker = _next_number(folder)
        study = optuna.create_study(
            storage=storage,
            study_name=config.name,
            directions=[o.direction for o in config.objectives],
            # Two workers should not draw the same points.
            sampler=config.sampler.make(config.seed + worker),
            pruner=config.pruner.make(base.train.num_steps),
            load_if_exists=True,
        )
        _check_identity(study, _identity(config, base), queued)
    return Sweep(
        config=config,
        base=base,
        space=space,
        objectives=objectives,
        folder=folder,
        study=study,
        worker=worker,
    )


def successors(trials: Sequence[FrozenTrial]) -> dict[int, int]:
    """Interrupted trial -> the one that goes on with it."""
    after: dict[int, int] = {}
    for trial in trials:
        for number in trial.system_attrs.get("retry_history", ()):
            after.setdefault(number, trial.number)
    return after


def counted_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Those that count towards the sweep's number: begun, and not gone on with by another."""
    after = successors(trials)
    return [t for t in trials if t.state is not TrialState.WAITING and t.number not in after]


def no_success(trials: Sequence[FrozenTrial]) -> SweepError:
    """What there is to say of a sweep without one finished trial."""
    reasons: dict[str, list[int]] = {}
    for trial in trials:
        reasons.setdefault(trial.user_attrs.get(REASON) or "its worker died", []).append(
            trial.number
        )
    text = "; ".join(f"trial {', '.join(map(str, n))}: {why}" for why, n in reasons.items())
    return SweepError(f"no trial succeeded, of {len(trials)}: {text}")


def _worker_file(folder: Path, worker: int) -> Path:
    """What a living worker holds."""
    return folder / _WORKERS / str(worker)


def _next_number(folder: Path) -> int:
    """A number that no worker of this sweep had; the lock must be held."""
    workers = folder / _WORKERS
    workers.mkdir(parents=True, exist_ok=True)
    number = len(list(workers.iterdir()))
    (workers / str(number)).touch()
    return number


def _identity(config: SweepConfig, base: Config) -> dict[str, Any]:
    dumped = json.loads(config.model_dump_json(include={"search", "objectives"}))
    # Paths have dots of their own.
    search = {
        f"search.{path}.{field}": value
        for path, domain in dumped["search"].items()
        for field, value in domain.items()
    }
    judged = leaves({str(i): o for i, o in enumerate(dumped["objectives"])}, "objectives")
    fixed = {
        path: value for path, value in values_of(base).items() if not path.startswith(_NOT_IDENTITY)
    }
    return search | judged | fixed


def _check_identity(
    study: optuna.Study, identity: dict[str, Any], queued: Sequence[dict[str, Any]]
) -> None:
    """Whether the study is this sweep's; a new one gets its first trials (the lock is held)."""
    before = study.user_attrs.get(_IDENTITY)
    if before is None:
        for point in queued:
            study.enqueue_trial(point, skip_if_exists=True)
        study.set_user_attr(_IDENTITY, identity)
        return
    if changes := differences(before, identity):
        raise SweepError(
            f"the storage holds a study {study.study_name} of another search ({changes}); choose "
            "another name, or the same search to go on with it"
        )
