"""The kernel's own count of processes killed for memory in whatever cgroup a process is in, of version 1 or 2.

For launches that have no cgroup of their own: what shares the cgroup is counted too, so it is only counted from the
start of the launch, and only believed together with a signal 9. What cannot be read is no evidence; nothing raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
