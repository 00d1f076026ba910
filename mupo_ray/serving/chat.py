"""Chat messages of a request to prompt tokens and pictures.

The text of all messages is literal: `<|image_pad|>` or `<|im_end|>` in it are letters, and the only
special tokens of a prompt are those that the chat template writes (`data/render.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2

from mupo_ray.serving.requests import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mupo_ray.data.render import PromptRenderer
    from mupo_ray.serving.pictures import PictureLoader
    from mupo_ray.types import RgbImage

ROLES = ("system", "user", "assistant")
"""Roles that a message may have; OpenAI's `developer` is taken for `system`."""

_MESSAGE_FIELDS = frozenset({"role", "content", "name", "refusal"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message, its pictures by URL."""

    role: str
    pieces: tuple[str | None, ...]
    """Text, or None for a picture."""
    urls: tuple[str, ...]
    """Of the pictures, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChat:
    """A chat as an engine takes it."""

    token_ids: list[int]
    """One image token a picture."""
    images: tuple[RgbImage, ...]


def parse_messages(messages: Any, *, max_images: int) -> list[Turn]:
    """Messages in OpenAI's form.

    Raises:
        RefusedError: another shape, an unknown role or kind of content, or too many pictures.
    """
    if not isinstance(messages, list) or not messages:
        raise RefusedError("messages should be a list of at least one message", param="messages")
    turns = [_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]
    count = sum(len(turn.urls) for turn in turns)
    if count > max_images:
        raise RefusedError(
            f"{count} images are in the messages; at most {max_images} are allowed",
            param="messages",
        )
    return turns


async def render(
    turns: list[Turn], renderer: PromptRenderer, loader: PictureLoader, *, max_tokens: int
) -> RenderedChat:
    """Fetch the pictures of a chat and tokenise it.

    Args:
        turns: of the chat.
        renderer: of the model.
        loader: of pictures.
        max_tokens: a text that must be longer than that is refused before it is tokenised.

    Raises:
        RefusedError: a picture or the chat as a whole cannot be used.
    """
    refuse_long((piece for turn in turns for piece in turn.pieces if piece), renderer, max_tokens)
    urls = [(url, f"messages[{i}].content") for i, turn in enumerate(turns) for url in turn.urls]
    images = await asyncio.gather(*(loader.load(url, param) for url, param in urls))
    try:
        token_ids = await asyncio.to_thread(
            renderer.chat_ids, [(turn.role, turn.pieces) for turn in turns]
        )
    except jinja2.TemplateError as err:
        raise RefusedError(
            f"the model's chat template refuses these messages: {err}", param="messages"
        ) from err
    return RenderedChat(token_ids=token_ids, images=tuple(images))


def refuse_long(texts: Iterable[str], renderer: PromptRenderer, max_tokens: int) -> None:
    """Refuse texts that are too long whatever their tokens: tokenising megabytes takes seconds.

    Raises:
        RefusedError: they have more characters than `max_tokens` tokens can hold.
    """
    num_chars = sum(map(len, texts))
    most = max_tokens * renderer.longest_token
    if num_chars > most:
        raise RefusedError(
            f"the prompt has {num_chars} characters, more than the {most} that {max_tokens} tokens "
            "(the model's context) can hold",
            param="messages",
        )


def _turn(message: Any, where: str) -> Turn:
    if not isinstance(message, dict):
        raise RefusedError(
            f"{where} is a {type(message).__name__}; should be an object", param=where
        )
    unknown = sorted(name for name in set(message) - _MESSAGE_FIELDS if message[name])
    if unknown:
        raise RefusedError(f"{where} has {unknown[0][:80]!r}, which is not supported", param=where)
    role = "system" if message.get("role") == "developer" else message.get("role")
    if role not in ROLES:
        raise RefusedError(
            f"{where} has role {str(role)[:80]!r}; should be one of {', '.join(ROLES)}",
            param=where,
        )
    content = message.get("content")
    if isinstance(content, str):
        return Turn(role=role, pieces=(content,) if content else (), urls=())
    if not isinstance(content, list):
        raise RefusedError(
            f"{where}.content is a {type(content).__name__}; should be text or a list of parts",
            param=where,
        )
    pieces: list[str | None] = []
    urls: list[str] = []
    for j, part in enumerate(content):
        kind, value = _part(part, f"{where}.content[{j}]")
        if kind == "image":
            urls.append(value)
            pieces.append(None)
        elif value:
            pieces.append(value)
    return Turn(role=role, pieces=tuple(pieces), urls=tuple(urls))


def _part(part: Any, where: str) -> tuple[str, str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return "text", part["text"]
    if kind == "image_url":
        address = part.get("image_url")
        url = address.get("url") if isinstance(address, dict) else address
        if isinstance(url, str):
            return "image", url
        raise RefusedError(f"{where}.image_url holds no url", param=where)
    raise RefusedError(
        f"{where} should be {{'type': 'text', 'text': ...}} or {{'type': 'image_url', "
        "'image_url': {'url': ...}}",
        param=where,
    )
