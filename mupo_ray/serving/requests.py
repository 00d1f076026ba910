"""Requests: bodies read within a limit, parsed once, held against what is supported; refusals.

vLLM's own request models check types and ranges afterwards. What is here comes before: fields that
this server does not serve (vLLM ignores or obeys many that OpenAI does not know), and the limits.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import pydantic_core

if TYPE_CHECKING:
    from pydantic import ValidationError

    from mupo_ray.serving.arguments import Limits

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Fields = dict[str, Any]

_OPENAI = (
    "model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream "
    "stream_options temperature top_p user"
)
_VLLM = (
    "top_k min_p repetition_penalty min_tokens ignore_eos stop_token_ids skip_special_tokens "
    "return_token_ids"
)
_SAMPLING = frozenset(f"{_OPENAI} {_VLLM}".split())
CHAT_FIELDS = _SAMPLING | {"messages", "max_completion_tokens", "top_logprobs"}
"""Fields of `/v1/chat/completions`."""
COMPLETION_FIELDS = _SAMPLING | {"prompt", "echo"}
"""Fields of `/v1/completions`."""

# Fields that clients send with a value that asks for nothing.
_NOTHING_ASKED: Mapping[str, tuple[Any, ...]] = {
    "response_format": (None, {"type": "text"}),
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "parallel_tool_calls": (None, True, False),
    "store": (None, False),
    "metadata": (None, {}),
    "best_of": (None, 1),
    "suffix": (None, ""),
}

# The names that OpenAI's client turns into its own exceptions go by the status alone.
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}

_MAX_TEMPERATURE = 2.0
_MAX_PENALTY = 10.0
_MAX_STOPS = 16
_MAX_BIASES = 300
_MAX_DIGITS = 18


class RefusedError(Exception):
    """A request that is not served, and why."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        """Say what is wrong, the value got and what would be right.

        Args:
            message: one sentence.
            status: of HTTP.
            param: field of the request that is at fault.
        """
        super().__init__(message)
        self.status = status
        self.param = param

    def body(self) -> bytes:
        """The answer's JSON."""
        return error_body(str(self), status=self.status, param=self.param)


def error_body(message: str, *, status: int, param: str | None = None) -> bytes:
    """OpenAI's error object as JSON."""
    error = {
        "message": message,
        "type": _TYPES.get(status, "server_error"),
        "param": param,
        "code": status,
    }
    return json.dumps({"error": error}).encode()


def refusal_of(err: ValidationError) -> RefusedError:
    """The first fault that pydantic found in a request."""
    fault = err.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])[:80]
    message = f"{where}: {fault['msg']}" if where else fault["msg"]
    return RefusedError(message, param=where or None)


async def read_json(headers: Mapping[str, str], receive: Receive, max_bytes: int) -> Fields:
    """The JSON object that a request holds.

    Args:
        headers: of the request.
        receive: of ASGI.
        max_bytes: larger bodies are refused, whatever length they claim, before they are read.

    Raises:
        RefusedError: not JSON by type or content, no object, or too large.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A page of another origin may send other types to a server behind a browser unasked.
        raise RefusedError(f"content type is {kind[:80]!r}; should be application/json", status=415)
    length = headers.get("content-length", "0")
    too_large = RefusedError(f"body exceeds the {max_bytes} bytes that are allowed", status=413)
    if not length.isdecimal() or len(length) > _MAX_DIGITS or int(length) > max_bytes:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError("the client went away", status=400)
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise too_large
        if not message.get("more_body", False):
            break
    try:
        fields = pydantic_core.from_json(bytes(body), allow_inf_nan=False)
    except ValueError as err:
        raise RefusedError(f"body is no JSON: {err}") from err
    if not isinstance(fields, dict):
        raise RefusedError(f"body is a JSON {type(fields).__name__}; should be an object")
    return fields


def check_fields(fields: Fields, supported: frozenset[str]) -> Fields:
    """The fields to go on with.

    Raises:
        RefusedError: one that is not supported, with a value that asks for something.
    """
    kept = {}
    for name, value in fields.items():
        if name in supported:
            kept[name] = value
        elif name not in _NOTHING_ASKED or value not in _NOTHING_ASKED[name]:
            raise RefusedError(
                f"field {name[:80]!r} is not supported; supported are "
                f"{', '.join(sorted(supported))}",
                param=name[:80],
            )
    return kept


def check_limits(fields: Fields, limits: Limits, *, max_model_len: int, vocab_size: int) -> None:
    """Refuse a request for more than is allowed; types are checked elsewhere, and passed over.

    Args:
        fields: of any of the POST routes.
        limits: of a request.
        max_model_len: of the engine.
        vocab_size: token ids are below it; vLLM indexes logits by some without looking.

    Raises:
        RefusedError: a value is beyond its limit.
    """
    _within(fields, "n", 1, limits.max_n)
    _within(fields, "temperature", 0, _MAX_TEMPERATURE)
    _within(fields, "repetition_penalty", 0, _MAX_PENALTY)
    most = min(limits.max_new_tokens or max_model_len, max_model_len)
    for name in ("max_tokens", "max_completion_tokens"):
        _within(fields, name, 1, most)
    for name, count in (("stop", _MAX_STOPS), ("stop_token_ids", _MAX_STOPS)):
        _no_longer(fields, name, count)
    _no_longer(fields, "logit_bias", _MAX_BIASES)
    _no_longer(fields, "messages", limits.max_messages)
    stops = fields.get("stop_token_ids")
    for token in stops if isinstance(stops, list) else ():
        _within({"stop_token_ids": token}, "stop_token_ids", 0, vocab_size - 1)
    prompts = num_prompts(fields.get("prompt"))
    num = fields.get("n") or 1
    if isinstance(num, int) and num * prompts > limits.max_n:
        raise RefusedError(
            f"{prompts} prompts with n = {num} ask for {num * prompts} responses; should be at "
            f"most {limits.max_n}",
            param="n",
        )


def num_prompts(prompt: Any) -> int:
    """Prompts in the `prompt` of a completion: one text or list of ids, or a list of them."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        return len(prompt)
    return 1


def _within(fields: Fields, name: str, least: float, most: float) -> None:
    value = fields.get(name)
    if isinstance(value, bool):
        raise RefusedError(f"{name} is {str(value).lower()}; should be a number", param=name)
    if not isinstance(value, (int, float)):
        return
    if not least <= value <= most:
        raise RefusedError(f"{name} is {str(value)[:40]}; should be {least} to {most}", param=name)


def _no_longer(fields: Fields, name: str, most: int) -> None:
    value = fields.get(name)
    if isinstance(value, (list, dict)) and len(value) > most:
        raise RefusedError(
            f"{name} has {len(value)} entries; should have at most {most}", param=name
        )
