"""Trains the trials of a worker in a session that is kept while they fit it.

prepare -> turn -> room for the whole plan -> session --trial, trial, ...--> let go
                                                |
                      a trial that needs other engines or workers: close, turn, open
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from mupo_ray.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    MupoError,
    PlacementError,
    TrainingError,
)
from mupo_ray.placement.plan import live_cluster, plan
from mupo_ray.placement.turn import Turn
from mupo_ray.train.launch import check_inputs, run_training
from mupo_ray.train.session import cause_of_failure, open_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from mupo_ray.config import Config
    from mupo_ray.train.session import Session

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_SAY_EVERY_S = 30.0
# What says nothing against the session that it came from.
_OF_THE_RUN = (CheckpointError, ConfigError, DataError, TrainingError)


class SessionTrainer:
    """See `mupo_ray.tune.worker.Trainer`; Ray must be connected."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._open = contextlib.ExitStack()

    def prepare(self, config: Config, still_wanted: Callable[[], bool]) -> None:
        """Open a session for such runs, or return once it is not wanted any more.

        Raises:
            PlacementError: the cluster could not hold them with nothing else on it.
            DataError: model or data are not there.
        """
        if self._session is not None:
            return
        check_inputs(config)
        _check_possible(config)
        turn = Turn(f"{config.run.name} in {config.run.storage_path}")
        if not turn.take(still_wanted):
            return
        try:
            if not _wait_for_room(config, still_wanted):
                turn.let_go()
                return
            self._session = self._open.enter_context(open_session(config))
        except BaseException:
            turn.let_go()
            raise
        threading.Thread(
            target=_let_go_once_up, args=(turn, self._session), name="turn-over", daemon=True
        ).start()

    def train(self, config: Config) -> None:
        """Train a run; in another session where this one does not fit it.

        Raises:
            MupoError: whatever kept the run from its end.
        """
        try:
            if self._session is not None:
                self._session.check_fits(config)
        except ConfigError as err:
            logger.info("opening another session: %s", err)
            self.let_go()
        try:
            self.prepare(config, lambda: True)
            run_training(config, session=self._session)
        except Exception as err:
            if not isinstance(err, _OF_THE_RUN) or not (self._session and self._session.is_alive):
                self.let_go()
            raise err if isinstance(err, MupoError) else cause_of_failure(err) from err

    def stop(self, reason: str) -> None:
        """End the run that is being trained."""
        if self._session is not None:
            self._session.stop(reason)

    def let_go(self) -> None:
        """Close the session, so that others find room."""
        self._session = None
        self._open.close()


def _check_possible(config: Config) -> None:
    try:
        plan(config, live_cluster().emptied())
    except PlacementError as err:
        raise PlacementError(f"even with nothing else on it, {err}") from None


def _wait_for_room(config: Config, still_wanted: Callable[[], bool]) -> bool:
    """Wait as long as it takes others to end; False where it is not wanted any more."""
    began = time.monotonic()
    next_word_s = 0.0
    while True:
        try:
            plan(config, live_cluster())
            return True
        except PlacementError as err:
            waited_s = time.monotonic() - began
            if waited_s >= next_word_s:
                logger.warning("waiting for others to end, %.0f s: %s", waited_s, err)
                next_word_s = waited_s + _SAY_EVERY_S
        if not still_wanted():
            return False
        time.sleep(_POLL_S)


def _let_go_once_up(turn: Turn, session: Session) -> None:
    # What keeps it from coming up is told by the run that waits for it.
    with contextlib.suppress(Exception):
        session.wait_until_up()
    turn.let_go()
