"""Watches every process of one launch: the loop calls us within milliseconds of a death.

A pidfd says that a process is *gone*; with gigabytes to free that is long after it was killed. So those that serve
are also asked every few milliseconds whether they have begun to exit, and the first of both signs is told.

Kept true: each process found is watched exactly once, by a descriptor that was checked against its start time after
it was opened, so a reused pid is never watched or killed. New processes are looked for often while the engine loads
and slowly afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from infctl_daemon.proc import procfs
from infctl_daemon.proc.procfs import Ident, Stat

EXIT_POLL = 0.02
FAST_SCAN = 0.25
SLOW_SCAN = 5.0


@dataclass(slots=True)
class Watched:
    """One process of the launch. `title` is the last one read while it lived."""

    ident: Ident
    fd: int
    stat_fd: int = -1
    title: str = ""
    parent: str = ""  # the title of what started it
    alive: bool = True
    told: bool = False
    status: int | None = None  # as `procfs.exit_status`, once it is told


@dataclass(frozen=True, slots=True)
class Look:
    """One reading of /proc, made outside the loop."""

    stats: list[Stat]
    titles: dict[Ident, str]
    parents: dict[Ident, str]
    shm: set[str]


def look(main: Ident, known: frozenset[Ident], deep: bool) -> Look:
    """Read the members of the launch and their titles; their shared memory too with `deep`, which costs more."""
    found = procfs.members(procfs.snapshot(), main, known)
    shm: set[str] = set()
    for s in found if deep else ():
        shm |= procfs.shared_memory(s.ident.pid)
    titles = {s.ident: procfs.title(s.ident.pid) for s in found}
    by_pid = {ident.pid: title for ident, title in titles.items()}
    return Look(found, titles, {s.ident: by_pid.get(s.ppid, "") for s in found}, shm)


@dataclass(slots=True)
class Tree:
    """All processes of one launch that were ever seen. `on_exit` is called in the loop, once for each.

    `serves` tells by title and parent's title whose end must be seen at once; the main process always counts.
    """

    main: Ident
    on_exit: Callable[[Watched], None]
    on_change: Callable[[], None] = lambda: None
    serves: Callable[[str, str], bool] = lambda title, parent: False
    watched: dict[Ident, Watched] = field(default_factory=dict)
    shm: set[str] = field(default_factory=set)
    stopped: dict[Ident, str] = field(default_factory=dict)  # in state T now: evidence to show, never a trigger
    loading: bool = True
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, ident: Ident, title: str = "", parent: str = "") -> None:
        """Watch one more process."""
        if ident in self.watched:
            return
        try:
            fd = os.pidfd_open(ident.pid)
        except OSError:
            return
        seen = procfs.stat(ident.pid)
        if seen is None or seen.ident != ident:
            os.close(fd)
            return
        one = Watched(ident, fd, title=title, parent=parent)
        with contextlib.suppress(OSError):
            one.stat_fd = procfs.open_stat(ident.pid)
        self.watched[ident] = one
        self._empty.clear()
        asyncio.get_running_loop().add_reader(fd, self._readable, one)

    def _readable(self, one: Watched) -> None:
        asyncio.get_running_loop().remove_reader(one.fd)
        one.alive = False
        if not any(w.alive for w in self.watched.values()):
            self._empty.set()
        self._tell(one)
        self._forget(one)

    def _tell(self, one: Watched) -> None:
        if not one.told:
            one.told = True
            one.status = procfs.exit_status(one.stat_fd)
            self.on_exit(one)

    def _forget(self, one: Watched) -> None:
        if one.fd >= 0:
            asyncio.get_running_loop().remove_reader(one.fd)
            os.close(one.fd)
        if one.stat_fd >= 0:
            os.close(one.stat_fd)
        one.fd = one.stat_fd = -1

    async def keep_asking(self) -> None:
        """Ask those that serve whether they have begun to exit, until cancelled or until nothing lives."""
        while living := self.living:
            for one in living:
                asked = (
                    one.stat_fd >= 0 and not one.told and (one.ident == self.main or self.serves(one.title, one.parent))
                )
                if asked and procfs.is_ending(one.stat_fd):
                    self._tell(one)
            await asyncio.sleep(EXIT_POLL)

    @property
    def living(self) -> list[Watched]:
        return [w for w in self.watched.values() if w.alive]

    def pids(self) -> frozenset[int]:
        """Every pid that was ever of this launch."""
        return frozenset(i.pid for i in self.watched)

    async def scan(self, *, deep: bool = False) -> int:
        """Look for new members once; returns how many there were."""
        seen = await asyncio.to_thread(look, self.main, frozenset(w.ident for w in self.living), deep)
        before = len(self.watched)
        for s in seen.stats:
            if s.state not in ("Z", "X"):
                self.add(s.ident, seen.titles[s.ident], seen.parents[s.ident])
        for ident, title in seen.titles.items():
            # a process that has ended has no title any more: keep the last one
            if title and ident in self.watched:
                self.watched[ident].title = title
        self.shm |= seen.shm
        self.stopped = {s.ident: seen.titles[s.ident] for s in seen.stats if s.state == "T"}
        grown = len(self.watched) - before
        if grown:
            self.on_change()
        return grown

    async def keep_scanning(self) -> None:
        """Scan until cancelled or until nothing is left alive."""
        turn = 0
        while self.living:
            await self.scan(deep=not self.loading or turn % 8 == 0)
            turn += 1
            await asyncio.sleep(FAST_SCAN if self.loading else SLOW_SCAN)

    def signal_all(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal every living member through its pidfd; returns how many got it."""
        return sum(self.signal_one(w, number) for w in self.living)

    @staticmethod
    def signal_one(one: Watched, number: signal.Signals) -> bool:
        try:
            signal.pidfd_send_signal(one.fd, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    async def wait_empty(self, timeout: float) -> bool:
        """Wait until no watched process lives; False when `timeout` seconds were not enough."""
        if not self.living:
            return True
        try:
            await asyncio.wait_for(self._empty.wait(), timeout)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Stop watching; the processes go on."""
        for w in self.watched.values():
            self._forget(w)
