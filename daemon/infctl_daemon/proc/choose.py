"""Chooses what holds launches together on this machine: the best that works, proved by trying it.

The proof is one small launch from start to removal: its process is listed, is killed, and its end is known. What was
not taken, and why, is kept for the daemon's log and status.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infctl.domain.errors import ConfigError, InfctlError, StartFailed
from infctl.domain.ids import launch_id
from infctl_daemon.proc import cgroupfs, kill
from infctl_daemon.proc.cgroup import BARE, CgroupDriver
from infctl_daemon.proc.container import UNKNOWN, Container, Driver, Kind, Order, Status
from infctl_daemon.proc.procfs import Ident
from infctl_daemon.proc.session import SessionDriver
from infctl_daemon.proc.systemd_unit import SystemdDriver

DEFAULT_STATE = Path("/var/lib/infctl/node")
PROOF_DEADLINE = 30.0
KINDS: tuple[Kind, ...] = ("systemd", "cgroup", "session")


@dataclass(frozen=True, slots=True)
class Chosen:
    """`driver` starts launches; `refused` says why each better kind was not taken."""

    driver: Driver
    refused: Mapping[Kind, str]

    @property
    def text(self) -> str:
        """One line for the log and the status."""
        whys = "; ".join(f"no {kind}: {why}" for kind, why in self.refused.items())
        return f"{self.driver.kind} ({whys})" if whys else self.driver.kind


def systemd_here() -> str:
    """Why systemd cannot be asked, or nothing."""
    if not Path("/run/systemd/system").is_dir():
        return "PID 1 is not systemd"
    if os.geteuid() != 0:
        return "only root may start units"
    missing = [name for name in ("systemd-run", "systemctl") if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed" if missing else ""


def cgroup_parent() -> Path | str:
    """Where this daemon's cgroups go, or why nowhere: below its own cgroup, which is the root if nobody set one."""
    mount = next((m for m in cgroupfs.mounts() if m.unified), None)
    if mount is None:
        return "no cgroup version 2 hierarchy is mounted"
    if not mount.writable:
        return f"{mount.path} is mounted read-only"
    own = mount.path / cgroupfs.own_path(Path("/proc/self/cgroup").read_text()).lstrip("/")
    if not os.access(own, os.W_OK):
        return f"{own} is not ours to write"
    return own


async def prove(driver: Driver, folder: Path) -> None:
    """One launch from start to removal. Raises InfctlError or OSError when anything is not as promised."""
    launch = launch_id("proof", secrets.token_bytes(5))
    log = folder / f"{launch}.log"
    order = Order(launch, ["/bin/sleep", "60"], dict(BARE), log, Path("/"))
    container: Container | None = None
    try:
        container = await driver.start(order)
        if container.main.pid not in (container.pids() or ()):
            raise StartFailed("a started process is not listed")
        if await driver.find(container.name, container.main) is None:
            raise StartFailed("a started container is not found by its name")
        if not container.kill():
            if container.kind == "cgroup":
                raise StartFailed("the kernel has no cgroup.kill (Linux 5.14)")
            kill.kill_recorded(container.main, frozenset({container.main}))
        status = await _ended(container)
        if status.signal != signal.SIGKILL:
            raise StartFailed(f"the end of a killed process reads {status.text or 'unknown'}")
        if not await container.remove():
            raise StartFailed("an empty container cannot be removed")
        container = None
    finally:
        if container is not None:
            kill.kill_recorded(container.main, frozenset({container.main}), container=container)
            with contextlib.suppress(InfctlError, OSError):
                await _ended(container)
                await container.remove()
        log.unlink(missing_ok=True)


async def _ended(container: Container) -> Status:
    """How its main process ended, when nothing is left in it; unknown after five seconds."""
    status = UNKNOWN
    for _ in range(250):
        status = await container.status()
        if status.text and not container.pids():
            break
        await asyncio.sleep(0.02)
    return status


def mark_of(state_dir: Path) -> str:
    """Tells the containers of daemons that share a machine apart."""
    return f"{zlib.crc32(os.fsencode(state_dir)):08x}"


def _candidate(kind: Kind, state_dir: Path, folder: Path) -> Driver | str:
    mark = mark_of(state_dir)
    if kind == "systemd":
        return systemd_here() or SystemdDriver(folder, "" if state_dir == DEFAULT_STATE else mark)
    if kind == "cgroup":
        parent = cgroup_parent()
        return parent if isinstance(parent, str) else CgroupDriver(parent, mark, folder)
    return SessionDriver()


async def choose(state_dir: Path, run_dir: Path, kinds: Sequence[Kind] = KINDS) -> Chosen:
    """The first of `kinds` that works. `state_dir` names the daemon. Raises ConfigError when none does."""
    folder = run_dir / "orders"
    refused: dict[Kind, str] = {}
    for kind in kinds:
        driver = _candidate(kind, state_dir, folder)
        if isinstance(driver, str):
            refused[kind] = driver
            continue
        if kind == "session":
            return Chosen(driver, refused)
        try:
            async with asyncio.timeout(PROOF_DEADLINE):
                await prove(driver, folder)
        except TimeoutError:
            refused[kind] = f"tried, and not done within {PROOF_DEADLINE:.0f} s"
        except (InfctlError, OSError) as error:
            refused[kind] = f"tried: {error}"
        else:
            return Chosen(driver, refused)
    whys = "\n".join(f"{kind}: {why}" for kind, why in refused.items())
    raise ConfigError(f"nothing that was allowed can hold an engine's processes\n{whys}", reason="NoContainer")


async def find(name: str, main: Ident, state_dir: Path, run_dir: Path) -> Container | None:
    """The container that an earlier daemon recorded under `name`, whatever kind this daemon would choose now.

    Raises StartFailed when systemd does not answer: then it is not known, and not gone.
    """
    kind = name.partition(":")[0]
    for known in KINDS:
        if kind == known:
            driver = _candidate(known, state_dir, run_dir / "orders")
            return None if isinstance(driver, str) else await driver.find(name, main)
    return None


async def sweep(driver: Driver, keep: Collection[str]) -> list[str]:
    """Remove empty containers of ours that nobody will ask about (`keep` are names on record); returns their names."""
    removed = []
    with contextlib.suppress(InfctlError, OSError):
        for name in await driver.names():
            container = None if name in keep else await driver.find(name, Ident(-1, 0))
            if container is not None and not container.pids() and await container.remove():
                removed.append(name)
    return removed
