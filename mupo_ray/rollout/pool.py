"""Many engines, one queue: prompts in, cohorts of responses out.

    prompts --> pending --> engine with fewest of my sequences (bounded each) --> responses
                   ^                        |
                   +-- engine died or stale -+   (request goes back; the engine is resynced or left)

Each trainer rank has a pool of its own over the same engines. Requests carry seeds derived from
(run, step, prompt), so results do not depend on which engine answers or in what order.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError

from mupo_ray.core.seeding import derive_seed
from mupo_ray.errors import RolloutError, StaleEngineError, WeightSyncError, cause_of
from mupo_ray.rollout.engine import SampleRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mupo_ray.rollout.handles import EngineHandle
    from mupo_ray.types import Prompt, Response

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """How to sample, the same for all prompts of a call."""

    num_generations: int
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int
    """Derived further by prompt id."""
    with_logprobs: bool = True
    """Whether responses bring the log-probabilities of their tokens."""


@dataclass(slots=True)
class PoolStats:
    """Counts since the pool was made."""

    stale_refused: int = 0
    """Responses or requests refused because an engine held another version."""
    engine_failures: int = 0
    retried: int = 0
    resynced: int = 0


@dataclass(slots=True)
class _Engine:
    handle: EngineHandle
    is_live: bool = True
    in_flight: int = 0
    """Sequences that this pool waits for."""
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Call:
    """Requests of one call, from the source to their answers."""

    source: Iterator[SampleRequest]
    version: int
    requests: dict[int, SampleRequest] = field(default_factory=dict)
    """Number -> request, for those taken and not answered."""
    pending: deque[int] = field(default_factory=deque)
    running: dict[Any, tuple[int, int, float]] = field(default_factory=dict)
    """Answer to come -> request, engine, deadline."""
    num_taken: int = 0

    def take(self) -> bool:
        """Whether a request is pending; takes the next of the source where none is."""
        if not self.pending:
            request = next(self.source, None)
            if request is None:
                return False
            self.requests[self.num_taken] = request
            self.pending.append(self.num_taken)
            self.num_taken += 1
        return True


def placeholder_ids(model_config: Any) -> tuple[int, ...]:
    """Placeholders of pictures and videos: sampled, they would break the trainer's forward pass."""
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return tuple(
        sorted({int(i) for n in names if (i := getattr(model_config, n, None)) is not None})
    )


