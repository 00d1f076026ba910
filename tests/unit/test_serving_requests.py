"""Bodies and fields of requests: what is refused before the engine sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from mupo_ray.serving.arguments import Limits, ServingArgs
from mupo_ray.serving.requests import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    RefusedError,
    check_fields,
    check_limits,
    read_json,
)

JSON = {"content-type": "application/json"}


def receiver(*chunks: bytes) -> Callable[[], Any]:
    left = list(chunks)

    async def receive() -> dict[str, Any]:
        chunk = left.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(left)}

    return receive


def read(headers: dict[str, str], *chunks: bytes, most: int = 100) -> dict[str, Any]:
    return asyncio.run(read_json(headers, receiver(*chunks), most))


def test_a_body_may_come_in_pieces() -> None:
    assert read(JSON, b'{"a"', b": [1, 2]}") == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (JSON | {"content-length": "101"}, b"{}", 413),
        (JSON | {"content-length": "1" * 5000}, b"{}", 413),
        (JSON | {"content-length": "-1"}, b"{}", 413),
        (JSON, b" " * 101, 413),
        ({"content-type": "text/plain"}, b"{}", 415),
        ({}, b"{}", 415),
        (JSON, b"", 400),
        (JSON, b"{", 400),
        (JSON, b'{"a": NaN}', 400),
        (JSON, b'{"a": "\xff"}', 400),
        (JSON, rb'{"a": "\ud800"}', 400),
        (JSON, b"[1]", 400),
        (JSON, b"7", 400),
        (JSON, b"[" * 100, 400),
    ],
)
def test_a_body_that_cannot_be_used(headers: dict[str, str], body: bytes, status: int) -> None:
    with pytest.raises(RefusedError) as refused:
        read(headers, body)
    assert refused.value.status == status
    error = json.loads(refused.value.body())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


def test_a_long_body_without_a_length_is_left_unread() -> None:
    taken = 0

    async def endless() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": b" " * 40, "more_body": True}

    with pytest.raises(RefusedError, match="100 bytes"):
        asyncio.run(read_json(JSON, endless, 100))
    assert taken == 3


def test_deep_nesting_is_refused_and_nothing_breaks() -> None:
    with pytest.raises(RefusedError, match="no JSON"):
        read(JSON, b'{"a":' * 100_000, most=10**7)


def test_fields_that_ask_for_nothing_are_left_out() -> None:
    given = {"n": 2, "tools": [], "response_format": {"type": "text"}, "store": False}
    assert check_fields(given, CHAT_FIELDS) == {"n": 2}


@pytest.mark.parametrize(
    "field",
    [
        {"chat_template": "{{ x }}"},
        {"mm_processor_kwargs": {"max_pixels": 10**9}},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
        {"prompt_embeds": "AAAA"},
        {"use_beam_search": True},
        {"kv_transfer_params": {}},
        {"no_such_field": None},
    ],
    ids=lambda field: next(iter(field)),
)
def test_fields_that_are_not_served_are_named(field: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as refused:
        check_fields(field, CHAT_FIELDS | COMPLETION_FIELDS)
    assert refused.value.param == next(iter(field))


@pytest.mark.parametrize(
    ("field", "is_refused"),
    [
        ({"n": 0}, True),
        ({"n": 1}, False),
        ({"n": 32}, False),
        ({"n": 33}, True),
        ({"n": 100_000}, True),
        ({"temperature": 2}, False),
        ({"temperature": 999999.0}, True),
        ({"temperature": -0.1}, True),
        ({"max_tokens": 4096}, False),
        ({"max_tokens": 10**9}, True),
        ({"max_completion_tokens": 4097}, True),
        ({"stop": ["x"] * 17}, True),
        ({"stop_token_ids": [0, 99]}, False),
        ({"stop_token_ids": [100]}, True),
        ({"stop_token_ids": [-1]}, True),
        ({"repetition_penalty": 1e308}, True),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, True),
        ({"messages": [{}] * 129}, True),
        ({"prompt": ["a"] * 16, "n": 2}, False),
        ({"prompt": ["a"] * 17, "n": 2}, True),
        ({"prompt": [[1]] * 33}, True),
        ({"prompt": list(range(1000))}, False),
    ],
    ids=str,
)
def test_limits(field: dict[str, Any], is_refused: bool) -> None:
    if not is_refused:
        check_limits(field, Limits(), max_model_len=4096, vocab_size=100)
        return
    with pytest.raises(RefusedError):
        check_limits(field, Limits(), max_model_len=4096, vocab_size=100)


def test_arguments_are_strict() -> None:
    args = ServingArgs.model_validate({"model": "m", "cors_origins": ["https://a.example"]})
    assert args.cors_origins == ("https://a.example",)
    for wrong in (
        {},
        {"model": 3},
        {"model": "m", "modell": "m"},
        {"model": "m", "engine": {"max_model_len": "4096"}},
        {"model": "m", "limits": {"max_n": 0}},
        {"model": "m", "replicas": 2, "autoscaling": {}},
        {"model": "m", "autoscaling": {"min_replicas": 3, "max_replicas": 2}},
    ):
        with pytest.raises(ValidationError):
            ServingArgs.model_validate(wrong)
