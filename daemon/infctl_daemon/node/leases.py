"""The daemon's lesser leases: one that rotates (events), one kept in reserve (fault notices).

A fault must not wait for a lease: the reserve is granted beforehand and kept fresh, so the notice is one round trip.
Neither lease carries anything that serving depends on; both are replaced when the store says that they are gone.
"""

from __future__ import annotations

import asyncio
import contextlib

from infctl.domain.errors import LeaseLost, StoreError
from infctl.ports.store import Store

EVENT_TTL = 900.0
EVENT_ROTATION = 300.0
FAULT_TTL = 600.0
FAULT_REFRESH = 120.0


class RotatingLease:
    """A lease for short-lived keys; a new one every `rotation` seconds, the old one runs out by itself."""

    def __init__(self, store: Store, ttl: float = EVENT_TTL, rotation: float = EVENT_ROTATION) -> None:
        self._store = store
        self._ttl = ttl
        self._rotation = rotation
        self._lease = 0
        self._until = 0.0

    async def get(self) -> int:
        """The lease to use now. Raises StoreError when a new one is due and cannot be had."""
        now = asyncio.get_running_loop().time()
        if not self._lease or now >= self._until:
            self._lease = (await self._store.grant(self._ttl)).id
            self._until = now + self._rotation
        return self._lease

    def forget(self) -> None:
        """The store said that it is gone."""
        self._lease = 0


class SpareLease:
    """One unused lease in reserve. `take` gives it away; `keep` grants the next and keeps it alive."""

    def __init__(self, store: Store, ttl: float = FAULT_TTL) -> None:
        self._store = store
        self._ttl = ttl
        self._lease = 0
        self._wanted = asyncio.Event()
        self._wanted.set()

    async def take(self) -> int:
        """A lease of its own for one notice. Raises StoreError when there is no reserve and none is granted."""
        lease, self._lease = self._lease, 0
        self._wanted.set()
        return lease or (await self._store.grant(self._ttl)).id

    async def keep(self) -> None:
        """Runs until cancelled. Silent about errors: whoever needs the lease meets them itself."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), FAULT_REFRESH)
            self._wanted.clear()
            try:
                if self._lease:
                    await self._store.keep_alive(self._lease)
                else:
                    self._lease = (await self._store.grant(self._ttl)).id
            except LeaseLost:
                self._lease = 0
                self._wanted.set()
            except StoreError:
                await asyncio.sleep(1.0)
                if not self._lease:
                    self._wanted.set()
