"""Errors of the read-only API: the same shape as the gateway's, a stable type, and whether trying again can help."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

_RETRYABLE = frozenset({"unavailable", "overloaded"})


class ApiError(Exception):
    """A question that is not answered, and what is said instead."""

    def __init__(self, status: int, kind: str, message: str, *, code: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.code = code or kind
        self.param = param

    def response(self) -> web.Response:
        headers = {"www-authenticate": "Bearer"} if self.status == 401 else {}
        if self.kind in _RETRYABLE:
            headers["retry-after"] = "1"
        error = {
            "message": self.message,
            "type": self.kind,
            "code": self.code,
            "param": self.param,
            "retryable": self.kind in _RETRYABLE,
        }
        return json_response({"error": error}, self.status, headers)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, headers=headers, content_type="application/json")


def invalid(message: str, param: str) -> ApiError:
    return ApiError(400, "invalid_request", message, param=param)


def not_found(message: str) -> ApiError:
    return ApiError(404, "invalid_request", message, code="not_found")


def unauthorized(message: str) -> ApiError:
    return ApiError(401, "unauthorized", message)
