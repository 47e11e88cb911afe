"""Puts processes into state D for real: a frozen cgroup of version 1 holds them in the kernel, signals or not."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def freezers() -> Path | None:
    """Where cgroups that freeze are mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options = line.split()[:4]
        if kind == "cgroup" and "freezer" in options.split(","):
            return Path(where)
    return None


class Freezer:
    def __init__(self, group: Path) -> None:
        self._group = group

    def hold(self, pid: int) -> None:
        """Until `let_go` the process does nothing, not even die."""
        (self._group / "cgroup.procs").write_text(str(pid))
        (self._group / "freezer.state").write_text("FROZEN")
        self._wait(lambda: state(pid) == "D")

    def let_go(self) -> None:
        (self._group / "freezer.state").write_text("THAWED")

    def close(self) -> None:
        self.let_go()

        def removed() -> bool:
            with contextlib.suppress(OSError):
                self._group.rmdir()
            return not self._group.exists()

        self._wait(removed)

    @staticmethod
    def _wait(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)


def state(pid: int) -> str:
    """The letter of its state: R S D T Z."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def a_freezer(top: Path) -> Iterator[Freezer]:
    group = top / f"infctl-tests-{os.getpid()}"
    group.mkdir()
    freezer = Freezer(group)
    try:
        yield freezer
    finally:
        freezer.close()
