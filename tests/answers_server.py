"""A small server that speaks the contract of `/v1/strategies` with responses that a test writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

import mupo_ray.serving
from mupo_ray.rewards.extract import extract_answer
from mupo_ray.serving.vote import group_and_vote

PAGE = Path(mupo_ray.serving.__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(kw_only=True)
class Script:
    """What the server does next."""

    texts: Sequence[str] = ()
    """Responses; a request for n gets the first n."""
    embeddings: Sequence[Sequence[float]] | None = None
    """Of them; None takes a direction for each first word."""
    limits: dict[str, int] = field(default_factory=dict)
    """What `/v1/models` says of them."""
    key: str | None = None
    """The API key that is asked for."""
    refusal: tuple[int, Any] | None = None
    """Status and body of every answer to a question."""
    ends_after: int | None = None
    """Complete responses after which the stream ends, without a word."""
    fails_after: int | None = None
    """Complete responses after which the stream says that it failed."""
    waits_after: int | None = None
    """Complete responses after which nothing comes until `go_on` is set or the client goes."""
    go_on: threading.Event = field(default_factory=threading.Event)
    client_went: threading.Event = field(default_factory=threading.Event)
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the questions that came."""


def grouped(texts: Sequence[str], embeddings: Any, question: dict[str, Any]) -> dict[str, Any]:
    """The last message of a stream."""
    if embeddings is None:
        words = [(text.replace("<think>", "").split() or [""])[0] for text in texts]
        embeddings = np.eye(len(texts))[[words.index(word) for word in words]]
    result = group_and_vote(
        texts=texts,
        embeddings=embeddings,
        answers=[extract_answer(text) for text in texts],
        num_groups=question["k"],
        min_group_size=question.get("min_group_size", 1),
        seed=0,
    ).as_dict()
    for response in result["responses"]:
        response["finish_reason"] = "stop"
    return {
        "type": "strategies", "id": "1", "object": "strategies", "created": 0, "model": "puzzles",
        "policy_version": 60, "usage": {}, **result,
    }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    script: Script

    def do_GET(self) -> None:
        name = "index.html" if self.path == "/" else self.path.removeprefix("/page/")
        if self.path == "/v1/models":
            if self.is_let_in():
                models = {
                    "object": "list",
                    "data": [{"id": "puzzles", "limits": self.script.limits}],
                }
                self.reply(200, models, {"X-Policy-Version": "60"})
        elif (PAGE / name).is_file() and (PAGE / name).resolve().is_relative_to(PAGE):
            self.send_response(200)
            self.send_header("Content-Type", f"{TYPES[Path(name).suffix]}; charset=utf-8")
            self.send_header("Content-Security-Policy", POLICY)
            self.end_headers()
            self.wfile.write((PAGE / name).read_bytes())
        else:
            self.reply(404, {})

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_let_in():
            return
        self.script.asked.append(question)
        if self.script.refusal:
            self.reply(*self.script.refusal)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for message in self.messages(question):
                self.wfile.write(f"data: {json.dumps(message)}\n\n".encode())
                self.wfile.flush()
            if self.script.fails_after is None and self.script.ends_after is None:
                self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.script.client_went.set()

    def messages(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        script = self.script
        texts = script.texts[: question["n"]]
        for number, text in enumerate(texts):
            if number == script.ends_after:
                return
            if number == script.fails_after:
                yield {"error": {"message": "the engine is gone", "type": "server_error"}}
                return
            if number == script.waits_after:
                while not script.go_on.wait(0.05):
                    yield {"type": "delta", "index": number, "text": "."}
            half = len(text) // 2
            yield {"type": "delta", "index": number, "text": text[:half]}
            yield {"type": "delta", "index": number, "text": text[half:]}
            extracted = extract_answer(text)
            yield {
                "type": "response", "index": number, "text": text, "extracted": extracted,
                "finish_reason": "stop",
            }  # fmt: skip
        yield grouped(texts, script.embeddings, question)

    def is_let_in(self) -> bool:
        if self.script.key in (None, (self.headers["Authorization"] or "").removeprefix("Bearer ")):
            return True
        self.reply(401, {"error": {"message": "no key", "type": "authentication_error"}})
        return False

    def reply(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what a test wants to know it asks."""


@contextmanager
def answers_server(script: Script) -> Iterator[str]:
    """Address of a server that does what the script says."""
    handler = type("ScriptedHandler", (Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        script.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
