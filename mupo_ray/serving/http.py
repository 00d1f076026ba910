"""The HTTP side of a replica: routes, keys, limits, errors in OpenAI's shape.

Endpoints are plain ASGI: a lease of the policy version spans a request to its last byte, streams
too, and a client that goes away cancels all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, Counter, Gauge, generate_latest
from ray.exceptions import TaskCancelledError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mupo_ray.serving.requests import Fields, Receive, RefusedError, error_body, read_json

if TYPE_CHECKING:
    from mupo_ray.serving.api import Answer, HttpApi

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PAGE_FOLDER = Path(__file__).parent / "page"
_VERSION_HEADER = b"x-policy-version"
# The page loads nothing from other hosts and cannot be framed by them.
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_JSON = b"application/json"
_EVENTS = b"text/event-stream; charset=utf-8"

_REQUESTS = Counter("mupo_requests", "Requests answered.", ("route", "status"))
_IN_PROGRESS = Gauge("mupo_requests_in_progress", "Requests in progress.")
_VERSION = Gauge("mupo_policy_version", "Policy version served.")


class _Post:
    """A POST route as an ASGI app."""

    def __init__(
        self, api: HttpApi, route: str, prepare: Callable[[Fields], Awaitable[Answer]]
    ) -> None:
        self._api = api
        self._route = route
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = _Reply(send)
        with _IN_PROGRESS.track_inprogress():
            try:
                async with asyncio.timeout(self._api.args.limits.timeout_s):
                    await self._answer(Headers(scope=scope), receive, reply)
            except RefusedError as err:
                await reply.fail(err.body(), err.status)
            except TimeoutError:
                limit = f"{self._api.args.limits.timeout_s:g}"
                await reply.fail(error_body(f"not done within {limit} s", status=408), 408)
            except Exception:
                logger.exception("%s failed", self._route)
                message = "the server failed at this request; its log says why"
                await reply.fail(error_body(message, status=500), 500)
        _REQUESTS.labels(self._route, reply.status).inc()

    async def _answer(self, headers: Headers, receive: Receive, reply: _Reply) -> None:
        api = self._api
        api.authorise(headers)
        api.refuse_overload()
        try:
            fields = await read_json(headers, receive, api.args.limits.max_body_bytes)
        except TaskCancelledError as err:
            # Serve's own way to say that nobody is there any more.
            raise RefusedError("the client went away before its request was whole") from err
        answer = await self._prepare(fields)
        async with api.gate.lease() as version:
            body = await answer(version)
            if isinstance(body, bytes):
                await reply.whole(body, 200, version)
                return
            async with contextlib.aclosing(body) as events:
                async for event in events:
                    await reply.event(event, version)
            await reply.end()


class _Reply:
    """One response, begun at most once."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        """Of HTTP, once begun."""

    async def whole(self, body: bytes, status: int, version: int | None = None) -> None:
        """Send everything."""
        await self._start(status, _JSON, version, len(body))
        await self._send({"type": "http.response.body", "body": body})

    async def event(self, event: bytes, version: int) -> None:
        """Send an event of a stream."""
        if not self.status:
            await self._start(200, _EVENTS, version, None)
        await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def end(self) -> None:
        """End a stream."""
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, body: bytes, status: int) -> None:
        """Send an error: as a response, or as the last event of a stream."""
        if not self.status:
            await self.whole(body, status)
            return
        event = b"data: " + body + b"\n\n"
        await self._send({"type": "http.response.body", "body": event, "more_body": True})
        await self.end()

    async def _start(self, status: int, kind: bytes, version: int | None, size: int | None) -> None:
        self.status = status
        headers = [(b"content-type", kind), (b"x-content-type-options", b"nosniff")]
        if size is None:
            headers.append((b"cache-control", b"no-cache"))
        else:
            headers.append((b"content-length", str(size).encode()))
        if version is not None:
            headers.append((_VERSION_HEADER, str(version).encode()))
        if status == 429:
            headers.append((b"retry-after", b"1"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def build_http_app(api: HttpApi) -> Starlette:
    """The routes."""
    posts = {
        "/v1/chat/completions": api.chat,
        "/v1/completions": api.complete,
        "/v1/strategies": api.answers,
    }

    async def models(request: Request) -> Response:
        api.authorise(request.headers)
        return _versioned(JSONResponse(api.models()), api)

    async def model(request: Request) -> Response:
        api.authorise(request.headers)
        if request.path_params["name"] != api.args.name:
            raise RefusedError(f"should be {api.args.name!r}: no other model is here", status=404)
        return _versioned(JSONResponse(api.models()["data"][0]), api)

    async def health(request: Request) -> Response:
        status, body = api.health()
        return _versioned(JSONResponse(body, status_code=status), api)

    async def metrics(request: Request) -> Response:
        api.authorise(request.headers)
        _VERSION.set(api.gate.version)
        return Response(generate_latest(REGISTRY), headers={"content-type": CONTENT_TYPE_LATEST})

    async def page(request: Request) -> Response:
        if not (PAGE_FOLDER / "index.html").is_file():
            raise RefusedError("this installation has no page", status=404)
        return FileResponse(PAGE_FOLDER / "index.html", headers=_PAGE_HEADERS)

    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(api.args.cors_origins),
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type"],
        expose_headers=[_VERSION_HEADER.decode()],
    )
    return Starlette(
        routes=[
            *(
                Route(path, _Post(api, path, prepare), methods=["POST"])
                for path, prepare in posts.items()
            ),
            Route("/v1/models", models),
            Route("/v1/models/{name}", model),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/", page),
            Mount("/page", _PageFiles(directory=PAGE_FOLDER, check_dir=False)),
        ],
        middleware=[cors] if api.args.cors_origins else [],
        exception_handlers={RefusedError: _on_refusal, HTTPException: _on_http_error},
    )


class _PageFiles(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_PAGE_HEADERS)
        return response


async def _on_refusal(request: Request, err: Exception) -> Response:
    assert isinstance(err, RefusedError)
    return Response(err.body(), status_code=err.status, media_type=_JSON.decode())


async def _on_http_error(request: Request, err: Exception) -> Response:
    assert isinstance(err, HTTPException)
    body = error_body(f"{request.url.path[:200]}: {err.detail}", status=err.status_code)
    return Response(
        body, status_code=err.status_code, media_type=_JSON.decode(), headers=err.headers
    )


def _versioned(response: Response, api: HttpApi) -> Response:
    response.headers[_VERSION_HEADER.decode()] = str(api.gate.version)
    return response
