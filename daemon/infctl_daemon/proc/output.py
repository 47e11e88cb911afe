"""The output of a launch: read from its end, and kept from filling the disk.

An engine appends to one file for as long as it lives and must never be stopped from that: a pipe or a file size limit
would kill it. So the oldest part is given back to the file system while it writes on: a hole is punched, which loses
nothing of the rest and asks nothing of the writer; the file keeps its length and takes no more than `keep` on disk.
Where there are no holes, the file is emptied and its end written again; lines that come at that very moment are lost.
What is written between two looks comes on top: the bound is `KEEP + SLACK` and what an engine can print in a second.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

from infctl_daemon.runtime.beat import beat

LINES = 200
TAIL_BYTES = 1 << 20  # longest tail that is read, however long its lines are
KEEP = 64 << 20
SLACK = 16 << 20
EVERY = 1.0
_BLOCK = 1 << 20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # include/uapi/linux/falloc.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def tail(path: Path, lines: int = LINES, limit: int = TAIL_BYTES) -> list[str]:
    """The last lines, at most `limit` bytes of them; none when there is no file. Reads blocks from the end."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            first = max(0, end - limit)
            at, data = end, b""
            while at > first and data.count(b"\n") <= lines:
                size = min(65536, at - first)
                at -= size
                file.seek(at)
                data = file.read(size) + data
    except OSError:
        return []
    whole = at == 0
    found = data.split(b"\n")
    if found and not found[-1]:
        found.pop()  # what follows the last newline
    if not whole and len(found) > 1:
        found = found[1:]  # it may have begun before what we read
    # a hole reads as zeros
    return [line.lstrip(b"\0").decode(errors="replace") for line in found[-lines:]] if lines > 0 else []


def on_disk(path: Path) -> int:
    """Bytes that the file takes; 0 where there is none."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


async def keep_bounded(path: Path, every: float = EVERY, keep: int = KEEP, slack: int = SLACK) -> None:
    """`bound` it until cancelled. A look costs one stat; the work is done in a thread."""
    while True:
        await beat(every)
        if on_disk(path) > keep + slack:
            await asyncio.to_thread(bound, path, keep, slack)


def bound(path: Path, keep: int = KEEP, slack: int = SLACK) -> int:
    """Give back all but the last `keep` bytes once `slack` more lies on disk; returns the bytes freed."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        seen = os.fstat(fd)
        before = seen.st_blocks * 512
        if min(before, seen.st_size) <= keep + slack:
            return 0
        hole = (seen.st_size - keep) // _BLOCK * _BLOCK
        if hole > 0 and _punch(fd, hole):
            return max(0, before - os.fstat(fd).st_blocks * 512)
        return _rewrite(fd, seen.st_size, min(keep, TAIL_BYTES))
    except OSError:
        return 0
    finally:
        os.close(fd)


def _punch(fd: int, size: int) -> bool:
    return bool(_libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, 0, size) == 0)


def _rewrite(fd: int, size: int, keep: int) -> int:
    end = os.pread(fd, keep, size - keep)
    os.ftruncate(fd, 0)  # the engine appends, so its next line lands at the new end
    os.write(fd, b"... output before this line was dropped\n" + end.partition(b"\n")[2])
    return size - os.fstat(fd).st_size
