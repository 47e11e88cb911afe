"""What each child process does first: a title of its own, and death when its parent dies.

What stays true: a child never outlives the HTTP process, and `ps` tells the processes apart by the same kind of title
as SGLang's (`sim::scheduler_TP0`, `sim::detokenizer`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def calm_collector() -> None:
    """What exists now is never looked at again, and new objects seldom: messages make many tuples and no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def set_title(title: str) -> None:
    """Writes `title` over this process's command line in memory (as setproctitle does), and its short name."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, ctypes.c_char_p(title.encode()[:15]), 0, 0, 0)
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    room = end - start
    if start and room > len(title):
        raw = title.encode()
        ctypes.memmove(start, raw + b"\0" * (room - len(raw)), room)


def fork_child(title: str, body: Callable[[], None]) -> int:
    """Pid of a child that runs `body` and then ends; an exception there is a traceback and exit code 1."""
    parent = os.getpid()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, lambda number, frame: os._exit(0))  # the fault "leave"
        with contextlib.suppress(OSError, ValueError, IndexError):
            set_title(title)
        calm_collector()
        body()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)
