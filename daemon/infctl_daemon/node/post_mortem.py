"""What can still be seen of a launch when one of its processes has ended: how, its last words, kills for memory.

Read in the loop, because the notice waits for it: a bounded piece of a file that was written a moment ago, and one line
of a kernel file. What cannot be read is no evidence; nothing here raises.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from infctl.domain.causes import Evidence

TAIL = 16 * 1024
_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class OomKills:
    """The kernel's count of processes killed for memory in one cgroup, since `before`."""

    file: Path
    before: int

    @staticmethod
    def of(pid: int, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> OomKills | None:
        """Counting from now on in the cgroup of `pid`; None where there is no such file."""
        try:
            lines = (proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            inside = path.lstrip("/")
            if controllers == "":
                candidates = [cgroups / inside / "memory.events", cgroups / "unified" / inside / "memory.events"]
            elif "memory" in controllers.split(","):
                candidates = [cgroups / "memory" / inside / "memory.oom_control"]
            else:
                continue
            for file in candidates:
                if (count := _count(file)) is not None:
                    return OomKills(file, count)
        return None

    @property
    def since(self) -> int:
        now = _count(self.file)
        return max(0, now - self.before) if now is not None else 0


def _count(file: Path) -> int | None:
    try:
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        return None
    return None


def last_words(log: Path, size: int = TAIL) -> str:
    """The end of an engine's output."""
    try:
        with open(log, "rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""


def evidence(code: int | None, log: Path, oom: OomKills | None) -> Evidence:
    return Evidence(exited=True, exit_code=code, oom_kills=oom.since if oom else 0, output=last_words(log))
