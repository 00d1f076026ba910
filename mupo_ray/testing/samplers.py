"""Stand-in for what answers an evaluation, for tests of what asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mupo_ray.core.seeding import derive_seed
from mupo_ray.errors import RolloutError
from mupo_ray.types import SampledResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mupo_ray.rollout.pool import SamplingPlan
    from mupo_ray.types import Prompt


class ScriptedSampler:
    """Answers by the seeds alone, every second response right, in pairs from the last to the first.

    Args:
        fails_after: answers that come before it fails; None never fails.
    """

    def __init__(self, fails_after: int | None = None) -> None:
        self._left = fails_after
        self.asked: list[tuple[str, int]] = []
        """Prompt id and number of responses of each request."""

    def stream(
        self, tasks: Iterable[tuple[Prompt, SamplingPlan]]
    ) -> Iterator[tuple[int, tuple[SampledResponse, ...]]]:
        """As `Sampler.stream`."""
        waiting: list[tuple[int, tuple[SampledResponse, ...]]] = []
        for number, (prompt, plan) in enumerate(tasks):
            self.asked.append((prompt.prompt_id, plan.num_generations))
            waiting.append((number, self._answers(prompt, plan)))
            if len(waiting) == 2:
                yield from self._answered(waiting)
        yield from self._answered(waiting)

    def _answered(
        self, waiting: list[tuple[int, tuple[SampledResponse, ...]]]
    ) -> Iterator[tuple[int, tuple[SampledResponse, ...]]]:
        while waiting:
            if self._left is not None:
                if self._left == 0:
                    raise RolloutError("no engine is left to sample from")
                self._left -= 1
            yield waiting.pop()

    @staticmethod
    def _answers(prompt: Prompt, plan: SamplingPlan) -> tuple[SampledResponse, ...]:
        seed = derive_seed(plan.seed, prompt.prompt_id)
        return tuple(
            SampledResponse(
                text=f"<think>seed {seed + i}</think>"
                rf"\boxed{{{prompt.answer if (seed + i) % 2 else 'no'}}}",
                num_tokens=3 + i,
                is_truncated=False,
            )
            for i in range(plan.num_generations)
        )
