"""`/v1/strategies`: several answers to a question, grouped by how they reason, and the votes.

question --frame--> n samples --extract, embed--> groups (training's partition) --> votes
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, PositiveInt, ValidationError

from mupo_ray.errors import ConfigError
from mupo_ray.rewards.extract import extract_answer, reasoning_span
from mupo_ray.serving.chat import RenderedChat, Turn
from mupo_ray.serving.requests import RefusedError, refusal_of
from mupo_ray.serving.vote import VoteOutcome, group_and_vote
from mupo_ray.settings.sections import Section

if TYPE_CHECKING:
    from mupo_ray.serving.openai_engine import OpenAiEngine

Scorer = Callable[[str, Sequence[str]], Sequence[float]]
"""(question, texts) -> a finite number for each text, higher is better."""

Embed = Callable[[list[str]], Awaitable[tuple[np.ndarray, float]]]
"""Texts -> [N, D] rows of their embeddings, and the share of texts found in the cache."""

_USUAL_MIN_GROUP_SIZE = 3


class AnswersRequest(Section):
    """Body of a request, but for its messages."""

    model: str | None = None
    """Name of the model."""
    n: PositiveInt = 8
    """Responses to sample."""
    k: PositiveInt = 3
    """Groups to form."""
    min_group_size: PositiveInt | None = None
    """Fewest responses in a group; 3, or as many as n allows, where None."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Of sampling; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of probability that is sampled from."""
    max_tokens: PositiveInt | None = None
    """Longest response; as long as the model allows where None."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Of sampling and grouping; sampling differs from call to call where None."""
    stream: bool = False
    """Send progress as server-sent events."""
    options: dict[str, str] | None = None
    """Of a multiple choice question, letter -> text."""

    @property
    def group_size(self) -> int:
        """Fewest responses in a group."""
        return self.min_group_size or max(1, min(_USUAL_MIN_GROUP_SIZE, self.n // self.k))


@dataclass(slots=True)
class _Growing:
    text: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersService:
    """Samples, embeds, groups."""

    engine: OpenAiEngine
    embed: Embed
    template: str
    """Frame of a question, with `{problem}` in it."""
    is_think_opened: bool
    """The chat template ends every prompt with `<think>`."""
    model: str
    """Name in the API."""
    max_new_tokens: int | None
    """Longest response where a request says nothing."""
    scorer: Scorer | None = None

    def framed(self, turns: Sequence[Turn]) -> list[Turn]:
        """The chat with the frame around its last question, as in training."""
        last = turns[-1]
        if last.role != "user":
            raise RefusedError(
                f"the last message has role {last.role!r}; should be 'user'", param="messages"
            )
        before, after = self.template.split("{problem}")
        pieces = (before, *last.pieces, after)
        return [
            *turns[:-1],
            Turn(
                role="user",
                pieces=tuple(piece for piece in pieces if piece != ""),
                urls=last.urls,
            ),
        ]

    async def events(
        self, request: AnswersRequest, prompt: RenderedChat, question: str, version: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Progress, and at the end the whole result.

        Raises:
            RefusedError: vLLM refuses the request.
            EmbeddingError: the reasoning cannot be embedded.
        """
        identity = f"strat-{uuid.uuid4().hex}"
        growing = [_Growing() for _ in range(request.n)]
        num_prompt_tokens = 0
        sampled = self.engine.sample(
            prompt,
            identity,
            num_generations=request.n,
            max_new_tokens=request.max_tokens or self.max_new_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
        )
        async with contextlib.aclosing(sampled) as pieces:
            async for piece in pieces:
                num_prompt_tokens = piece.num_prompt_tokens or num_prompt_tokens
                one = growing[piece.index]
                one.text += piece.text
                one.num_tokens += piece.num_tokens
                if piece.text:
                    yield {"type": "delta", "index": piece.index, "text": piece.text}
                if piece.finish_reason is not None:
                    one.finish_reason = piece.finish_reason
                    yield {
                        "type": "response",
                        "index": piece.index,
                        "text": one.text,
                        "extracted": self._extract(one.text),
                        "finish_reason": one.finish_reason,
                    }
        result = await self._result(request, question, [one.text for one in growing])
        num_tokens = sum(one.num_tokens for one in growing)
        yield {
            "type": "strategies",
            "id": identity,
            "object": "strategies",
            "created": int(time.time()),
            "model": self.model,
            "policy_version": version,
            **_with_reasons(result, growing),
            "usage": {
                "prompt_tokens": num_prompt_tokens,
                "completion_tokens": num_tokens,
                "total_tokens": num_prompt_tokens + num_tokens,
            },
        }

    async def _result(
        self, request: AnswersRequest, question: str, texts: list[str]
    ) -> VoteOutcome:
        rows, _ = await self.embed([reasoning_span(text) for text in texts])
        scores = None
        if self.scorer is not None:
            scores = await asyncio.to_thread(self.scorer, question, texts)
        return await asyncio.to_thread(
            group_and_vote,
            texts=texts,
            embeddings=np.asarray(rows),
            answers=[self._extract(text) for text in texts],
            num_groups=request.k,
            min_group_size=request.group_size,
            seed=request.seed or 0,
            scores=scores,
            options=request.options,
        )

    def _extract(self, text: str) -> str | None:
        return extract_answer("<think>" + text if self.is_think_opened else text)


def parse_request(fields: dict[str, Any]) -> AnswersRequest:
    """The request that a body holds.

    Raises:
        RefusedError: an unknown field, or a value of another type or out of range.
    """
    settings = {name: value for name, value in fields.items() if name != "messages"}
    try:
        return AnswersRequest.model_validate(settings)
    except ValidationError as err:
        raise refusal_of(err) from err


def load_scorer(path: str) -> Scorer:
    """The function that `module:function` names.

    Raises:
        ConfigError: no such module or function.
    """
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ImportError as err:
        raise ConfigError(f"scorer {path!r}: cannot import {module} ({err})") from err
    if not callable(function):
        raise ConfigError(f"scorer {path!r}: {module} has no function {name!r}")
    scorer: Scorer = function
    return scorer


def _with_reasons(result: VoteOutcome, growing: Sequence[_Growing]) -> dict[str, Any]:
    fields = result.as_dict()
    fields["responses"] = [
        {**response, "finish_reason": one.finish_reason}
        for response, one in zip(fields["responses"], growing, strict=True)
    ]
    return fields
