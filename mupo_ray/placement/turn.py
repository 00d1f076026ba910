"""One at a time takes what it needs of a cluster, so that no two hold half of it each.

    driver A: take -> room for the whole plan? -> start trainers, engines, embedders -> let go
    driver B:  wait ............................................................. take -> ...

Ray Train reserves the trainers' resources by itself, beside those of the engines. Whoever has the
turn sees what is free and gets all of it; whoever waits holds nothing. A driver that dies says
nothing any more, and loses its place.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_NAME = "mupo_turnstile"
_NAMESPACE = "mupo_ray"
_POLL_S = 1.0
_RENEW_S = 5.0
_EXPIRE_S = 60.0
_ANSWER_S = 60.0


class Turnstile:
    """The queue; deployed as one actor of a cluster, without CPU.

    Args:
        expire_s: silence after which a driver has lost its place.
        now: clock in seconds.
    """

    def __init__(
        self, expire_s: float = _EXPIRE_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._expire_s = expire_s
        self._now = now
        self._queue: dict[str, tuple[str, float]] = {}
        """Driver -> name and time of its last word, first come first."""

    def ask(self, driver: str, name: str) -> str | None:
        """Queue up or stay in the queue.

        Args:
            driver: a key of its own.
            name: for people.

        Returns:
            Name of the driver whose turn it is; None where it is this one's.
        """
        now = self._now()
        if driver in self._queue:
            self._queue[driver] = (name, now)
        gone = [d for d, (_, spoke) in self._queue.items() if now - spoke > self._expire_s]
        for other in gone:
            del self._queue[other]
        self._queue.setdefault(driver, (name, now))
        first = next(iter(self._queue))
        return None if first == driver else self._queue[first][0]

    def leave(self, driver: str) -> None:
        """Give up the turn, or the place in the queue."""
        self._queue.pop(driver, None)


class Turn:
    """A driver's place in the queue of its cluster; Ray must be connected.

    Args:
        name: for people who wait.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._driver = uuid.uuid4().hex
        self._over = threading.Event()
        self._queue: Any = (
            ray.remote(Turnstile)
            .options(
                name=_NAME,
                namespace=_NAMESPACE,
                get_if_exists=True,
                lifetime="detached",
                num_cpus=0,
                max_restarts=-1,
            )
            .remote()
        )

    def take(self, still_wanted: Callable[[], bool]) -> bool:
        """Wait for the turn, and keep it until `let_go`.

        Args:
            still_wanted: asked while it waits.

        Returns:
            False where it was not wanted any more.
        """
        waits_for = None
        while (first := self._ask()) is not None:
            if first != waits_for:
                logger.warning("waiting for its turn: %s is starting", first)
                waits_for = first
            if not still_wanted():
                self.let_go()
                return False
            time.sleep(_POLL_S)
        threading.Thread(target=self._stay, name="turn", daemon=True).start()
        return True

    def let_go(self) -> None:
        """Leave; safe to call twice."""
        self._over.set()
        self._queue.leave.remote(self._driver)

    def _ask(self) -> str | None:
        answer: str | None = ray.get(
            self._queue.ask.remote(self._driver, self._name), timeout=_ANSWER_S
        )
        return answer

    def _stay(self) -> None:
        while not self._over.wait(_RENEW_S):
            try:
                self._ask()
            except Exception as err:
                logger.warning("the turn to start was lost: %s", err)
                return
        # A word that crossed with `let_go` queued this driver again.
        self._queue.leave.remote(self._driver)
