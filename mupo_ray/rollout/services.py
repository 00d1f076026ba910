"""What trainers call upon: engines, embedders and the publisher, started by the driver.

    driver                     switchboard (no CPU)              trainer ranks
      start_services ---------> engines, embedders, publisher <--- wait for them
      (colocated: waits for) <- cards of the trainers <----------- report their card

Services outlive a run, so that a sweep or a comparison pays for starting them once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import ray

from mupo_ray.errors import MupoError, PlacementError, RolloutError, cause_of
from mupo_ray.placement.plan import Role, actor_options, transport_of
from mupo_ray.rollout.embedder import TextEmbedder
from mupo_ray.rollout.engine import EngineSettings, VllmEngine
from mupo_ray.sync.broadcast import WeightPublisher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mupo_ray.config import Config
    from mupo_ray.placement.plan import Card, PlacementPlan
    from mupo_ray.rollout.handles import EmbedderHandle, EngineHandle, RemoteMethod

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_SAY_EVERY_S = 30.0
_STOP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Handles of everything that serves the trainers."""

    engines: tuple[EngineHandle, ...]
    embedders: tuple[EmbedderHandle, ...]
    publisher: Any
    """None without trainers, which alone publish weights."""
    publisher_name: str
    transport: str
    fits: str
    """Fingerprint of the settings they were started with; runs that share it may share them."""


class Switchboard:
    """Where trainers and driver find each other; deployed as an actor without CPU."""

    def __init__(self) -> None:
        self._cards: dict[int, Card] = {}
        self._services: Services | None = None
        self._failure: str | None = None

    def report_card(self, rank: int, card: Card | None) -> None:
        """A started trainer says where it computes; None without a GPU."""
        if card is not None:
            self._cards[rank] = card

    def cards(self) -> dict[int, Card]:
        """Cards reported so far, by rank."""
        return dict(self._cards)

    def offer(self, services: Services) -> None:
        """The services are up."""
        self._services = services

    def fail(self, reason: str) -> None:
        """The services will not come up."""
        self._failure = reason

    def services(self) -> Services | str | None:
        """The services, why there will be none, or None while they start."""
        return self._services if self._failure is None else self._failure


class SwitchboardHandle(Protocol):
    """An actor of `Switchboard`."""

    report_card: RemoteMethod[[int, Card | None]]
    cards: RemoteMethod[[]]
    offer: RemoteMethod[[Services]]
    fail: RemoteMethod[[str]]
    services: RemoteMethod[[]]


def wait_for_services(switchboard: SwitchboardHandle, timeout_s: float) -> Services:
    """Trainer side: wait until the driver has started everything.

    Raises:
        RolloutError: they failed to start or were late.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = ray.get(switchboard.services.remote(), timeout=timeout_s)
        if isinstance(answer, str):
            raise RolloutError(f"the engines did not start: {answer}")
        if answer is not None:
            return answer  # type: ignore[no-any-return]
        if time.monotonic() > deadline:
            raise RolloutError(
                f"the engines were not up within rollout.start_timeout_s = {timeout_s:g} s"
            )
        time.sleep(_POLL_S)


def wait_for_cards(
    switchboard: SwitchboardHandle, num_workers: int, timeout_s: float
) -> list[Card]:
    """Driver side: the cards of all trainers, by rank.

    Raises:
        PlacementError: a trainer has not reported in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        cards: dict[int, Card] = ray.get(switchboard.cards.remote(), timeout=timeout_s)
        if len(cards) == num_workers:
            return [cards[rank] for rank in range(num_workers)]
        if time.monotonic() > deadline:
            late = sorted(set(range(num_workers)) - set(cards))
            raise PlacementError(f"trainers {late} did not report a GPU within {timeout_s:g} s")
        time.sleep(_POLL_S)


def fingerprint(config: Config) -> str:
    """What services depend on, as text."""
    config = config.with_absolute_paths()
    parts = (
        config.run.device,
        config.model.path,
        config.model.dtype,
        config.rollout.model_dump_json(
            exclude={"num_generations", "max_new_tokens", "top_p", "temperature"}
        ),
        config.rollout.temperature != 1.0,
        config.embedder.model_dump_json(exclude={"on_failure"}),
        config.placement.model_dump_json(),
        transport_of(config),
    )
    return repr(parts)


