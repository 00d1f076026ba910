"""Responses of a model behind an address.

    prompts --> as many at a time as there are requests --> one request a response --> responses

Each response has a seed of its own, which servers that know seeds (vLLM's, for one) keep to.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import TYPE_CHECKING

from mupo_ray.core.seeding import derive_seed
from mupo_ray.errors import RolloutError
from mupo_ray.openai_client import ChatClient, ChatServer, NoReplyError
from mupo_ray.types import SampledResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from openai.types.chat import ChatCompletion

    from mupo_ray.data.chat import ChatRenderer
    from mupo_ray.rollout.pool import SamplingPlan
    from mupo_ray.types import Prompt

_STOP_S = 10.0

_Numbered = tuple[int, tuple[SampledResponse, ...]]
"""Number of a task and its responses."""


class UnreadableReplyError(Exception):
    """The server answered with something that is no chat completion."""


class ServedSampler:
    """Samples from a served model; prompts are taken only as there is room for them."""

    def __init__(self, server: ChatServer, renderer: ChatRenderer) -> None:
        self._server = server
        self._renderer = renderer

    def stream(self, tasks: Iterable[tuple[Prompt, SamplingPlan]]) -> Iterator[_Numbered]:
        """Responses to prompts, as they are finished.

        Args:
            tasks: prompts, each with how to sample from it; any number.

        Yields:
            Number of a task and its responses in order of their seeds.

        Raises:
            RolloutError: a request failed for good; the rest is given up.
            ImportError: no `openai` package.
        """
        done: queue.Queue[_Numbered | BaseException | None] = queue.Queue()
        stop = threading.Event()

        def work() -> None:
            # A loop of its own: the caller may stand in one.
            try:
                asyncio.run(self._sample_all(enumerate(tasks), done.put, stop))
                done.put(None)
            except BaseException as err:  # Raised again in the thread that waits.
                done.put(err)

        thread = threading.Thread(target=work, name="served-sampler", daemon=True)
        thread.start()
        try:
            while (item := done.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            thread.join(timeout=_STOP_S)

    async def _sample_all(
        self,
        tasks: Iterator[tuple[int, tuple[Prompt, SamplingPlan]]],
        finish: Callable[[_Numbered], None],
        stop: threading.Event,
    ) -> None:
        async def sample(number: int, prompt: Prompt, plan: SamplingPlan) -> None:
            finish((number, await self._sample(client, prompt, plan)))

        running: set[asyncio.Task[None]] = set()
        async with ChatClient(self._server) as client:
            # As many prompts as there are requests at a time keep the server busy.
            while not stop.is_set():
                if len(running) < self._server.max_concurrent:
                    # Reading a prompt may take a while, and must not keep replies waiting.
                    task = await asyncio.to_thread(next, tasks, None)
                    if task is not None:
                        number, (prompt, plan) = task
                        running.add(asyncio.create_task(sample(number, prompt, plan)))
                        continue
                if not running:
                    return
                finished, running = await asyncio.wait(
                    running, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
                )
                for ended in finished:
                    ended.result()

    async def _sample(
        self, client: ChatClient, prompt: Prompt, plan: SamplingPlan
    ) -> tuple[SampledResponse, ...]:
        messages = self._renderer.messages(prompt)
        first_seed = derive_seed(plan.seed, prompt.prompt_id)
        requests = [
            client.ask(
                messages,
                _response,
                temperature=plan.temperature,
                top_p=plan.top_p,
                max_tokens=plan.max_new_tokens,
                seed=first_seed + i,
            )
            for i in range(plan.num_generations)
        ]
        try:
            return tuple(await asyncio.gather(*requests))
        except NoReplyError as error:
            raise RolloutError(
                f"no response to prompt {prompt.prompt_id} from {self._server} {error}"
            ) from error


def _response(reply: ChatCompletion) -> SampledResponse:
    try:
        choice = reply.choices[0]
        message = choice.message
        num_tokens = int(reply.usage.completion_tokens)  # type: ignore[union-attr]
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
