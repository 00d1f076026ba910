"""Requests of the serving tests, and what must hold of the answers."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
from PIL import Image


def data_url(size: tuple[int, int] = (56, 56), colour: str = "red") -> str:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def ask(text: str = "what is it?", url: str | None = None) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if url is not None:
        content.insert(0, {"type": "image_url", "image_url": {"url": url}})
    return [{"role": "user", "content": content}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "mupo", "messages": ask(), "max_tokens": 4, **fields}


def assert_refused(answer: httpx.Response, status: int = 400) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)


def assert_well(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json=body(messages=ask(url=data_url())))
    assert answer.status_code == 200, answer.text
    assert http.get("/health").json()["status"] == "ok"
