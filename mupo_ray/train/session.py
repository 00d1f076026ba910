"""Services and train workers that train one run after another: short runs are not mostly start-up.

    driver                               board (an actor)            rank 0 of the workers
      run_training(config, session) --post--> runs in order --take--> trains it
                              <--outcome-- finished, failed <--finish--

A run alone is a session of one. Ray Train restarts workers that die; they go on with the run that
is open, from its checkpoint. The board counts the restarts of each run, and a run's folder says
where it stands: Ray Train's own records decide nothing. Runs of a session differ in how they train,
not in model, engines or number of workers.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
import ray.train
from ray.exceptions import RayActorError
from ray.train.torch import TorchConfig, TorchTrainer

from mupo_ray import errors
from mupo_ray.errors import ConfigError, MupoError, TrainingError
from mupo_ray.placement.plan import live_cluster, render, wait_for_plan
from mupo_ray.rollout.services import (
    fingerprint,
    start_services,
    stop_services,
    wait_for_cards,
    wait_for_services,
)
from mupo_ray.text import first_line
from mupo_ray.train.board import RunTask, SessionBoard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mupo_ray.config import Config
    from mupo_ray.placement.plan import PlacementPlan
    from mupo_ray.rollout.services import Services
    from mupo_ray.train.board import BoardHandle

logger = logging.getLogger(__name__)

_POLL_S = 0.3
_ANSWER_S = 60.0
_STOP_S = 60.0


class Session:
    """Train workers at their post; `open_session` makes one."""

    def __init__(self, config: Config, board: BoardHandle, plan: PlacementPlan | None) -> None:
        self.plan = plan
        """Where everything is; None where services of another were used."""
        self._config = config
        self._board = board
        self._failure: MupoError | None = None
        self._has_been_staffed = False
        self._stop_reason: str | None = None
        # Ray Train keeps its own notes there; runs have folders of their own.
        self._folder = config.run_dir.parent / f".session-{uuid.uuid4().hex[:8]}"
        self._thread = threading.Thread(target=self._fit, name="train-session", daemon=True)
        self._thread.start()

    @property
    def services(self) -> Services:
        """Engines and embedders; the engines hold the weights of the last run.

        Raises:
            RolloutError: they did not come up in time.
        """
        return wait_for_services(self._board, self._config.rollout.start_timeout_s)

    def use(self, services: Services) -> None:
        """Have the runs to come use other engines or embedders."""
        ray.get(self._board.offer.remote(services), timeout=_ANSWER_S)

    def check_fits(self, config: Config) -> None:
        """Whether a run can be one of this session.

        Raises:
            ConfigError: it needs other engines or workers.
        """
        if fingerprint(config) != fingerprint(self._config):
            raise ConfigError(
                f"run {config.run.name} needs another model or rollout setup than this session's "
                f"({self._config.run.name}); open a session of its own"
            )
        for section, field, whose in (
            ("train", "num_workers", "workers"),
            ("train", "cpus_per_worker", "workers"),
            ("data", "min_pixels", "engines"),
            ("data", "max_pixels", "engines"),
        ):
            have, want = (getattr(getattr(c, section), field) for c in (self._config, config))
            if have != want:
                raise ConfigError(
                    f"run {config.run.name} has {section}.{field} = {want}, this session's {whose} "
                    f"were started with {have}"
                )

    def train(self, task: RunTask) -> None:
        """Train one run and wait for its end.

        Raises:
            MupoError: the run failed, or the session's workers are gone.
        """
        began = time.monotonic()
        try:
            index = ray.get(self._board.post.remote(task), timeout=_ANSWER_S)
            while True:
                outcome = ray.get(self._board.outcome.remote(index), timeout=_ANSWER_S)
                if outcome is None:
                    return
                if outcome is not False:
                    raise getattr(errors, outcome["type"], TrainingError)(outcome["message"])
                self._is_staffed(began)
                if self._stop_reason is not None:
                    answer = self._board.ask_to_stop.remote(index, self._stop_reason)
                    ray.get(answer, timeout=_ANSWER_S)
                time.sleep(_POLL_S)
        except RayActorError as err:
            raise TrainingError(f"the session's board is gone: {first_line(err)}") from None
        finally:
            self._stop_reason = None

    def stop(self, reason: str) -> None:
        """End the run that is being trained before its next step, without a checkpoint.

        For another thread than the one in `train`, which returns once the run has ended.

        Args:
            reason: kept in the run's `stopped.json`.
        """
        self._stop_reason = reason

    def wait_until_up(self) -> None:
        """Wait until workers, engines and embedders have what they need of the cluster.

        Engines on the trainers' GPUs start with the first run.

        Raises:
            MupoError: they did not come up.
        """
        began = time.monotonic()
        while not self._is_staffed(began):
            time.sleep(_POLL_S)
        _ = self.services

    @property
    def is_alive(self) -> bool:
        """Whether its workers can take another run."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Let the workers end."""
        self._board.close.remote()
        self._thread.join(timeout=_STOP_S)
        if self._thread.is_alive():
            logger.warning("train workers did not end within %g s", _STOP_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def abandon(self) -> None:
        """Leave the workers to end with the board, without waiting for them."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _is_staffed(self, began: float) -> bool:
        """Whether workers are at their post; they have the engines' time to get there."""
        if not self.is_alive:
            raise self._failure or TrainingError("the session's train workers have ended")
        if self._has_been_staffed or ray.get(self._board.is_staffed.remote(), timeout=_ANSWER_S):
            self._has_been_staffed = True
            return True
        limit = self._config.rollout.start_timeout_s
        if time.monotonic() - began > limit:
            raise TrainingError(
                f"{self._config.train.num_workers} train workers did not start within "
                f"rollout.start_timeout_s = {limit:g} s; Ray Train's log says what they wait for"
            )
        return False

    def _fit(self) -> None:
        trainer = _make_trainer(self._config, self._board, name=self._folder.name)
        try:
            trainer.fit()
        except Exception as err:
            self._failure = cause_of_failure(err)


@contextmanager
def open_session(config: Config, services: Services | None = None) -> Iterator[Session]:
    """Start workers, engines and embedders for runs like this one.

    Args:
        config: of a run; Ray must be connected.
        services: running ones to use; started and stopped here where None.

    Raises:
        PlacementError: the cluster does not have what they need in time.
    """
    plan = wait_for_plan(config) if services is None else None
    if plan is not None:
        logger.info("placement\n%s", render(plan, live_cluster()))
    board: BoardHandle = ray.remote(SessionBoard).options(num_cpus=0).remote()
    try:
        with _serving(config, plan, services, board):
            session = Session(config, board, plan)
            try:
                yield session
            except (KeyboardInterrupt, SystemExit):
                # Who ends the driver does not wait for the run; its workers go with the board.
                session.abandon()
                raise
            except BaseException:
                session.close()
                raise
            session.close()
    finally:
        ray.kill(board)


@contextmanager
def _serving(
    config: Config, plan: PlacementPlan | None, services: Services | None, switchboard: BoardHandle
) -> Iterator[None]:
    """Services behind the switchboard while the trainers run; started here where None."""
    if services is not None:
        ray.get(switchboard.offer.remote(services), timeout=config.rollout.start_timeout_s)
        yield
        return
    assert plan is not None
    starter = _Starter(config, plan, switchboard)
    starter.start()
    try:
        yield
    finally:
        starter.stop()


class _Starter(threading.Thread):
    """Starts the services while Ray Train starts its workers; on shared GPUs after them."""

    def __init__(self, config: Config, plan: PlacementPlan, switchboard: BoardHandle) -> None:
        super().__init__(name="service-starter", daemon=True)
        self._config = config
        self._plan = plan
        self._switchboard = switchboard
        self._services: Services | None = None
        self._cancelled = threading.Event()

    def run(self) -> None:
        timeout_s = self._config.rollout.start_timeout_s
        try:
            shares = any(bundle.cards_of for bundle in self._plan.bundles)
            workers = self._config.train.num_workers
            cards = wait_for_cards(self._switchboard, workers, timeout_s) if shares else ()
            self._services = start_services(self._config, self._plan, cards, self._cancelled)
            ray.get(self._switchboard.offer.remote(self._services), timeout=timeout_s)
        except Exception as err:
            # The trainers are waiting at the switchboard: they raise it and end the run.
            if not self._cancelled.is_set():
                logger.error("%s", err)
            self._switchboard.fail.remote(str(err))

    def stop(self) -> None:
        self._cancelled.set()
        self.join(timeout=self._config.rollout.start_timeout_s)
        if self._services is not None:
            stop_services(self._services)


def _work(inputs: dict[str, Any]) -> None:
    """Ray Train's `train_loop_per_worker`; see `mupo_ray.train.loop.train_runs`.

    Driver and controller need nothing of the loop, and with it torch's, DeepSpeed's and
    transformers' ten seconds of importing.
    """
    from mupo_ray.train.loop import train_runs

    train_runs(inputs["board"])


def _make_trainer(config: Config, board: BoardHandle, *, name: str) -> TorchTrainer:
    """Ray Train's trainer of the workers that a config describes.

    Args:
        config: workers, device and storage.
        board: where workers take their runs.
        name: folder of Ray Train's records below the run's storage path.
    """
    on_gpu = config.run.device == "cuda"
    return TorchTrainer(
        _work,
        train_loop_config={"board": board},
        torch_config=TorchConfig(
            backend="nccl" if on_gpu else "gloo", timeout_s=int(config.train.collective_timeout_s)
        ),
        scaling_config=ray.train.ScalingConfig(
            num_workers=config.train.num_workers,
            use_gpu=on_gpu,
            resources_per_worker={
                "CPU": config.train.cpus_per_worker,
                **({"GPU": 1} if on_gpu else {}),
            },
        ),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=str(config.run_dir.parent),
            # The board counts restarts by run.
            failure_config=ray.train.FailureConfig(max_failures=-1),
            # Below that it prints every report with all metrics in it.
            logging_config=ray.train.LoggingConfig(log_level="WARNING"),
        ),
    )


def cause_of_failure(err: BaseException) -> MupoError:
    """The worker's own error out of Ray's wrapping."""
    failures = getattr(err, "worker_failures", None) or {}
    for failure in failures.values():
        inner: Any = failure
        while inner is not None:
            if isinstance(inner, MupoError):
                return inner
            inner = getattr(inner, "cause", None) or getattr(inner, "__cause__", None)
    lines = str(err).strip().splitlines()
    return TrainingError(f"training failed: {lines[-1] if lines else repr(err)}")
