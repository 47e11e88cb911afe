"""A container that is a cgroup of our own (version 2): the kernel lists its members and kills all of them at once.

Kept true: the main process is in the cgroup before it becomes the engine, so everything it starts is too; a launch
has a cgroup of its own, and its name says which daemon's it is. Nothing else is made, so nothing else is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Final, Literal

from infctl.domain.errors import StartFailed
from infctl_daemon.proc import cgroupfs, spawn
from infctl_daemon.proc.container import UNKNOWN, Container, Limits, Order, Status
from infctl_daemon.proc.entry import Entry
from infctl_daemon.proc.procfs import Ident
from infctl_daemon.proc.session import main_of

PREFIX: Final = "cgroup:"
# the interpreter that enters needs no more; the engine's own environment is in the order
BARE = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


class Cgroup:
    """`child` is None when an earlier daemon started it."""

    kind: Literal["cgroup"] = "cgroup"

    def __init__(self, path: Path, main: Ident, child: subprocess.Popen[bytes] | None) -> None:
        self._path = path
        self._main = main
        self._child = child

    @property
    def name(self) -> str:
        return f"{PREFIX}{self._path}"

    @property
    def main(self) -> Ident:
        return self._main

    def pids(self) -> frozenset[int] | None:
        return cgroupfs.pids(self._path)

    def kill(self) -> bool:
        return cgroupfs.kill(self._path)

    def oom_kills(self) -> int:
        return cgroupfs.oom_kills(self._path)

    def status_now(self) -> Status:
        return Status.of(self._child.poll()) if self._child else UNKNOWN

    async def status(self) -> Status:
        return self.status_now()

    async def remove(self) -> bool:
        for _ in range(20):
            self.status_now()  # collects the child
            if cgroupfs.remove(self._path):
                return True
            if cgroupfs.pids(self._path):
                return False
            await asyncio.sleep(0.05)  # the kernel takes members out a moment after they are gone
        return False


class CgroupDriver:
    """Makes `<parent>/infctl-<launch>.<mark>`; `mark` keeps daemons apart. Orders pass through `folder`."""

    kind: Literal["cgroup"] = "cgroup"

    def __init__(self, parent: Path, mark: str, folder: Path) -> None:
        self._parent = parent
        self._mark = mark
        self._folder = folder

    def _path(self, launch: str) -> Path:
        return self._parent / f"infctl-{launch}.{self._mark}"

    def refuses(self, limits: Limits) -> str:
        missing = limits.controllers - cgroupfs.delegate(self._parent, limits.controllers)
        return f"no cgroup controller for {', '.join(sorted(missing))} in {self._parent}" if missing else ""

    def name_of(self, launch: str) -> str:
        return f"{PREFIX}{self._path(launch)}"

    async def start(self, order: Order) -> Container:
        if why := self.refuses(order.limits):
            raise StartFailed(why, reason="LimitsUnavailable")
        group = self._path(order.launch)
        group.mkdir()
        child = None
        try:
            _write_limits(group, order.limits)
            with Entry(self._folder, order, str(group / "cgroup.procs")) as entry:
                child = spawn.start(entry.argv, BARE, order.log)
                main = main_of(child)
                await entry.executed()
        except BaseException:
            if child is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)  # not collected yet, so the pid is still its own
                await asyncio.shield(asyncio.to_thread(child.wait, 5.0))
            cgroupfs.remove(group)
            raise
        return Cgroup(group, main, child)

    async def find(self, name: str, main: Ident) -> Container | None:
        path = Path(name.removeprefix(PREFIX))
        if not name.startswith(PREFIX) or not (path / "cgroup.procs").exists():
            return None
        return Cgroup(path, main, None)

    async def names(self) -> list[str]:
        return sorted(f"{PREFIX}{path}" for path in self._parent.glob(f"infctl-*.{self._mark}"))


def _write_limits(group: Path, limits: Limits) -> None:
    values = {"memory.max": limits.memory_bytes, "cpu.weight": limits.cpu_weight, "pids.max": limits.processes}
    for name, value in values.items():
        if value:
            (group / name).write_text(str(value))
    if limits.memory_bytes:
        # an engine that lost one rank is of no use: the kernel ends it whole
        (group / "memory.oom.group").write_text("1")
