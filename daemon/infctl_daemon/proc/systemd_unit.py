"""A container that is a transient systemd service: systemd is the parent, and keeps the exit status for us.

systemd is asked through `systemd-run` and `systemctl`, each with a deadline: as root they reach it without a bus
daemon. Kept true: the unit depends on no unit of ours, so stopping the daemon does not touch it; it never restarts by
itself (we own that); it stays loaded after its end, well or not, until `remove`; arguments and environment are not in
its properties, which every user may read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from infctl.domain.errors import StartFailed
from infctl_daemon.proc import cgroupfs, procfs
from infctl_daemon.proc.container import UNKNOWN, Container, Limits, Order, Status
from infctl_daemon.proc.entry import Entry
from infctl_daemon.proc.procfs import Ident

PREFIX: Final = "systemd:"
SLICE: Final = "infctl.slice"
DEADLINE = 10.0
_ASKED = "LoadState,ActiveState,ExecMainPID,ExecMainCode,ExecMainStatus,Result,ControlGroup"
_PROPERTIES = (
    # not "exec": that makes an engine which ends at once a failed start without exit code; our gate tells of the exec
    "Type=simple",
    "RemainAfterExit=yes",
    # stopping the unit by hand means what we mean: SIGTERM to the main process alone, then SIGKILL to everything
    "KillMode=mixed",
    "SendSIGKILL=yes",
    "TimeoutStopSec=60",
    "Restart=no",
    "OOMPolicy=kill",
    "LimitMEMLOCK=infinity",
    "LimitNOFILE=1048576",
    "StandardInput=null",
)
_EXITED, _KILLED, _DUMPED = "1", "2", "3"


async def ask(*argv: str, deadline: float = DEADLINE) -> tuple[int, str]:
    """Run one command of systemd's; (exit code, output). Raises StartFailed when there is no answer in time."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
    )
    try:
        async with asyncio.timeout(deadline):
            out, _ = await process.communicate()
    except TimeoutError:
        raise StartFailed(
            f"systemd does not answer {argv[0]} within {deadline:.0f} s", reason="SystemdSilent"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return process.returncode or 0, out.decode(errors="replace").strip()


async def show(unit: str) -> dict[str, str]:
    """What systemd knows of the unit."""
    _, out = await ask("systemctl", "show", f"--property={_ASKED}", "--", unit)
    return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)


def status_of(shown: Mapping[str, str]) -> Status:
    """How the main process of a unit ended; unknown while it runs."""
    code, number = shown.get("ExecMainCode"), shown.get("ExecMainStatus", "")
    if not number.isdigit():
        return UNKNOWN
    if code == _EXITED:
        return Status(code=int(number))
    return Status(signal=int(number)) if code in (_KILLED, _DUMPED) else UNKNOWN


def cgroup_of(control_group: str) -> Path | None:
    """Where the unit's processes are listed: version 2 where it is mounted, else systemd's own hierarchy."""
    if not control_group:
        return None
    for mount in cgroupfs.mounts():
        path = mount.path / control_group.lstrip("/")
        if (path / "cgroup.procs").exists():
            return path
    return None


class Unit:
    """One transient service. `group` is None when its cgroup is gone already."""

    kind: Literal["systemd"] = "systemd"

    def __init__(self, unit: str, main: Ident, group: Path | None) -> None:
        self._unit = unit
        self._main = main
        self._group = group
        self._oom = False

    @property
    def name(self) -> str:
        return f"{PREFIX}{self._unit}"

    @property
    def main(self) -> Ident:
        return self._main

    def pids(self) -> frozenset[int] | None:
        return cgroupfs.pids(self._group) if self._group else frozenset()

    def kill(self) -> bool:
        return self._group is not None and cgroupfs.kill(self._group)

    def oom_kills(self) -> int:
        counted = cgroupfs.oom_kills(self._group) if self._group else 0
        return max(counted, int(self._oom))

    def status_now(self) -> Status:
        return UNKNOWN

    async def status(self) -> Status:
        for _ in range(20):
            shown = await show(self._unit)
            self._oom |= shown.get("Result") == "oom-kill"
            if (status := status_of(shown)) != UNKNOWN or procfs.is_alive(self._main):
                break
            await asyncio.sleep(0.05)  # it has just ended, and systemd has not collected it yet
        return status

    async def remove(self) -> bool:
        if self.pids():
            return False
        try:
            await ask("systemctl", "stop", "--", self._unit)
            await ask("systemctl", "reset-failed", "--", self._unit)  # refused when it is not loaded any more
            return (await show(self._unit)).get("LoadState") == "not-found"
        except StartFailed:
            return False


