"""Stand-ins for the services' actors, for tests of what calls them."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.errors import RolloutError, StaleEngineError
from mupo_ray.types import FinishReason, Response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mupo_ray.rollout.engine import SampleRequest


class ScriptedEngine:
    """What `EnginePool` calls of an engine, with failures on request.

    A response of prompt p and index i holds the tokens [seed of the request, i].
    """

    def __init__(self, index: int, script: Sequence[str] = (), *, delay_s: float = 0.0) -> None:
        """Remember what to do.

        Args:
            index: place in the pool.
            script: one word for each of the first requests: `ok`, `stale` (refuses its version),
                `lie` (answers from another version), `refuse` (as vLLM refuses a prompt), `die`
                (ends the process), `hang`; `ok` from there on.
            delay_s: duration of an answer.
        """
        self._index = index
        self._script = deque(script)
        self._delay_s = delay_s
        self._active = 0
        self.peak_active = 0
        self.served: list[str] = []
        self.aborted: list[str] = []

    async def generate(self, request: SampleRequest) -> list[Response]:
        """Answer as the script says."""
        word = self._script.popleft() if self._script else "ok"
        self._active += 1
        self.peak_active = max(self.peak_active, self._active)
        try:
            await asyncio.sleep(3600.0 if word == "hang" else self._delay_s)
        finally:
            self._active -= 1
        if word == "stale":
            raise StaleEngineError(f"engine {self._index} holds another version")
        if word == "refuse":
            raise RolloutError(f"vLLM refused prompt {request.request_id}")
        if word == "die":
            os._exit(1)
        self.served.append(request.request_id)
        version = request.expected_version - (word == "lie")
        return [
            Response(
                text=f"{request.seed} {i}",
                completion_ids=np.array([request.seed, i]),
                sampler_logprobs=np.zeros(2, dtype=np.float32),
                finish_reason=FinishReason.STOP,
                policy_version=version,
                seed=request.seed + i,
                engine=self._index,
            )
            for i in range(request.num_generations)
        ]

    async def abort(self, request_ids: list[str]) -> None:
        """Note who is not waited for any more."""
        self.aborted += request_ids

    async def seen(self) -> tuple[list[str], list[str], int]:
        """Requests answered, requests aborted, most at a time."""
        return self.served, self.aborted, self.peak_active


class ScriptedEmbedder:
    """What `EmbedderPool` calls of an embedder: a text's vector is (1, its length) / norm."""

    def __init__(self, word: str = "ok") -> None:
        """Remember what to do: `ok`, `hang` or `fail`."""
        self._word = word
        self._known: set[str] = set()

    async def embed(self, texts: list[str]) -> tuple[np.ndarray, float]:
        """[len(texts), 2] unit rows, and the share of texts seen before."""
        if self._word == "hang":
            await asyncio.sleep(3600.0)
        if self._word == "fail":
            raise RuntimeError("out of memory")
        hits = sum(text in self._known for text in texts)
        self._known.update(texts)
        rows = np.array([[1.0, len(text)] for text in texts], dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True), hits / len(texts)
