"""The gateway's leases: one that is held and replaced when really lost, one that only fades.

`id` is 0 while there is none: whoever writes waits. A store that is away never changes it (R5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from infctl.domain.errors import StoreError
from infctl.ports.store import Store
from infctl.store.lease_keeper import LeaseKeeper

log = structlog.get_logger()
RETRY = 0.5


class HeldLease:
    """Keeps one lease of `ttl` seconds for the life of the process; `on_new` runs after each grant but the first."""

    def __init__(self, store: Store, ttl: float, on_new: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._ttl = ttl
        self._on_new = on_new
        self._keeper: LeaseKeeper | None = None
        self.id = 0

    def current(self) -> int:
        return self.id

    async def run(self) -> None:
        first = True
        while True:
            keeper = LeaseKeeper(self._store, self._ttl)
            try:
                self.id = await keeper.start()
            except StoreError:
                await asyncio.sleep(RETRY)
                continue
            self._keeper = keeper
            if not first:
                log.warning("lease.replaced", lease=f"{self.id:x}")
                self._on_new()
            first = False
            try:
                await keeper.lost.wait()
                self.id = 0
            finally:
                await keeper.stop(revoke=False)

    async def release(self) -> None:
        """Give the lease back: its keys go at once."""
        lease, self.id = self.id, 0
        if lease:
            await self._store.revoke(lease, timeout=1.0)


class RotatingLease:
    """A lease for things that need only to fade: a new one each `every` seconds, each living `ttl` seconds."""

    def __init__(self, store: Store, *, ttl: float, every: float) -> None:
        self._store = store
        self._ttl = ttl
        self._every = every
        self.id = 0

    def current(self) -> int:
        return self.id

    async def run(self) -> None:
        while True:
            try:
                self.id = (await self._store.grant(self._ttl)).id
            except StoreError:
                await asyncio.sleep(RETRY)
                continue
            await asyncio.sleep(self._every)
