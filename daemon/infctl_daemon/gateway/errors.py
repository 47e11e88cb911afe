"""Errors as clients see them (docs/design.md): one shape, a stable type, and whether trying again can help."""

from __future__ import annotations

from typing import Any

from infctl.domain.request_events import RETRYABLE, ErrorType

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


def invalid(message: str, param: str | None = None, *, code: str | None = None) -> ClientError:
    return ClientError(ErrorType.INVALID_REQUEST, message, param=param, code=code)
