"""Evidence about processes that SIGKILL did not end: where in the kernel each of them waits.

A process in state D (or one whose exit hangs in a driver) cannot be helped from outside; what is known of it belongs
into the status, and whatever it holds (a GPU) stays taken until it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from infctl_daemon.proc.procfs import Ident

PROC = Path("/proc")
FRAMES = 6


@dataclass(frozen=True, slots=True)
class Stuck:
    """One process that does not die. `stack` is innermost first, empty where we may not read it."""

    ident: Ident
    title: str
    state: str
    channel: str
    stack: tuple[str, ...]

    @property
    def text(self) -> str:
        where = f" in {self.channel}" if self.channel else ""
        stack = f" ({' < '.join(self.stack)})" if self.stack else ""
        return f"{self.title or 'process'} (pid {self.ident.pid}) in state {self.state}{where}{stack}"


def _read(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text(errors="replace")
    except OSError:
        return ""


def examine(ident: Ident, title: str = "") -> Stuck | None:
    """What /proc says of the process; None when it is gone or waits only to be collected."""
    fields = _read(ident.pid, "stat").rpartition(")")[2].split()
    if len(fields) < 20 or int(fields[19]) != ident.start or fields[0] in ("Z", "X"):
        return None
    channel = _read(ident.pid, "wchan").strip()
    # "[<0>] nv_wait_event+0x1c/0x40 [nvidia]"
    lines = (line.split("]", 1)[-1].strip() for line in _read(ident.pid, "stack").splitlines()[:FRAMES])
    stack = tuple(line.split("+", 1)[0] for line in lines if line)
    return Stuck(ident, title, fields[0], "" if channel == "0" else channel, stack)


def text(processes: Iterable[Stuck]) -> str:
    """All of them in one line, those in state D first."""
    ordered = sorted(processes, key=lambda s: (s.state != "D", s.ident.pid))
    return "; ".join(s.text for s in ordered)
