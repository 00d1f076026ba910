"""Handles of the services' actors: what callers may ask of them, and with what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mupo_ray.rollout.engine import SampleRequest

P = ParamSpec("P")


class RemoteMethod(Protocol[P]):
    """A method of an actor."""

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call it; returns a reference to what it will return."""
        ...


class EngineHandle(Protocol):
    """An actor of `VllmEngine`, but for vLLM's own transports (`sync/native.py`)."""

    generate: RemoteMethod[[SampleRequest]]
    abort: RemoteMethod[[list[str]]]
    stage: RemoteMethod[[Mapping[str, Any]]]
    commit: RemoteMethod[[int, str, str]]
    serve_loaded: RemoteMethod[[int]]
    status: RemoteMethod[[]]
    shutdown: RemoteMethod[[]]


class EmbedderHandle(Protocol):
    """An actor of `TextEmbedder`."""

    ready: RemoteMethod[[]]
    embed: RemoteMethod[[list[str]]]
