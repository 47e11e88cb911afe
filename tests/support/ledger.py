"""Numbered writes through whatever happens to the store, and a watch that must have seen each of them once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from infctl.adapters.etcd import EtcdStore
from infctl.domain.errors import StoreUnavailable
from infctl.domain.lease import Holding
from infctl.ports.store import Compare, Put
from infctl.store.lease_keeper import LeaseKeeper
from tests.support.etcd import Reader, within


class Ledger:
    """A writer on a connection of its own; a watch and a kept lease on the connection under test."""

    def __init__(self, endpoints: Sequence[str], *, writers: Sequence[str] = (), ttl: float = 10.0) -> None:
        self.store = EtcdStore(endpoints)
        self.changes: list[Holding] = []
        self.keeper = LeaseKeeper(self.store, ttl, on_change=self.changes.append)
        self.confirmed: dict[str, float] = {}  # key: when it was sent
        self._writer = EtcdStore(writers or endpoints)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Ledger:
        await self.keeper.start()
        start = await self.store.put("w/0", b"", lease=self.keeper.lease_id)
        self.reader = Reader(self.store.watch("w/", start_revision=start))
        await self.reader.until_keys("w/0")
        self._task = asyncio.create_task(self._write())
        return self

    async def _write(self) -> None:
        number = 0
        while True:
            number += 1
            key = f"w/{number:06}"
            sent_at = time.monotonic()
            with contextlib.suppress(StoreUnavailable):  # unclear: it may still be there in the end
                await self._writer.txn((Compare.absent(key),), (Put(key, b""),), timeout=1.0)
                self.confirmed[key] = sent_at
            await asyncio.sleep(0.02)

    async def seen_after(self, moment: float, seconds: float) -> float:
        """Wait for the first event of a write that was sent after `moment`; returns how long after it that came."""
        at = 0.0

        def later(reader: Reader) -> bool:
            nonlocal at
            at = reader.times[-1]
            return any(self.confirmed.get(e.key, 0.0) > moment for e in reader.events[-20:])

        await self.reader.until(later, seconds)
        return at - moment

    async def settle(self) -> None:
        """No more writes, and the watch has caught up."""
        assert self._task
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for _ in range(10):
            try:
                last = await self._writer.put("w/last", b"", timeout=2.0)
                break
            except StoreUnavailable:
                await asyncio.sleep(0.2)
        await self.reader.until(lambda r: r.events[-1].mod_revision >= last, 15)

    async def check(self) -> None:
        """Every write that is in the store was seen once, in its order, and all that was confirmed is there."""
        until = time.monotonic() + 5.0
        while True:
            there = {kv.key: kv.mod_revision for kv in (await self.store.range("w/")).kvs}
            seen = [(e.key, e.mod_revision) for e in self.reader.events]
            missed = sorted(set(there.items()) - set(seen))
            # what was sent into a frozen member may be applied at any moment, even now
            if not missed or time.monotonic() > until:
                break
            await asyncio.sleep(0.1)
        assert not missed
        assert [revision for _, revision in seen] == sorted({revision for _, revision in seen}), "once, and in order"
        assert set(self.confirmed) <= set(there) and not self.reader.relists

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self.reader.close()
        await self.keeper.stop(revoke=False)
        await within(5, self.store.close())
        await within(5, self._writer.close())


@contextlib.asynccontextmanager
async def ledger_on(*endpoints: str, writers: Sequence[str] = (), ttl: float = 10.0) -> AsyncIterator[Ledger]:
    ledger = Ledger(endpoints, writers=writers, ttl=ttl)
    try:
        yield await ledger.start()
    finally:
        await ledger.close()