def start_services(
    config: Config,
    plan: PlacementPlan,
    cards: Sequence[Card] = (),
    cancelled: threading.Event | None = None,
) -> Services:
    """Start what a plan has of engines and embedders, all at once, and wait until they answer.

    Args:
        config: of the run.
        plan: where they go; with trainers in it, there is a publisher too.
        cards: the trainers' cards, where engines share them.
        cancelled: set from another thread to give up.

    Raises:
        RolloutError: given up, or one failed or was late; all are stopped again.
    """
    config = config.with_absolute_paths()
    context = ray.get_runtime_context()
    name = f"mupo-publisher-{uuid.uuid4().hex[:8]}"
    publisher = None
    if plan.of(Role.TRAINER):
        publisher = ray.remote(WeightPublisher).options(name=name, num_cpus=0).remote()
    settings = EngineSettings(
        model_path=config.model.path,
        dtype=config.model.dtype,
        device=config.run.device,
        seed=config.run.seed,
        max_model_len=config.rollout.max_model_len,
        max_num_seqs=config.rollout.max_num_seqs,
        max_images=config.rollout.max_images,
        min_pixels=config.data.min_pixels,
        max_pixels=config.data.max_pixels,
        tensor_parallel_size=config.rollout.tensor_parallel_size,
        kv_cache_gib=config.rollout.kv_cache_gib,
        gpu_memory_utilization=config.rollout.gpu_memory_utilization,
        enforce_eager=config.rollout.enforce_eager,
        scaled_logprobs=config.rollout.temperature != 1.0,
        transport=transport_of(config),
        ray_address=context.gcs_address,
        ray_namespace=context.namespace,
    )
    engines = tuple(
        ray.remote(VllmEngine)
        .options(
            max_restarts=config.rollout.max_restarts,
            max_concurrency=1000,
            **actor_options(bundle, cards),
        )
        .remote(bundle.index, settings)
        for bundle in plan.of(Role.ENGINE)
    )
    embedders = tuple(
        ray.remote(TextEmbedder)
        .options(max_restarts=config.rollout.max_restarts, **actor_options(bundle, cards))
        .remote(config.embedder, config.run.device if bundle.gpus or bundle.cards_of else "cpu")
        for bundle in plan.of(Role.EMBEDDER)
    )
    services = Services(
        engines=engines,
        embedders=embedders,
        publisher=publisher,
        publisher_name=name,
        transport=settings.transport,
        fits=fingerprint(config),
    )
    answers = {e.status.remote(): f"engine {i}" for i, e in enumerate(engines)}
    answers |= {e.ready.remote(): f"embedder {i}" for i, e in enumerate(embedders)}
    try:
        _wait_until_up(answers, config.rollout.start_timeout_s, cancelled or threading.Event())
    except BaseException:
        stop_services(services)
        raise
    return services


def _wait_until_up(answers: dict[Any, str], timeout_s: float, cancelled: threading.Event) -> None:
    began = time.monotonic()
    next_word_s = _SAY_EVERY_S
    waiting = dict(answers)
    while waiting:
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise RolloutError(
                f"{', '.join(waiting.values())} not up within rollout.start_timeout_s = "
                f"{timeout_s:g} s"
            )
        if cancelled.is_set():
            raise RolloutError(f"gave up starting {', '.join(waiting.values())}")
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=_POLL_S)
        for ref in ready:
            _raise_unless_up(ref, waiting.pop(ref))
        if waiting and waited_s > next_word_s:
            next_word_s += _SAY_EVERY_S
            names = ", ".join(waiting.values())
            logger.info("waiting for %s, %.0f of %g s", names, waited_s, timeout_s)


def _raise_unless_up(ref: Any, who: str) -> None:
    try:
        ray.get(ref)
    except MupoError:
        raise
    except Exception as err:
        raise RolloutError(f"{who} failed to start: {cause_of(err)}") from err


def stop_services(services: Services) -> None:
    """End all actors; an engine's own processes end with it."""
    # An engine whose core is killed under it fills the log with its last words.
    ended = [engine.shutdown.remote() for engine in services.engines]
    if ended:
        ray.wait(ended, num_returns=len(ended), timeout=_STOP_S)
    for actor in (*services.engines, *services.embedders, services.publisher):
        if actor is not None:
            ray.kill(actor)


@contextlib.contextmanager
def services_of(config: Config, plan: PlacementPlan) -> Iterator[Services]:
    """Services that several runs share, stopped at the end (not for colocated GPUs)."""
    services = start_services(config, plan)
    try:
        yield services
    finally:
        stop_services(services)
