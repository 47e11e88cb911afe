"""Hears of a process's death before its memory is freed, and asks nobody.

The pidfd of a process becomes readable only when its memory is gone: for the gigabytes of a rank a third of a second or
more. The memory is freed by the last thread to let go of it, and every other thread is gone at once; so of two threads
at least one is heard of within milliseconds. Needs pidfds of threads (Linux 6.9) and three threads or more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

_PIDFD_THREAD = os.O_EXCL  # include/uapi/linux/pidfd.h
WATCHED = 2


def supported() -> bool:
    """The kernel has pidfds of threads."""
    try:
        os.close(os.pidfd_open(os.getpid(), _PIDFD_THREAD))
    except OSError:
        return False
    return True


class ThreadWatch:
    """Two threads of one process. `sign` is called in the loop when one of them ended, which may mean nothing."""

    def __init__(self, pid: int, sign: Callable[[], None]) -> None:
        self._pid = pid
        self._sign = sign
        self._fds: dict[int, int] = {}  # thread: descriptor

    @property
    def whole(self) -> bool:
        """As many threads are watched as it takes."""
        return len(self._fds) >= WATCHED

    def refresh(self) -> None:
        """Watch other threads in the place of those that ended: the oldest, since they live longest."""
        if self.whole:
            return
        try:
            threads = sorted(int(t) for t in os.listdir(f"/proc/{self._pid}/task"))
        except OSError:
            return
        for thread in threads:
            if self.whole:
                return
            if thread != self._pid and thread not in self._fds:
                self._add(thread)

    def _add(self, thread: int) -> None:
        try:
            fd = os.pidfd_open(thread, _PIDFD_THREAD)
        except OSError:
            return
        if not os.path.exists(f"/proc/{self._pid}/task/{thread}"):
            os.close(fd)  # the number was somebody else's by then
            return
        self._fds[thread] = fd
        asyncio.get_running_loop().add_reader(fd, self._ended, thread)

    def _ended(self, thread: int) -> None:
        self._drop(thread)
        self._sign()

    def _drop(self, thread: int) -> None:
        fd = self._fds.pop(thread)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)

    def close(self) -> None:
        for thread in list(self._fds):
            self._drop(thread)
