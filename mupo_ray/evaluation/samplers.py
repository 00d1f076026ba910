"""Who answers: engines of one's own that load a checkpoint, or a server (`ServedSampler`)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import ray

from mupo_ray.errors import RolloutError, WeightSyncError, cause_of
from mupo_ray.placement.plan import Role, wait_for_plan
from mupo_ray.rollout.pool import EnginePool, placeholder_ids
from mupo_ray.rollout.services import Services, start_services, stop_services
from mupo_ray.types import SampledResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mupo_ray.config import Config
    from mupo_ray.rollout.pool import SamplingPlan
    from mupo_ray.types import Prompt

# Engines call the weights they were started with by this version.
_VERSION = 0


class Sampler(Protocol):
    """Answers prompts that are taken only as there is room for them."""

    def stream(
        self, tasks: Iterable[tuple[Prompt, SamplingPlan]]
    ) -> Iterator[tuple[int, tuple[SampledResponse, ...]]]:
        """Number of a task and its responses in order of their seeds, as they are finished."""
        ...


@contextlib.contextmanager
def services_for(config: Config, role: Role, running: Services | None) -> Iterator[Services]:
    """Actors of one role, started for the block, or those that run already.

    Raises:
        RolloutError: one failed to start or was late.
        PlacementError: the cluster has no room for them.
    """
    if running is not None:
        yield running
        return
    started = start_services(config, wait_for_plan(config, roles=(role,)))
    try:
        yield started
    finally:
        stop_services(started)


class EngineSampler:
    """vLLM engines that serve the weights they load."""

    def __init__(self, config: Config, services: Services) -> None:
        """Make engines serve their own weights.

        Args:
            config: of the evaluation, with the model's path.
            services: with engines started for that model.

        Raises:
            RolloutError: an engine does not answer.
        """
        from transformers import AutoConfig

        self._engines = services.engines
        self._timeout_s = config.rollout.start_timeout_s
        for engine in range(len(self._engines)):
            try:
                self._serve(engine)
            except WeightSyncError as err:
                raise RolloutError(str(err)) from err
        self._pool = EnginePool(
            self._engines,
            forbidden_ids=placeholder_ids(AutoConfig.from_pretrained(config.model.path)),
            max_num_seqs=config.rollout.max_num_seqs,
            request_timeout_s=config.rollout.request_timeout_s,
            max_restarts=config.rollout.max_restarts,
            resync=self._serve,
        )

    def stream(
        self, tasks: Iterable[tuple[Prompt, SamplingPlan]]
    ) -> Iterator[tuple[int, tuple[SampledResponse, ...]]]:
        """As `Sampler.stream`.

        Raises:
            RolloutError: a request timed out or was refused, or no engine is left.
        """
        for number, responses in self._pool.stream(tasks, version=_VERSION):
            yield number, tuple(SampledResponse.of(response) for response in responses)

    def _serve(self, engine: int) -> None:
        """Also for an engine that died: Ray starts it again, and it loads the same weights."""
        call = self._engines[engine].serve_loaded.remote(_VERSION)
        try:
            ray.get(call, timeout=self._timeout_s)
        except Exception as err:
            raise WeightSyncError(f"engine {engine} does not answer: {cause_of(err)}") from err
