"""A container where nothing better is allowed: a session of its own, and its members found by scanning /proc.

What leaves the session is still found through its parent (`procfs.members`); what leaves both between two scans is not.
"""

from __future__ import annotations

import asyncio
import subprocess
from typing import Final, Literal

from infctl.domain.errors import StartFailed
from infctl_daemon.proc import procfs, spawn
from infctl_daemon.proc.container import UNKNOWN, Container, Limits, Order, Status
from infctl_daemon.proc.oom import OomKills
from infctl_daemon.proc.procfs import Ident

PREFIX: Final = "session:"


def main_of(child: subprocess.Popen[bytes]) -> Ident:
    """A child of ours cannot be collected by anyone else, so its entry is there even if it died at once."""
    seen = procfs.stat(child.pid)
    return seen.ident if seen else Ident(child.pid, 0)


def living(main: Ident) -> list[Ident]:
    """What a scan finds of it."""
    return [s.ident for s in procfs.members(procfs.snapshot(), main) if s.state not in ("Z", "X")]


class Session:
    """`child` is None when an earlier daemon started it."""

    kind: Literal["session"] = "session"

    def __init__(self, main: Ident, child: subprocess.Popen[bytes] | None) -> None:
        self._main = main
        self._child = child
        self._oom = OomKills.of(main.pid)

    @property
    def name(self) -> str:
        return f"{PREFIX}{self._main.pid}"

    @property
    def main(self) -> Ident:
        return self._main

    def pids(self) -> frozenset[int] | None:
        return None

    def kill(self) -> bool:
        return False

    def oom_kills(self) -> int:
        return self._oom.since if self._oom else 0

    def status_now(self) -> Status:
        return Status.of(self._child.poll()) if self._child else UNKNOWN

    async def status(self) -> Status:
        return self.status_now()

    async def remove(self) -> bool:
        self.status_now()  # collects the child
        return not await asyncio.to_thread(living, self._main)


class SessionDriver:
    kind: Literal["session"] = "session"

    def refuses(self, limits: Limits) -> str:
        return "a session has no limits" if limits.controllers else ""

    def name_of(self, launch: str) -> str:
        return ""

    async def start(self, order: Order) -> Container:
        if why := self.refuses(order.limits):
            raise StartFailed(why, reason="LimitsUnavailable")
        child = spawn.start(order.argv, order.env, order.log, order.cwd)
        return Session(main_of(child), child)

    async def find(self, name: str, main: Ident) -> Container | None:
        if name != f"{PREFIX}{main.pid}":
            return None
        return Session(main, None) if await asyncio.to_thread(living, main) else None

    async def names(self) -> list[str]:
        """A session carries no mark of ours: only the state file knows them."""
        return []
