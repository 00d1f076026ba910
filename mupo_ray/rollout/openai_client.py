"""Responses from any address that speaks OpenAI's chat completions.

    prompts --> at most `max_concurrent` requests at a time, one a response --> responses
                        |
                        +-- too busy, failed, late or no reply at all: again, after a pause

Each response has a seed of its own, which servers that know seeds (vLLM's, for one) keep to.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import queue
import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mupo_ray.core.seeding import derive_seed
from mupo_ray.errors import RolloutError
from mupo_ray.types import SampledResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mupo_ray.data.chat import ChatRenderer
    from mupo_ray.rollout.pool import SamplingPlan
    from mupo_ray.types import Prompt

_RETRIED_CODES = frozenset({408, 409, 425, 429})
_MAX_PAUSE_S = 30.0
_STOP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatServer:
    """A served model and how to ask it."""

    address: str
    """Base of the API: `http://host:8000/v1`."""
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; servers of one's own want none."""
    max_concurrent: int = 16
    timeout_s: float = 300.0
    """Hard limit of one try."""
    max_retries: int = 5
    first_pause_s: float = 0.5
    """Before the second try; it doubles with each one."""


class UnreadableReplyError(Exception):
    """The server answered with something that is no chat completion."""


class ChatClient:
    """Asks one server; prompts are taken only as there is room for them."""

    def __init__(self, server: ChatServer, renderer: ChatRenderer) -> None:
        self._server = server
        self._renderer = renderer

    def stream(
        self, tasks: Iterable[tuple[Prompt, SamplingPlan]]
    ) -> Iterator[tuple[int, tuple[SampledResponse, ...]]]:
        """Responses to prompts, as they are finished.

        Args:
            tasks: prompts, each with how to sample from it; any number.

        Yields:
            Number of a task and its responses in order of their seeds.

        Raises:
            RolloutError: a request failed for good; the rest is given up.
            ImportError: no `openai` package.
        """
        done: queue.Queue[tuple[int, tuple[SampledResponse, ...]] | BaseException | None]
        done = queue.Queue()
        feed = _Feed(tasks)
        stop = threading.Event()

        def work() -> None:
            # A loop of its own: the caller may stand in one.
            try:
                asyncio.run(self._ask_all(feed, done, stop))
                done.put(None)
            except BaseException as err:  # Raised again in the thread that waits.
                done.put(err)

        thread = threading.Thread(target=work, name="chat-client", daemon=True)
        thread.start()
        try:
            while (item := done.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            thread.join(timeout=_STOP_S)

    async def _ask_all(self, feed: _Feed, done: queue.Queue[Any], stop: threading.Event) -> None:
        try:
            import openai
        except ImportError as error:
            raise ImportError(
                "an address needs the package openai, which comes with vLLM: "
                'pip install "mupo_ray[gpu]" or "mupo_ray[cpu]"'
            ) from error
        server = self._server
        room = asyncio.Semaphore(server.max_concurrent)
        async with openai.AsyncOpenAI(
            base_url=server.address,
            api_key=os.environ.get(server.api_key_env) or "none",
            max_retries=0,
            timeout=server.timeout_s,
        ) as client:
            open_tasks: set[asyncio.Task[None]] = set()

            async def one(number: int, prompt: Prompt, plan: SamplingPlan) -> None:
                messages = self._renderer.messages(prompt)
                first = derive_seed(plan.seed, prompt.prompt_id)
                asked = [
                    self._ask(client, room, messages, plan, first + i, prompt.prompt_id)
                    for i in range(plan.num_generations)
                ]
                done.put((number, tuple(await asyncio.gather(*asked))))

            # As many prompts as there are requests at a time keep the server busy.
            while not stop.is_set():
                if len(open_tasks) < server.max_concurrent:
                    task = await asyncio.to_thread(feed.next)
                    if task is not None:
                        open_tasks.add(asyncio.create_task(one(*task)))
                        continue
                if not open_tasks:
                    return
                finished, open_tasks = await asyncio.wait(
                    open_tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
                )
                for ended in finished:
                    ended.result()

    async def _ask(
        self,
        client: Any,
        room: asyncio.Semaphore,
        messages: list[dict[str, Any]],
        plan: SamplingPlan,
        seed: int,
        prompt_id: str,
    ) -> SampledResponse:
        server = self._server
        async with room:
            for attempt in itertools.count():
                try:
                    # The client's own limit is for each read; a reply that drips never meets it.
                    reply = await asyncio.wait_for(
                        client.chat.completions.create(
                            model=server.model,
                            messages=messages,
                            temperature=plan.temperature,
                            top_p=plan.top_p,
                            max_tokens=plan.max_new_tokens,
                            seed=seed,
                        ),
                        server.timeout_s,
                    )
                    return _response(reply)
                except Exception as error:
                    # Connection, status, time limit, or a reply that is none: all named below.
                    if attempt >= server.max_retries or not _is_worth_another_try(error):
                        tries = f"{attempt + 1} {'try' if attempt == 0 else 'tries'}"
                        raise RolloutError(
                            f"no response to prompt {prompt_id} from {server.model} at "
                            f"{server.address} after {tries}: {_said(error, server.timeout_s)}"
                        ) from error
                    await asyncio.sleep(_pause_s(error, attempt, server.first_pause_s))
        raise AssertionError("unreachable")


class _Feed:
    """Tasks one by one, with their numbers; asked by one thread at a time."""

    def __init__(self, tasks: Iterable[tuple[Prompt, SamplingPlan]]) -> None:
        self._tasks = enumerate(tasks)

    def next(self) -> tuple[int, Prompt, SamplingPlan] | None:
        """The next task; None at the end."""
        for number, (prompt, plan) in self._tasks:
            return number, prompt, plan
        return None


def _response(reply: Any) -> SampledResponse:
    try:
        choice = reply.choices[0]
        message = choice.message
        num_tokens = int(reply.usage.completion_tokens)
        # Servers that take the reasoning out of the text put it beside it.
        reasoning = getattr(message, "reasoning_content", None) or getattr(
            message, "reasoning", None
        )
        text = message.content or ""
        is_truncated = choice.finish_reason == "length"
    except (AttributeError, TypeError, IndexError, ValueError) as error:
        raise UnreadableReplyError(
            f"got {str(reply)[:120]!r}, expected a chat completion with its usage"
        ) from error
    if reasoning:
        text = f"<think>{reasoning}</think>{text}"
    return SampledResponse(text=text, num_tokens=num_tokens, is_truncated=is_truncated)


def _is_worth_another_try(error: Exception) -> bool:
    code = getattr(error, "status_code", None)
    # What has no status is a connection, a time limit or a garbled reply.
    return code is None or code in _RETRIED_CODES or code >= 500 or code < 400


def _pause_s(error: Exception, attempt: int, first_s: float) -> float:
    """Doubling, with some chance so that requests do not come back all at once."""
    pause_s = min(_MAX_PAUSE_S, first_s * 2.0**attempt) * random.uniform(0.75, 1.25)
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    with contextlib.suppress(ValueError):
        # A date in place of seconds says little that doubling does not.
        pause_s = max(pause_s, min(_MAX_PAUSE_S, float(headers.get("retry-after", "0"))))
    return pause_s


def _said(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return f"no reply within {timeout_s:g} s"
    if isinstance(error, json.JSONDecodeError):
        return f"a reply that is not JSON: {error}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
