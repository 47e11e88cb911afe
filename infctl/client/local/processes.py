"""Processes that we started, remembered on disk by pid and start time, and nobody else's ever signalled.

A record is written right after its process starts; a pid that was given to another process meanwhile no longer
matches its start time, and a record from before a reboot counts for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from infctl.adapters.etcd_server import start_ticks

_POLL = 0.05


@dataclass(frozen=True, slots=True)
class Recorded:
    """`start` is in clock ticks since boot (field 22 of /proc/<pid>/stat)."""

    name: str
    pid: int
    start: int
    boot: str

    @property
    def alive(self) -> bool:
        return self.boot == boot_id() and start_ticks(self.pid) == self.start


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class ProcessBook:
    """The records of one cluster, in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def read(self) -> dict[str, Recorded]:
        try:
            found = json.loads(self._path.read_bytes())
            return {entry["name"]: Recorded(**entry) for entry in found}
        except (OSError, ValueError, TypeError, KeyError):
            return {}

    def alive(self, name: str) -> Recorded | None:
        record = self.read().get(name)
        if record is not None:
            self._reap(record.pid)
        return record if record is not None and record.alive else None

    def spawn(self, name: str, argv: Sequence[str], log: Path, env: dict[str, str] | None = None) -> Recorded:
        """Start a process in a session of its own, its output in `log`, and write its record."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as out:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=self._path.parent,
                env=env,
            )
        self._children[process.pid] = process
        record = Recorded(name, process.pid, start_ticks(process.pid) or 0, boot_id())
        self._write([*(r for r in self.read().values() if r.name != name), record])
        return record

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)

    async def stop(self, name: str, *, timeout: float, again_after: float = 0.0) -> bool:
        """SIGTERM, a second one after `again_after` (0: none), SIGKILL after `timeout`; False when none ran."""
        record = self.alive(name)
        if record is None:
            return False
        loop = asyncio.get_running_loop()
        began = loop.time()
        told_again = again_after <= 0
        send(record, signal.SIGTERM)
        while loop.time() - began < timeout:
            self._reap(record.pid)
            if not record.alive:
                return True
            if not told_again and loop.time() - began >= again_after:
                told_again = True
                send(record, signal.SIGTERM)
            await asyncio.sleep(_POLL)
        send(record, signal.SIGKILL)
        await wait_gone([record], 5.0)
        self._reap(record.pid)
        return True

    def _reap(self, pid: int) -> None:
        child = self._children.get(pid)
        if child is not None and child.poll() is not None:
            del self._children[pid]

    def _write(self, records: Iterable[Recorded]) -> None:
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        fresh.write_text(json.dumps([asdict(r) for r in records], indent=1), encoding="utf-8")
        os.replace(fresh, self._path)


def send(record: Recorded, number: signal.Signals) -> bool:
    """Signal exactly the recorded process; False when it is gone."""
    try:
        fd = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return False
    try:
        if not record.alive:  # checked after opening: from here on the descriptor cannot mean another process
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)
        return True
    finally:
        os.close(fd)


async def wait_gone(records: Sequence[Recorded], timeout: float) -> bool:
    """True when none of them lives; waits at most `timeout` seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    while any(r.alive for r in records):
        if loop.time() >= until:
            return False
        await asyncio.sleep(_POLL)
    return True


def launched(state_dir: Path) -> list[Recorded]:
    """What the daemon's own state files say it started: the engines that a killed daemon leaves behind."""
    found: list[Recorded] = []
    for path in state_dir.rglob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            state = json.loads(path.read_bytes())
            for process in state.get("processes", ()):
                found.append(Recorded(f"group/{state['group']}", process["pid"], process["start"], state["boot_id"]))
    return found
