"""The end of an engine's output file, read backwards: what a reader gets is bounded, however large the file is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

BLOCK = 64 * 1024
MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Tail:
    """Whole lines, the last one perhaps unfinished. `end`: where the file ended; `cut`: lines asked for are missing."""

    text: bytes
    end: int
    cut: bool = False


def tail(path: Path, lines: int, most: int = MOST_BYTES) -> Tail:
    """The last `lines` lines, at most `most` bytes of them; nothing of a file that is not there. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Tail(b"", 0)
    try:
        end = at = os.fstat(fd).st_size
        floor = max(0, end - most)
        blocks: list[bytes] = []
        newlines = 0
        # one more newline than lines: the one that ends the line before them
        while at > floor and newlines <= lines and lines > 0:
            start = max(floor, at - BLOCK)
            block = os.pread(fd, at - start, start)
            newlines += block.count(b"\n")
            blocks.append(block)
            at = start
    finally:
        os.close(fd)
    *whole, rest = b"".join(reversed(blocks)).split(b"\n")
    found = [line + b"\n" for line in whole] + ([rest] if rest else [])
    if at > 0 and len(found) > 1:
        found = found[1:]  # it begins somewhere inside
    return Tail(b"".join(found[-lines:]) if lines > 0 else b"", end, cut=at > 0 and lines > 0 and len(found) < lines)


def more(path: Path, at: int, most: int = BLOCK) -> tuple[bytes, int]:
    """What stands after `at`, at most `most` bytes, and where it ends; from the start of a file that became shorter."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(at if at <= size else 0)
            data = file.read(most)
            return data, file.tell()
    except FileNotFoundError:
        return b"", 0
