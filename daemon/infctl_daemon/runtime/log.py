"""Logs of the long-running processes: one JSON object a line on stderr, `*_at` in RFC 3339 UTC.

Nothing secret is logged: values whose field is named like a key are replaced here, whoever logs them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

from infctl.domain.errors import InfctlError
from infctl_daemon.runtime.memory import without

with without("rich"):  # for tracebacks on a terminal, which we never write
    import structlog

_SECRET = ("api_key", "admin_api_key", "secret", "password", "token_value", "authorization")
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

Logger = structlog.typing.FilteringBoundLogger


def _redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for field in _SECRET:
        if field in event:
            event[field] = "***"
    return event


class _Bridge(logging.Handler):
    """Records of the standard library's loggers as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(process=record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)


class _Threshold:
    """The level from which on lines are written. Loggers are bound for a process's life; this can change in it."""

    def __init__(self) -> None:
        self.level = 20

    def __call__(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if _LEVELS.get(method, 40) < self.level:  # "exception" and the like are errors
            raise structlog.DropEvent
        return event


_threshold = _Threshold()


def set_level(level: str) -> None:
    """From now on; the standard library's loggers say warnings at least."""
    _threshold.level = _LEVELS.get(level, 20)
    logging.getLogger().setLevel(max(_threshold.level, logging.WARNING))


def configure(level: str = "info") -> None:
    """Set up logging for this process: structlog, and the standard library's loggers through it."""
    logging.basicConfig(handlers=[_Bridge()], force=True)
    set_level(level)
    structlog.configure(
        processors=[
            _threshold,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="logged_at"),
            structlog.processors.format_exc_info,
            _redact,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(10),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def told(error: InfctlError) -> dict[str, str]:
    """What a line says of an error: why, and what to do."""
    return {"why": error.message, "reason": error.reason, **({"hint": error.hint} if error.hint else {})}


_ABOUT = ("pool", "group", "launch", "generation", "fault_id", "reason")


def about(record: object) -> dict[str, Any]:
    """Of which pool, group, launch and fault a line speaks: those of the words that the record has and knows."""
    return {word: value for word in _ABOUT if (value := getattr(record, word, None))}


def get(process: str, **fields: Any) -> Logger:
    logger: Logger = structlog.get_logger(process=process, **fields)
    return logger
