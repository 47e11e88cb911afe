"""The load snapshot that rank 0 writes and the HTTP process reads, in shared memory.

What stays true: reading never waits for the scheduler; the time in it moves only when rank 0 completes a turn, so a
frozen group shows as a time that stands still while HTTP goes on answering.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import NamedTuple

_FORMAT = struct.Struct("=d6q")


class Loads(NamedTuple):
    """`timestamp` is seconds since 1970; counts are requests and tokens; `steps` counts forward passes."""

    timestamp: float
    running: int
    waiting: int
    used_tokens: int
    steps: int
    generated: int
    prefilled: int


class Board:
    """Made before the processes are forked, so that all of them map the same page."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def publish(self, running: int, waiting: int, used: int, steps: int, generated: int, prefilled: int) -> None:
        self._page[: _FORMAT.size] = _FORMAT.pack(time.time(), running, waiting, used, steps, generated, prefilled)

    def read(self) -> Loads:
        return Loads._make(_FORMAT.unpack(self._page[: _FORMAT.size]))