class SystemdDriver:
    """Units are named `infctl-<launch>.service`; `mark` keeps daemons apart that share a machine."""

    kind: Literal["systemd"] = "systemd"

    def __init__(self, folder: Path, mark: str = "") -> None:
        self._folder = folder
        self._suffix = f".{mark}.service" if mark else ".service"

    def unit(self, launch: str) -> str:
        return f"infctl-{launch}{self._suffix}"

    def refuses(self, limits: Limits) -> str:
        held: frozenset[str] = frozenset().union(
            *(cgroupfs.controllers(m.path) for m in cgroupfs.mounts() if m.unified)
        )
        missing = limits.controllers - held
        return f"systemd has no cgroup controller for {', '.join(sorted(missing))} here" * bool(missing)

    def name_of(self, launch: str) -> str:
        return f"{PREFIX}{self.unit(launch)}"

    async def start(self, order: Order) -> Container:
        if why := self.refuses(order.limits):
            raise StartFailed(why, reason="LimitsUnavailable")
        unit = self.unit(order.launch)
        # systemd would make the file readable for all
        order.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        try:
            with Entry(self._folder, order) as entry:
                code, said = await ask("systemd-run", *self._arguments(unit, order), "--", *entry.argv)
                if code:
                    raise StartFailed(f"systemd-run: {said}")
                await entry.executed()
            shown = await show(unit)
        except BaseException:
            await asyncio.shield(self._undo(unit))
            raise
        pid = int(shown.get("ExecMainPID") or 0)
        seen = procfs.stat(pid)
        # it may have ended already: then systemd has collected it, and nobody can be given that pid by mistake
        main = seen.ident if seen else Ident(pid, 0)
        return Unit(unit, main, cgroup_of(shown.get("ControlGroup", "")))

    def _arguments(self, unit: str, order: Order) -> list[str]:
        limits = order.limits
        properties = [
            *_PROPERTIES,
            f"StandardOutput=append:{order.log}",
            f"StandardError=append:{order.log}",
            f"TasksMax={limits.processes or 'infinity'}",
        ]
        if limits.memory_bytes:
            properties.append(f"MemoryMax={limits.memory_bytes}")
        if limits.cpu_weight:
            properties.append(f"CPUWeight={limits.cpu_weight}")
        return [
            "--quiet",
            "--no-ask-password",
            f"--unit={unit}",
            f"--slice={SLICE}",
            f"--description=infctl launch {order.launch}",
            *(f"--property={one}" for one in properties),
        ]

    async def _undo(self, unit: str) -> None:
        with contextlib.suppress(StartFailed):
            await ask("systemctl", "kill", "--signal=KILL", "--", unit)
            await ask("systemctl", "stop", "--", unit)
            await ask("systemctl", "reset-failed", "--", unit)

    async def find(self, name: str, main: Ident) -> Container | None:
        unit = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX):
            return None
        shown = await show(unit)
        if shown.get("LoadState") != "loaded":
            return None
        return Unit(unit, main, cgroup_of(shown.get("ControlGroup", "")))

    async def names(self) -> list[str]:
        _, out = await ask("systemctl", "list-units", "--all", "--plain", "--no-legend", f"infctl-*{self._suffix}")
        # the shape of a launch's name keeps our own services out, and the units of other daemons
        ours = re.compile(rf"infctl-.+-[a-z2-7]{{8}}{re.escape(self._suffix)}")
        units = (line.split()[0] for line in out.splitlines() if line.strip())
        return sorted(f"{PREFIX}{unit}" for unit in units if ours.fullmatch(unit))
