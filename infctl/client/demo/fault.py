"""The faults that the demo makes, on processes found below a launch's main process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from enum import StrEnum

import psutil

from infctl.domain.errors import NotFound

_RANK = "::scheduler"  # `sglang::scheduler_TP0`, `sim::scheduler_TP0`


class Fault(StrEnum):
    KILL_RANK = "kill-rank"
    FREEZE_RANK = "freeze-rank"
    KILL_GROUP = "kill-group"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Struck:
    """What was done, and when: `at` monotonic seconds, `at_ms` epoch milliseconds, taken before the system call."""

    what: str
    at: float
    at_ms: float


class Target:
    """The processes of one launch, looked up before the moment so that the fault itself is one system call."""

    def __init__(self, main_pid: int) -> None:
        self._processes: list[tuple[psutil.Process, str]] = []
        with contextlib.suppress(psutil.Error):
            main = psutil.Process(main_pid)
            for process in [main, *main.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    self._processes.append((process, " ".join(process.cmdline())[:60]))
        self._ranks = [(p, t) for p, t in self._processes if _RANK in t.split(" ")[0]]
        if not self._ranks:
            raise NotFound(f"no rank found below process {main_pid}", hint="the group may just have been restarted")
        self._ranks.sort(key=lambda pair: pair[1])

    def strike(self, fault: Fault) -> Struck:
        """Kill or freeze; psutil checks the start time, so no other process is hit."""
        rank, title = self._ranks[-1]
        title = title.split()[0]
        if fault is Fault.FREEZE_RANK:
            at, at_ms = time.monotonic(), time.time() * 1000.0
            rank.send_signal(signal.SIGSTOP)
            return Struck(f"SIGSTOP to {title} (pid {rank.pid})", at, at_ms)
        if fault is Fault.KILL_RANK:
            at, at_ms = time.monotonic(), time.time() * 1000.0
            rank.send_signal(signal.SIGKILL)
            return Struck(f"SIGKILL to {title} (pid {rank.pid})", at, at_ms)
        at, at_ms = time.monotonic(), time.time() * 1000.0
        for process, _ in self._processes:
            if process.pid != os.getpid():
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
        return Struck(f"SIGKILL to all {len(self._processes)} processes", at, at_ms)
