"""Responses to records: verdicts and embeddings, derived anew wherever they are wanted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from mupo_ray.evaluation.samples import EvaluatedProblem, JudgedResponse
from mupo_ray.evaluation.store import Kind
from mupo_ray.rewards.extract import reasoning_span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mupo_ray.evaluation.store import ResponseStore
    from mupo_ray.rewards.verdicts import Verifier
    from mupo_ray.rollout.embedder import EmbedderPool
    from mupo_ray.types import Prompt, SampledResponse, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt as a record needs it, without its pixels."""

    prompt: Prompt
    image_sha256: tuple[str, ...]

    @classmethod
    def of(cls, prompt: Prompt) -> Self:
        """Drop what only sampling needs."""
        return cls(
            prompt=replace(prompt, images=(), token_ids=()),
            image_sha256=tuple(image.sha256 for image in prompt.images),
        )


# Problems that are judged and embedded in one call.
_CHUNK = 32


def judge_stored(
    set_name: str,
    questions: Sequence[Question],
    store: ResponseStore,
    verifier: Verifier,
    embedder: EmbedderPool | None,
) -> Iterator[EvaluatedProblem]:
    """Records of a set's problems, in order, from stored responses.

    Args:
        set_name: of the set.
        questions: of the set.
        store: with the responses to all of them.
        verifier: judges.
        embedder: embeds the samples' reasoning, where a problem has two or more.

    Raises:
        RewardError: no algebra worker can start.
        EmbeddingError: an embedder failed or was late.
    """
    for first in range(0, len(questions), _CHUNK):
        chunk = questions[first : first + _CHUNK]
        greedy, samples = (
            [store.get(question.prompt.prompt_id, kind) or () for question in chunk]
            for kind in (Kind.GREEDY, Kind.SAMPLES)
        )
        problems = judge_problems(set_name, chunk, greedy, samples, verifier)
        yield from problems if embedder is None else embed_problems(problems, embedder)


def judge_problems(
    set_name: str,
    questions: Sequence[Question],
    greedy: Sequence[Sequence[SampledResponse]],
    samples: Sequence[Sequence[SampledResponse]],
    verifier: Verifier,
) -> list[EvaluatedProblem]:
    """Records of problems, in order, without embeddings.

    Args:
        set_name: of the problems' set.
        questions: of the problems.
        greedy: the answer at temperature 0 to each, or none.
        samples: the sampled answers to each.
        verifier: judges; the user's own rewards are not asked.

    Raises:
        DataError: a problem's options are not what they should be.
        RewardError: no algebra worker can start.
    """
    responses = [(*g, *s) for g, s in zip(greedy, samples, strict=True)]
    verdicts = verifier.verdicts_of_texts(
        [question.prompt for question in questions],
        [[response.text for response in answers] for answers in responses],
    )
    problems = []
    for i, question in enumerate(questions):
        judged = tuple(map(_judged, responses[i], verdicts[i]))
        problems.append(
            EvaluatedProblem(
                set_name=set_name,
                prompt_id=question.prompt.prompt_id,
                position=question.prompt.position,
                question=question.prompt.question,
                answer=question.prompt.answer,
                category=question.prompt.meta.get("category"),
                meta=question.prompt.meta,
                image_sha256=question.image_sha256,
                greedy=judged[0] if greedy[i] else None,
                samples=judged[len(greedy[i]) :],
            )
        )
    return problems


def embed_problems(
    problems: Sequence[EvaluatedProblem], embedder: EmbedderPool
) -> list[EvaluatedProblem]:
    """The same with embeddings of the samples' reasoning, where there are two or more to compare.

    Raises:
        EmbeddingError: a text could not be embedded.
    """
    several = [len(problem.samples) > 1 for problem in problems]
    texts = [
        reasoning_span(response.text)
        for problem, is_embedded in zip(problems, several, strict=True)
        if is_embedded
        for response in problem.samples
    ]
    if not texts:
        return list(problems)
    rows = iter(embedder.embed(texts)[0])
    return [
        replace(problem, embeddings=np.stack([next(rows) for _ in problem.samples]))
        if is_embedded
        else problem
        for problem, is_embedded in zip(problems, several, strict=True)
    ]


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
