"""What the routes of a replica do, short of HTTP: check, render, and hand to the engine."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from mupo_ray.errors import ConfigError
from mupo_ray.serving.answers import AnswersService, load_scorer, parse_request
from mupo_ray.serving.chat import RenderedChat, Turn, parse_messages, render
from mupo_ray.serving.pictures import PictureLoader
from mupo_ray.serving.requests import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    Fields,
    RefusedError,
    check_fields,
    check_limits,
)

if TYPE_CHECKING:
    from mupo_ray.data.render import PromptRenderer
    from mupo_ray.serving.answers import Embed
    from mupo_ray.serving.arguments import ServingArgs
    from mupo_ray.serving.gate import VersionGate
    from mupo_ray.serving.openai_engine import OpenAiEngine

Body = bytes | AsyncGenerator[bytes, None]
"""The JSON of a response, or its events."""

Answer = Callable[[int], Awaitable[Body]]
"""Policy version -> body; called with the version leased."""

_STARTED_AT = int(time.time())
_EVENT = "data: {"


class HttpApi:
    """What the routes do."""

    def __init__(
        self,
        *,
        args: ServingArgs,
        engine: OpenAiEngine,
        gate: VersionGate,
        renderer: PromptRenderer,
        embed: Embed,
        checkpoint: str,
    ) -> None:
        """Put the pieces together.

        Args:
            args: of the application.
            engine: answers requests.
            gate: of the policy version.
            renderer: of prompts.
            embed: of reasoning.
            checkpoint: name of the weights.

        Raises:
            ConfigError: the key that `api_key_env` names is not there, or no such scorer.
        """
        self.args = args
        self.gate = gate
        self.checkpoint = checkpoint
        """Name of the weights that are served."""
        self.swap_fault: str | None = None
        """Why the weights asked for last are not served."""
        self._engine = engine
        self._renderer = renderer
        self._key = _key(args.api_key_env)
        self._loader = PictureLoader(args.limits, args.image_urls)
        self._answers = AnswersService(
            engine=engine,
            embed=embed,
            template=renderer.plan.template,
            is_think_opened=renderer.opens_think,
            model=args.name,
            max_new_tokens=args.limits.max_new_tokens,
            scorer=None if args.scorer is None else load_scorer(args.scorer),
        )

    def authorise(self, headers: Mapping[str, str]) -> None:
        """Refuse a request that lacks the key, in a time that says nothing of the key."""
        if self._key is None:
            return
        key = headers.get("authorization", "").removeprefix("Bearer ").encode()
        if not hmac.compare_digest(key, self._key):
            raise RefusedError("the API key is missing or wrong", status=401)

    def refuse_overload(self) -> None:
        """Refuse a request that would wait behind too many others."""
        most = self.args.limits.max_concurrent
        if self.gate.num_leases >= most:
            raise RefusedError(
                f"{most} requests are in progress, the most that are taken", status=429
            )

    async def chat(self, fields: Fields) -> Answer:
        """`/v1/chat/completions`."""
        fields = self._checked(fields, CHAT_FIELDS)
        prompt = await self._rendered(self._turns(fields))

        async def answer(version: int) -> Body:
            return _stamped(await self._engine.chat(fields, prompt), version)

        return answer

    async def complete(self, fields: Fields) -> Answer:
        """`/v1/completions`."""
        fields = self._checked(fields, COMPLETION_FIELDS)

        async def answer(version: int) -> Body:
            return _stamped(await self._engine.complete(fields), version)

        return answer

    async def answers(self, fields: Fields) -> Answer:
        """`/v1/strategies`."""
        request = parse_request(fields)
        self._check_limits(fields)
        if request.k > request.n:
            raise RefusedError(f"k = {request.k} exceeds n = {request.n}", param="k")
        turns = self._answers.framed(self._turns(fields))
        system = self.args.system_prompt
        if system is not None and turns[0].role != "system":
            turns = [Turn(role="system", pieces=(system,), urls=()), *turns]
        prompt = await self._rendered(turns)
        question = "".join(piece for piece in turns[-1].pieces if piece is not None)

        async def answer(version: int) -> Body:
            events = self._answers.events(request, prompt, question, version)
            if request.stream:
                return _as_sse(events)
            async with contextlib.aclosing(events):
                last = [event async for event in events if event["type"] == "strategies"][-1]
            return json.dumps({name: v for name, v in last.items() if name != "type"}).encode()

        return answer

    def models(self) -> dict[str, Any]:
        """`/v1/models`."""
        limits = self.args.limits
        return {
            "object": "list",
            "data": [
                {
                    "id": self.args.name,
                    "object": "model",
                    "created": _STARTED_AT,
                    "owned_by": "mupo_ray",
                    "max_model_len": self.args.engine.max_model_len,
                    "policy_version": self.gate.version,
                    "checkpoint": self.checkpoint,
                    "limits": {
                        "max_n": limits.max_n,
                        "max_images": limits.max_images,
                        "max_image_bytes": limits.max_image_bytes,
                        "max_image_pixels": limits.max_image_pixels,
                        "image_urls": self.args.image_urls is not None,
                    },
                }
            ],
        }

    def health(self) -> tuple[int, dict[str, Any]]:
        """`/health`: status and body."""
        is_well = not self._engine.is_dead
        body = {
            "status": "ok" if is_well else "the engine is dead",
            "policy_version": self.gate.version,
            "checkpoint": self.checkpoint,
            "swap_fault": self.swap_fault,
        }
        return (200 if is_well else 503), body

    def _checked(self, fields: Fields, supported: frozenset[str]) -> Fields:
        fields = check_fields(fields, supported)
        self._check_limits(fields)
        return fields

    def _check_limits(self, fields: Fields) -> None:
        model = fields.get("model")
        if isinstance(model, str) and model != self.args.name:
            raise RefusedError(
                f"model {model[:80]!r} does not exist; {self.args.name!r} is served",
                status=404,
                param="model",
            )
        check_limits(
            fields,
            self.args.limits,
            max_model_len=self.args.engine.max_model_len,
            vocab_size=self._renderer.vocab_size,
        )

    def _turns(self, fields: Fields) -> list[Turn]:
        return parse_messages(fields.get("messages"), max_images=self.args.limits.max_images)

    async def _rendered(self, turns: list[Turn]) -> RenderedChat:
        return await render(
            turns, self._renderer, self._loader, max_tokens=self.args.engine.max_model_len
        )


def _stamped(body: bytes | AsyncGenerator[str, None], version: int) -> Body:
    """The same with the policy version as the first field of every object."""
    mark = f'"policy_version":{version},'
    if isinstance(body, bytes):
        return b"{" + mark.encode() + body[1:]
    return _stamped_events(body, _EVENT + mark)


async def _stamped_events(
    events: AsyncGenerator[str, None], start: str
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(events):
        async for event in events:
            if event.startswith(_EVENT):
                event = start + event[len(_EVENT) :]
            yield event.encode()


async def _as_sse(events: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(events):
        async for event in events:
            yield b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _key(name: str | None) -> bytes | None:
    if name is None:
        return None
    key = os.environ.get(name, "")
    if not key:
        raise ConfigError(
            f"api_key_env = {name!r}: this environment variable is empty on this node; should hold "
            "the key"
        )
    return key.encode()
