"""The load snapshot that rank 0 writes and the HTTP process reads, in shared memory.

What stays true: reading never waits for the scheduler; the time in it moves only when rank 0 completes a turn, so a
frozen group shows as a time that stands still while HTTP goes on answering. With a name in /dev/shm, as SGLang's has,
it outlives a killed tree, and so does what each rank leaves there (`leave_segment`).
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import time
from pathlib import Path
from typing import NamedTuple

_SHM = Path("/dev/shm")

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

    def __init__(self, named: bool = False) -> None:
        self._path: Path | None = None
        if not named:
            self._page = mmap.mmap(-1, mmap.PAGESIZE)
            return
        self._path = _SHM / f"sglang_loads_sim_{secrets.token_hex(4)}.shm"
        with open(self._path, "xb+") as file:
            file.truncate(mmap.PAGESIZE)
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def leave_segment(self, kind: str) -> None:
        """What a rank keeps there under its pid."""
        if self._path is not None:
            (_SHM / f"sgl_shm_{kind}_{os.getpid()}_0").write_bytes(b"\0")

    def unlink(self, pids: frozenset[int]) -> None:
        """In good order: nothing of this tree stays."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            for pid in pids:
                for path in _SHM.glob(f"sgl_shm_*_{pid}_0"):
                    path.unlink(missing_ok=True)

    def publish(self, running: int, waiting: int, used: int, steps: int, generated: int, prefilled: int) -> None:
        self._page[: _FORMAT.size] = _FORMAT.pack(time.time(), running, waiting, used, steps, generated, prefilled)

    def read(self) -> Loads:
        return Loads._make(_FORMAT.unpack(self._page[: _FORMAT.size]))
