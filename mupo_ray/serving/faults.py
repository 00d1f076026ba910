"""Refusals in the shape of OpenAI's errors."""

from __future__ import annotations

import json

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
