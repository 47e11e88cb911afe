"""What can still be seen of a launch when one of its processes has ended: how, its last words, kills for memory.

Read in the loop, because the notice waits for it: a bounded piece of a file that was written a moment ago. What cannot
be read is no evidence; nothing here raises.
"""

from __future__ import annotations

import os
from pathlib import Path

from infctl.domain.causes import Evidence

TAIL = 16 * 1024


def last_words(log: Path, size: int = TAIL) -> str:
    """The end of an engine's output."""
    try:
        with open(log, "rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""


def evidence(code: int | None, log: Path, oom_kills: int) -> Evidence:
    return Evidence(exited=True, exit_code=code, oom_kills=oom_kills, output=last_words(log))
