"""Malformed requests by the hundred, the same ones for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

Malformed = tuple[str, dict[str, str], bytes]
"""Route, headers, body."""

_ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/strategies")
_JSON = {"content-type": "application/json"}
_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAYAAADED76LAAAAFElEQVR42mNgoDv4D8VwwMQw"
    "8AAAJvkCASIdMqcAAAAASUVORK5CYII="
)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 1e308, -1e308, 0.5, "", "x", "-1",
    "\u0000", "\U0001f600" * 50, "<|image_pad|>", "<|im_end|>", [], [[]], [None], {}, {"a": 1},
    [1] * 300, ["x"] * 50, {"type": "text"}, [{"type": "image_url"}], [{"role": "user"}], [-1],
    [10**9], {"5": 200}, {"x": 1}, {"99999": 1}, ["a", 1], [["a"]], [[1], "b"],
)  # fmt: skip
_FIELDS = (
    "model messages prompt max_tokens max_completion_tokens n temperature top_p top_k min_p seed "
    "stop stream stream_options logprobs top_logprobs logit_bias presence_penalty "
    "frequency_penalty repetition_penalty min_tokens ignore_eos stop_token_ids echo user k "
    "min_group_size options return_token_ids skip_special_tokens tools tool_choice response_format "
    "prompt_logprobs best_of suffix chat_template mm_processor_kwargs media_io_kwargs "
    "structured_outputs prompt_embeds kv_transfer_params vllm_xargs priority request_id cache_salt"
)


def malformed_requests(count: int, seed: int) -> Iterator[Malformed]:
    """Requests of which nearly all are wrong in one way or several.

    Args:
        count: how many.
        seed: of the choice.
    """
    rng = random.Random(seed)
    makers = (_field, _field, _field, _message, _url, _bytes, _headers)
    for _ in range(count):
        yield rng.choice(makers)(rng)


def _base(rng: random.Random) -> tuple[str, dict[str, Any]]:
    route = rng.choice(_ROUTES)
    if route == "/v1/completions":
        return route, {"prompt": "1 + 1", "max_tokens": 2}
    messages = [{"role": "user", "content": "hi"}]
    fields: dict[str, Any] = {"messages": messages, "max_tokens": 2}
    return route, fields | ({"n": 3, "k": 1} if route == "/v1/strategies" else {})


def _field(rng: random.Random) -> Malformed:
    route, fields = _base(rng)
    for _ in range(rng.choice((1, 1, 2, 4))):
        fields[rng.choice(_FIELDS.split())] = rng.choice(_VALUES)
    return route, _JSON, json.dumps(fields).encode()


def _message(rng: random.Random) -> Malformed:
    route, fields = _base(rng)
    message = {"role": "user", "content": "hi"}
    message[rng.choice(("role", "content", "tool_calls", "name", "x"))] = rng.choice(_VALUES)
    fields["messages"] = [message] * rng.choice((1, 1, 2, 200))
    return route, _JSON, json.dumps(fields).encode()


def _url(rng: random.Random) -> Malformed:
    _, fields = _base(rng)
    url: Any = rng.choice(
        (
            _PIXEL[: rng.randrange(len(_PIXEL))],
            _PIXEL.replace("png", rng.choice(("jpeg", "svg+xml", "../x", "tiff"))),
            "".join(rng.choice("data:image/png;base64,AAAA@%&") for _ in range(40)),
            rng.choice(("file:///etc/passwd", "http://[::1", "http://", "http://127.0.0.1:1/")),
            rng.choice(_VALUES),
        )
    )
    part = {"type": rng.choice(("image_url", "image_url", "input_image", "video_url"))}
    part["image_url"] = rng.choice((url, {"url": url}, {"url": url, "detail": "x"}))
    fields = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 2}
    return rng.choice((_ROUTES[0], _ROUTES[2])), _JSON, json.dumps(fields).encode()


def _bytes(rng: random.Random) -> Malformed:
    route, fields = _base(rng)
    body = bytearray(json.dumps(fields).encode())
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(body))
        match rng.randrange(3):
            case 0:
                body[at] = rng.randrange(256)
            case 1:
                del body[at:]
                body += b"}"
            case _:
                body[at:at] = rng.choice((b"[" * 500, b"NaN", b'"', b"\xff", b"\\ud800", b"1e999"))
    return route, _JSON, bytes(body)


def _headers(rng: random.Random) -> Malformed:
    route, fields = _base(rng)
    kind = rng.choice(("text/plain", "", "application/x-www-form-urlencoded", "application/jsonx"))
    return route, {"content-type": kind}, json.dumps(fields).encode()
