"""Wall-clock stamps and ids for records. The only place that turns a clock into text."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

from infctl.domain.ids import base32


def now_text() -> str:
    """This moment as RFC 3339 UTC with milliseconds."""
    return text_of(now_ms())


def text_of(epoch_ms: float) -> str:
    """A moment in epoch milliseconds as RFC 3339 UTC."""
    return datetime.fromtimestamp(epoch_ms / 1000.0, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now_ms() -> float:
    return time.time() * 1000.0


def event_id() -> str:
    """Time-ordered: 10 characters of milliseconds, 8 random ones."""
    return "e" + base32(int(now_ms()).to_bytes(6, "big") + os.urandom(6), 19)


def fault_id() -> str:
    return "f" + base32(int(now_ms()).to_bytes(6, "big") + os.urandom(4), 16)


def intent_id() -> str:
    return "i" + base32(int(now_ms()).to_bytes(6, "big") + os.urandom(6), 19)
