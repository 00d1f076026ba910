"""Stored responses to records: verdicts and embeddings, derived anew at every start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mupo_ray.evaluation.samples import EvaluatedProblem, JudgedResponse
from mupo_ray.evaluation.store import Kind
from mupo_ray.rewards.extract import reasoning_span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mupo_ray.evaluation.store import ResponseStore
    from mupo_ray.rewards.verifier import Verifier
    from mupo_ray.rollout.embedder import EmbedderPool
    from mupo_ray.types import Prompt, SampledResponse, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A row that was asked, without its pixels."""

    prompt: Prompt
    image_sha256: tuple[str, ...]


# Problems that are judged and embedded in one call.
_CHUNK = 32


def judge_asked(
    set_name: str,
    asked: Sequence[Asked],
    store: ResponseStore,
    verifier: Verifier,
    embedder: EmbedderPool | None,
) -> Iterator[EvaluatedProblem]:
    """Records of a set's problems, in order.

    Args:
        set_name: of the set.
        asked: its rows.
        store: with the responses to all of them.
        verifier: judges.
        embedder: embeds the samples' reasoning, where a problem has two or more.

    Raises:
        RewardError: the grader cannot start.
        EmbeddingError: an embedder failed or was late.
    """
    for first in range(0, len(asked), _CHUNK):
        chunk = asked[first : first + _CHUNK]
        prompts = [row.prompt for row in chunk]
        greedy = [store.get(prompt.prompt_id, Kind.GREEDY) or () for prompt in prompts]
        samples = [store.get(prompt.prompt_id, Kind.SAMPLES) or () for prompt in prompts]
        responses = [(*g, *s) for g, s in zip(greedy, samples, strict=True)]
        verdicts = verifier.judge_texts(prompts, [[r.text for r in given] for given in responses])
        vectors = _embed(samples, embedder)
        for i, prompt in enumerate(prompts):
            judged = tuple(map(_judged, responses[i], verdicts[i]))
            yield EvaluatedProblem(
                set_name=set_name,
                prompt_id=prompt.prompt_id,
                position=prompt.position,
                question=prompt.question,
                answer=prompt.answer,
                category=prompt.meta.get("category"),
                meta=prompt.meta,
                image_sha256=chunk[i].image_sha256,
                greedy=judged[0] if greedy[i] else None,
                samples=judged[len(greedy[i]) :],
                embeddings=vectors[i],
            )


def _judged(response: SampledResponse, verdict: Verdict) -> JudgedResponse:
    return JudgedResponse(
        text=response.text,
        num_tokens=response.num_tokens,
        is_truncated=response.is_truncated,
        accuracy=verdict.accuracy,
        format=verdict.format,
        extracted=verdict.extracted,
        reason=str(verdict.reason),
    )


def _embed(
    samples: Sequence[Sequence[SampledResponse]], embedder: EmbedderPool | None
) -> list[np.ndarray | None]:
    """[n, D] of each problem; None where there is nothing to compare."""
    texts = [reasoning_span(r.text) for given in samples if len(given) > 1 for r in given]
    if embedder is None or not texts:
        return [None] * len(samples)
    rows = iter(embedder.embed(texts)[0])
    return [np.stack([next(rows) for _ in given]) if len(given) > 1 else None for given in samples]
