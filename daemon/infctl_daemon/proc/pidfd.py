"""Watches every process of one launch: the loop calls us within milliseconds of a death.

A pidfd says that a process is *gone*; with gigabytes to free that is long after it was killed. So of those that serve
two threads are watched as well (`proc/threads.py`); where that cannot be and there is much to free, they are asked
every few milliseconds whether they have begun to exit. The first sign is told.

Kept true: each process found is watched exactly once, by a descriptor that was checked against its start time after
it was opened, so a reused pid is never watched or killed; nothing is sent SIGKILL twice. New processes are looked for
often while the engine loads and slowly afterwards: in the launch's container where it lists them, else in all of /proc.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from infctl_daemon.proc import pidfd_info, procfs
from infctl_daemon.proc.container import Container
from infctl_daemon.proc.procfs import Ident, Stat
from infctl_daemon.proc.threads import WATCHED, ThreadWatch, supported
from infctl_daemon.runtime.beat import beat

EXIT_POLL = 0.02
ASK_COST, ASK_SHARE = 10e-6, 0.005  # seconds that asking one process takes, and the share of a core for all of them
MUCH = 256 * 2**20  # bytes that take long enough to free
SIGN_LOOK, SIGN_TRIES = 0.002, 50  # a thread has ended: does its process, too?
THREADS = supported()
FAST_SCAN = 0.25
SLOW_SCAN = 5.0
SHARED = 0.1  # many launches that load at once look at one reading of /proc
GLANCE = 1.0  # how often a container is asked whether there are others in it
DEEP = 60  # of so many slow scans one reads the mapped memory, whatever /dev/shm looks like
NEW_NAMES = 2  # and so many after a name has come: it is there a moment before it is mapped


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
    killed: bool = False  # SIGKILL is on its way, or was
    status: int | None = None  # 0…255 or minus the signal, when it is told or later
    threads: ThreadWatch | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """One reading of /proc, made outside the loop."""

    stats: list[Stat]
    titles: dict[Ident, str]
    parents: dict[Ident, str]
    shm: set[str]


def look(
    main: Ident, known: frozenset[Ident], deep: bool, listed: frozenset[int] | None = None, age: float = 0.0
) -> Look:
    """Read the members of the launch and their titles; their shared memory too with `deep`, which costs more.

    `listed` are the pids in its container; None has all of /proc searched, or what was seen of it `age` seconds ago.
    """
    if listed is None:
        found = procfs.members(procfs.recent_snapshot(age) if age else procfs.snapshot(), main, known)
    else:
        stats = (procfs.stat(pid) for pid in listed | {ident.pid for ident in known})
        # a pid that only we knew and that means another process now is nobody's
        found = [s for s in stats if s and (s.ident.pid in listed or s.ident in known)]
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
    `container` lists and kills where it can.
    """

    main: Ident
    on_exit: Callable[[Watched], None]
    on_change: Callable[[], None] = lambda: None
    serves: Callable[[str, str], bool] = lambda title, parent: False
    watched: dict[Ident, Watched] = field(default_factory=dict)
    shm: set[str] = field(default_factory=set)
    stopped: dict[Ident, str] = field(default_factory=dict)  # in state T now: evidence to show, never a trigger
    loading: bool = True
    container: Container | None = None
    _swept: bool = False  # the container was killed as a whole
    _names: frozenset[str] = frozenset()  # under /dev/shm, at the last scan
    _deep: int = NEW_NAMES  # scans to come that read the mapped memory
    _staggered: bool = False
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

    def begin(self, title: str = "") -> None:
        """Watch the main process; one that is gone already has its end told as soon as the loop turns."""
        self.add(self.main, title)
        if self.main not in self.watched:
            one = self.watched[self.main] = Watched(self.main, -1, title=title, alive=False)
            self._empty.set()
            asyncio.get_running_loop().call_soon(self._tell, one)

    def _readable(self, one: Watched) -> None:
        asyncio.get_running_loop().remove_reader(one.fd)
        one.alive = False
        one.status = pidfd_info.exit_status(one.fd) if one.status is None else one.status
        if not any(w.alive for w in self.watched.values()):
            self._empty.set()
        self._tell(one)
        self._forget(one)

    def _tell(self, one: Watched) -> None:
        if not one.told:
            one.told = True
            if one.status is None:
                one.status = procfs.exit_status(one.stat_fd)
            self.on_exit(one)

    def _forget(self, one: Watched) -> None:
        if one.fd >= 0:
            asyncio.get_running_loop().remove_reader(one.fd)
            os.close(one.fd)
        if one.stat_fd >= 0:
            os.close(one.stat_fd)
        if one.threads is not None:
            one.threads.close()
        one.fd = one.stat_fd = -1

    async def keep_asking(self) -> None:
        """Hear early of the end of those that serve, until cancelled or until nothing lives."""
        loop = asyncio.get_running_loop()
        asked: list[Watched] = []
        sorted_at = 0.0
        while self.living:
            glance = GLANCE if self.loading else SLOW_SCAN
            if loop.time() >= sorted_at + glance or not asked:
                sorted_at = loop.time()
                asked = [one for one in self._serving() if self._needs_asking(one)]
            for one in asked:
                if one.stat_fd >= 0 and not one.told and procfs.is_ending(one.stat_fd):
                    self._tell(one)
            if asked:
                await asyncio.sleep(max(EXIT_POLL, len(asked) * ASK_COST / ASK_SHARE))
            else:
                await beat(glance)

    def _serving(self) -> list[Watched]:
        return [w for w in self.living if w.ident == self.main or self.serves(w.title, w.parent)]

    def _needs_asking(self, one: Watched) -> bool:
        if one.threads is not None and one.threads.whole:
            return False
        count, resident = procfs.size(one.stat_fd)
        if THREADS and count > WATCHED:
            if one.threads is None:
                one.threads = ThreadWatch(one.ident.pid, lambda: self._signed(one))
            one.threads.refresh()
            if one.threads.whole:
                return False
        return resident >= MUCH

    def _signed(self, one: Watched, tries: int = SIGN_TRIES) -> None:
        """A thread has ended: by itself, or as the first of all."""
        if one.told or not one.alive or one.stat_fd < 0:
            return
        if procfs.is_ending(one.stat_fd):
            self._tell(one)
        elif tries:
            asyncio.get_running_loop().call_later(SIGN_LOOK, self._signed, one, tries - 1)
        elif one.threads is not None:
            one.threads.refresh()  # it lives: another thread in the place of that one

    @property
    def living(self) -> list[Watched]:
        return [w for w in self.watched.values() if w.alive]

    def pids(self) -> frozenset[int]:
        """Every pid that was ever of this launch."""
        return frozenset(i.pid for i in self.watched)

    async def scan(self, *, deep: bool = False, age: float = 0.0) -> int:
        """Look for new members once, in what was seen at most `age` seconds ago; returns how many there were."""
        listed = self.container.pids() if self.container else None
        seen = await asyncio.to_thread(look, self.main, frozenset(w.ident for w in self.living), deep, listed, age)
        before = len(self.watched)
        for s in seen.stats:
            if s.state not in ("Z", "X"):
                self.add(s.ident, seen.titles[s.ident], seen.parents[s.ident])
        for ident, title in seen.titles.items():
            # a process that has ended has no title any more: keep the last one
            if title and ident in self.watched:
                self.watched[ident].title = title
        mapped = seen.shm - self.shm
        self.shm |= seen.shm
        self.stopped = {s.ident: seen.titles[s.ident] for s in seen.stats if s.state == "T"}
        grown = len(self.watched) - before
        if grown or mapped:
            self.on_change()
        return grown

    async def keep_scanning(self) -> None:
        """Scan until cancelled or until nothing is left alive."""
        turn = 0
        while self.living:
            await self.scan(deep=self._is_deep(turn), age=SHARED)
            turn += 1
            await self._pause()

    def _is_deep(self, turn: int) -> bool:
        """Whether this scan reads the mapped memory: thousands of lines for each process of a real engine."""
        if self.loading:
            return turn % 8 == 0
        names = procfs.shared_names()
        if names - self._names:
            self._deep = NEW_NAMES
        self._names = names
        self._deep -= 1
        return self._deep >= 0 or turn % DEEP == 0

    async def _pause(self) -> None:
        """Until the next scan is due: at once when the container has somebody in it whom we do not watch."""
        if self.loading:
            await asyncio.sleep(FAST_SCAN)
            return
        if self.container is None or self.container.pids() is None:
            await beat(SLOW_SCAN)  # with all the others that search /proc: one reading is enough for them
            return
        every = round(SLOW_SCAN / GLANCE)
        # launches scan in threads, which get into each other's way: the first pause gives each a turn of its own
        beats, self._staggered = (every if self._staggered else 1 + self.main.pid % every), True
        for _ in range(beats):
            await beat(GLANCE)
            if (self.container.pids() or frozenset()) - {w.ident.pid for w in self.living}:
                return

    def kill(self) -> int:
        """SIGKILL to everything, once: what was sent one before is left out. Returns how many got it now."""
        swept: frozenset[int] = frozenset()
        if self.container is not None and not self._swept:
            listed = self.container.pids() or frozenset()
            if self.container.kill():
                self._swept = True
                swept = listed
        waiting = [w for w in self.living if not w.killed]
        for one in waiting:
            if one.ident.pid in swept:
                one.killed = True
            else:
                self.signal_one(one, signal.SIGKILL)
        return len(waiting)

    @staticmethod
    def signal_one(one: Watched, number: signal.Signals) -> bool:
        one.killed |= number is signal.SIGKILL
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
