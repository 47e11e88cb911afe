"""Errors as clients see them (docs/design.md): one shape, a stable type, and whether trying again can help."""

from __future__ import annotations

from typing import Any

import msgspec

from infctl.domain.request_events import RETRYABLE, ErrorType

MOST_WORDS = 400  # characters of an engine's message that a client is shown
_object = msgspec.json.Decoder(dict[str, Any])
STATUS = {
    ErrorType.INVALID_REQUEST: 400,
    ErrorType.UNAUTHORIZED: 401,
    ErrorType.MODEL_NOT_FOUND: 404,
    ErrorType.CONFLICT: 409,
    ErrorType.CANCELLED: 499,
    ErrorType.OVERLOADED: 503,
    ErrorType.UNAVAILABLE: 503,
    ErrorType.DEADLINE: 504,
    ErrorType.NOT_RECOVERABLE: 502,
    ErrorType.POISON: 500,
    ErrorType.INTERNAL: 500,
}


class ClientError(Exception):
    """A request that cannot be served, with what its client is told. `param` names the field at fault."""

    def __init__(
        self, error: ErrorType, message: str, *, code: str | None = None, param: str | None = None, status: int = 0
    ) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.code = code
        self.param = param
        self.status = status or STATUS[error]

    @property
    def body(self) -> dict[str, Any]:
        return error_body(self.error, self.message, code=self.code, param=self.param)


def error_body(error: ErrorType, message: str, *, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {
        "error": {
            "message": message,
            "type": error.value,
            "code": code or error.value,
            "param": param,
            "retryable": error in RETRYABLE,
        }
    }


def engine_words(said: bytes) -> str:
    """Why an engine refused a request, fit for a client: one line, and nothing of the engine's files and source."""
    try:
        body = _object.decode(said)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return first_line(said.decode("utf-8", "replace"))
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else body.get("message") or error
    return first_line(str(message or "no reason given"))


def first_line(text: str) -> str:
    """The first paragraph of an engine's message on one line; what follows it is a place in its source."""
    return " ".join(text.partition("\n\n")[0].split())[:MOST_WORDS]


def invalid(message: str, param: str | None = None, *, code: str | None = None) -> ClientError:
    return ClientError(ErrorType.INVALID_REQUEST, message, param=param, code=code)