class EnginePool:
    """Samples cohorts from a fixed set of engine actors."""

    def __init__(
        self,
        engines: Sequence[EngineHandle],
        *,
        forbidden_ids: Sequence[int],
        max_num_seqs: int,
        request_timeout_s: float,
        max_restarts: int = 0,
        rank: int = 0,
        resync: Callable[[int], None] | None = None,
    ) -> None:
        """Remember the engines; nothing is started here.

        Args:
            engines: actor handles, placed by the driver.
            forbidden_ids: tokens that must not be sampled.
            max_num_seqs: sequences that one engine runs at a time.
            request_timeout_s: limit for one prompt, from its dispatch.
            max_restarts: resyncs of one engine within one call before it is given up.
            rank: trainer rank; ranks prefer different engines where loads are equal.
            resync: brings a restarted engine (by index) to the current weights; without it an
                engine that fails is left out.
        """
        self._engines = [_Engine(handle) for handle in engines]
        self._forbidden_ids = tuple(forbidden_ids)
        self._max_num_seqs = max_num_seqs
        self._timeout_s = request_timeout_s
        self._max_restarts = max_restarts
        self._rank = rank
        self._resync = resync
        self._num_calls = 0
        self.stats = PoolStats()

    def set_live(self, engines: Iterable[int]) -> None:
        """Engines that hold the current weights, as the last broadcast found."""
        live = set(engines)
        for i, engine in enumerate(self._engines):
            engine.is_live = i in live
            engine.failures.clear()

    def generate(
        self, prompts: Sequence[Prompt], plan: SamplingPlan, *, version: int
    ) -> list[tuple[Response, ...]]:
        """Sample N responses to each prompt.

        Args:
            prompts: any number.
            plan: sampling settings.
            version: policy version that must have sampled every response.

        Returns:
            One tuple of N responses a prompt, in the order of `prompts`.

        Raises:
            RolloutError: a request timed out or was refused, or no engine is left.
        """
        results = dict(self.stream(((prompt, plan) for prompt in prompts), version=version))
        return [results[i] for i in range(len(prompts))]

    def stream(
        self, tasks: Iterable[tuple[Prompt, SamplingPlan]], *, version: int
    ) -> Iterator[tuple[int, tuple[Response, ...]]]:
        """Sample responses to prompts that are taken only as engines have room for them.

        Args:
            tasks: prompts, each with how to sample from it; any number.
            version: policy version that must have sampled every response.

        Yields:
            Number of a task and its responses, as they are finished.

        Raises:
            RolloutError: a request timed out or was refused, or no engine is left.
        """
        self._num_calls += 1
        call = _Call(
            source=(self._request(i, *task, version) for i, task in enumerate(tasks)),
            version=version,
        )
        try:
            while self._dispatch(call):
                yield from self._collect(call)
        except BaseException:
            self._abort(call)
            raise

    def _request(self, i: int, prompt: Prompt, plan: SamplingPlan, version: int) -> SampleRequest:
        return SampleRequest(
            request_id=f"r{self._rank}-{self._num_calls}-{i}-{prompt.prompt_id[:12]}",
            token_ids=prompt.token_ids,
            images=prompt.images,
            image_keys=tuple(image.sha256 for image in prompt.images),
            num_generations=plan.num_generations,
            max_new_tokens=plan.max_new_tokens,
            temperature=plan.temperature,
            top_p=plan.top_p,
            seed=derive_seed(plan.seed, prompt.prompt_id),
            expected_version=version,
            forbidden_ids=self._forbidden_ids,
            with_logprobs=plan.with_logprobs,
        )

    def _dispatch(self, call: _Call) -> bool:
        """Hand out requests while engines have room; False once all are answered."""
        # Twice what an engine can run keeps it busy while answers travel, and bounds its queue.
        room = 2 * self._max_num_seqs
        count = len(self._engines)
        while call.take():
            i = call.pending[0]
            size = call.requests[i].num_generations
            free = [
                e
                for e, engine in enumerate(self._engines)
                if engine.is_live and (engine.in_flight == 0 or engine.in_flight + size <= room)
            ]
            if not free:
                if not call.running:
                    self._revive()
                    continue
                return True
            e = min(free, key=lambda e: (self._engines[e].in_flight, (e - self._rank) % count))
            call.pending.popleft()
            ref = self._engines[e].handle.generate.remote(call.requests[i])
            self._engines[e].in_flight += size
            call.running[ref] = (i, e, time.monotonic() + self._timeout_s)
        return bool(call.running)

    def _collect(self, call: _Call) -> Iterator[tuple[int, tuple[Response, ...]]]:
        """Wait for an answer; put requests back that another engine has to answer."""
        now = time.monotonic()
        wait_s = max(0.0, min(deadline for _, _, deadline in call.running.values()) - now)
        ready, _ = ray.wait(list(call.running), num_returns=1, timeout=wait_s)
        if not ready:
            late = [(i, e) for i, e, d in call.running.values() if d <= time.monotonic()]
            if late:
                names = ", ".join(
                    f"{call.requests[i].request_id} on engine {e}" for i, e in late[:4]
                )
                raise RolloutError(
                    f"no answer within rollout.request_timeout_s = {self._timeout_s:g} s for "
                    f"{len(late)} of {call.num_taken} prompts ({names})"
                )
            return
        for ref in ready:
            i, e, _ = call.running.pop(ref)
            self._engines[e].in_flight -= call.requests[i].num_generations
            try:
                responses = ray.get(ref)
                stale = {r.policy_version for r in responses} - {call.version}
                if stale:
                    raise StaleEngineError(
                        f"engine {e} answered from version {sorted(stale)}, not {call.version}"
                    )
            except (RayTaskError, RayActorError, StaleEngineError) as err:
                self._on_failure(e, err)
                call.pending.appendleft(i)
                self.stats.retried += 1
            else:
                del call.requests[i]
                yield i, tuple(responses)

    def _on_failure(self, e: int, err: Exception) -> None:
        """Set an engine aside where another may answer instead; pass on what is nobody's fault."""
        engine = self._engines[e]
        if isinstance(err, StaleEngineError):
            self.stats.stale_refused += 1
        elif isinstance(err, (ActorDiedError, ActorUnavailableError, RayActorError)):
            self.stats.engine_failures += engine.is_live
        elif "EngineDeadError" in str(err):
            self.stats.engine_failures += engine.is_live
            if engine.is_live:
                # vLLM's core died under a living actor: end the actor so that Ray restarts it.
                ray.kill(engine.handle, no_restart=False)
        else:
            raise RolloutError(f"engine {e}: {cause_of(err)}") from err
        if engine.is_live:
            # The requests that were in flight with this one fail too; they count once.
            engine.failures.append(cause_of(err))
            logger.warning("engine %d is set aside: %s", e, engine.failures[-1])
        engine.is_live = False

    def _revive(self) -> None:
        """With no live engine left, bring back the first that can be; raise if none can."""
        if self._resync is not None:
            for e, engine in enumerate(self._engines):
                if len(engine.failures) > self._max_restarts:
                    continue
                try:
                    self._resync(e)
                except (WeightSyncError, RayActorError) as err:
                    engine.failures.append(str(err))
                    continue
                engine.is_live = True
                self.stats.resynced += 1
                return
        reasons = "; ".join(
            f"engine {e}: {engine.failures[-1] if engine.failures else 'not synced'}"
            for e, engine in enumerate(self._engines)
        )
        raise RolloutError(f"no engine is left to sample from ({reasons})")

    def _abort(self, call: _Call) -> None:
        """Free the engines of work that nobody waits for any more."""
        by_engine: dict[int, list[str]] = {}
        for i, e, _ in call.running.values():
            by_engine.setdefault(e, []).append(call.requests[i].request_id)
        for e, ids in by_engine.items():
            self._engines[e].handle.abort.remote(ids)
            self._engines[e].in_flight = 0
