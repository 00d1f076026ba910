"""Services and train workers that train one run after another: short runs are not mostly start-up.

    driver                               board (an actor)            rank 0 of the workers
      run_training(config, session) --post--> runs in order --take--> trains it
                              <--outcome-- finished, failed <--finish--

Ray Train restarts workers that die; they go on with the run that is open, from its checkpoint. Runs
of a session differ in how they train, not in model, engines or number of workers.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray

from mupo_ray import errors
from mupo_ray.errors import ConfigError, MupoError, TrainingError
from mupo_ray.placement.plan import live_cluster, render, wait_for_plan
from mupo_ray.rollout.services import fingerprint, wait_for_services
from mupo_ray.train.board import SessionBoard
from mupo_ray.train.entry import train_runs
from mupo_ray.train.launch import cause_of_failure, make_trainer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mupo_ray.config import Config
    from mupo_ray.rollout.services import Services

logger = logging.getLogger(__name__)

_POLL_S = 0.3
_ANSWER_S = 60.0
_STOP_S = 60.0


class Session:
    """Train workers at their post; `open_session` makes one."""

    def __init__(self, config: Config, board: Any) -> None:
        self._config = config
        self._board = board
        self._failure: MupoError | None = None
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

    def train(self, task: dict[str, Any]) -> None:
        """Train one run and wait for its end.

        Args:
            task: `config` (JSON), `config_hash`, `stop_after_step`, `max_failures`.

        Raises:
            MupoError: the run failed, or the session's workers are gone.
        """
        index = ray.get(self._board.post.remote(task), timeout=_ANSWER_S)
        try:
            while True:
                found = ray.get(self._board.outcome.remote(index), timeout=_ANSWER_S)
                if found is None:
                    return
                if found is not False:
                    raise getattr(errors, found["type"], TrainingError)(found["message"])
                self._raise_unless_alive()
                if self._stop_reason is not None:
                    asked = self._board.ask_to_stop.remote(index, self._stop_reason)
                    ray.get(asked, timeout=_ANSWER_S)
                time.sleep(_POLL_S)
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
        while not ray.get(self._board.is_staffed.remote(), timeout=_ANSWER_S):
            self._raise_unless_alive()
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

    def _raise_unless_alive(self) -> None:
        if not self.is_alive:
            raise self._failure or TrainingError("the session's train workers have ended")

    def _fit(self) -> None:
        trainer = make_trainer(
            self._config,
            train_runs,
            {"switchboard": self._board},
            name=self._folder.name,
            # The board counts restarts by run.
            max_failures=-1,
        )
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
    board = ray.remote(SessionBoard).options(num_cpus=0).remote()
    try:
        with (
            serving(config, plan, services, board),
            contextlib.closing(Session(config, board)) as session,
        ):
            yield session
    finally:
        ray.kill(board)
