"""`LeaseKeeper`: holds one lease for as long as the store can be reached, and knows exactly what it may claim.

Keeps true (R5):

* the lease is ours until `deadline`, the moment the last successful renewal was *sent* + its TTL, on our own clock. The
  server may keep it longer (it gives a full TTL again after a restart), so only the holder can tell when it is unsafe;
* only the store's definite "gone" makes it `lost`. An unavailable store makes it *uncertain* past the deadline, and a
  later renewal makes it held again;
* renewal comes at half of the *remaining* time, so that one slow answer always leaves room for another try.

A holder asks `holding` right before it acts: after a freeze of this process the events come late, the clock does not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from infctl.domain.errors import InvariantBroken, LeaseLost, StoreError
from infctl.domain.lease import Holding, LeaseClock
from infctl.ports.store import Lease, Store

_log = logging.getLogger(__name__)

TRY_S = 1.5  # one renewal; a member that hangs costs no more than this before the next one is asked
RETRY_S = 0.2


class LeaseKeeper:
    """Grants a lease at `start()` and renews it in the background until `stop()` or its definite loss.

    `lost` and `uncertain` are events to wait for; `on_change` is called with each new `Holding`, in the loop.
    """

    def __init__(
        self,
        store: Store,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_change: Callable[[Holding], None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._now = clock
        self._on_change = on_change
        self._sleep = sleep
        self._clock: LeaseClock | None = None
        self._told = Holding.HELD
        self._tasks: list[asyncio.Task[None]] = []
        self._answered = asyncio.Event()
        self.lost = asyncio.Event()
        self.uncertain = asyncio.Event()

    @property
    def lease_id(self) -> int:
        return self._known.lease

    @property
    def deadline(self) -> float:
        """Until then (on the clock given) nobody else can have got what this lease protects."""
        return self._known.deadline

    @property
    def ttl_s(self) -> float:
        """What the store granted."""
        return self._known.ttl

    @property
    def holding(self) -> Holding:
        """What the holder may do at this moment."""
        return self._known.holding(self._now())

    async def start(self, *, resume: int = 0, timeout: float = 5.0) -> int:
        """Grant, or take over the lease `resume` of an earlier life, and begin to renew; returns the lease id.

        Raises StoreError, and may be tried again; LeaseLost only when the lease to resume is really gone.
        """
        if self._clock is not None:
            raise InvariantBroken("a lease keeper starts once; a new lease needs a new keeper")
        sent_at = self._now()
        if resume:
            lease = Lease(resume, await self._store.keep_alive(resume, timeout=timeout))
        else:
            lease = await self._store.grant(self._ttl_s, timeout=timeout)
        self._clock = LeaseClock.granted(lease.id, lease.ttl_s, sent_at)
        self._tasks = [
            asyncio.create_task(self._renew(), name=f"lease-renew {lease.id:x}"),
            asyncio.create_task(self._guard(), name=f"lease-guard {lease.id:x}"),
        ]
        return lease.id

    async def stop(self, *, revoke: bool = True, timeout: float = 2.0) -> None:
        """End the renewal. With `revoke` the keys go at once; where the store is away they go with the TTL."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if revoke and self._clock is not None and not self._clock.lost:
            try:
                await self._store.revoke(self._clock.lease, timeout=timeout)
            except StoreError as error:
                _log.info("lease %x is left to expire: %s", self._clock.lease, error.message)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def _known(self) -> LeaseClock:
        if self._clock is None:
            raise InvariantBroken("the lease was not granted yet")
        return self._clock

    async def _renew(self) -> None:
        failed = False
        while not self._known.lost:
            wait = self._known.next_renewal(self._now())
            await self._sleep(min(wait, RETRY_S) if failed else wait)
            sent_at = self._now()
            try:
                ttl = await self._store.keep_alive(self._known.lease, timeout=TRY_S)
            except LeaseLost:
                self._clock = self._known.answered_gone()
            except Exception as error:  # whatever it was, it is not the store saying that the lease is gone
                if not failed:
                    level = logging.WARNING if isinstance(error, StoreError) else logging.ERROR
                    _log.log(level, "lease %x was not renewed, trying on: %s", self._known.lease, error)
                failed = True
            else:
                self._clock = self._known.renewed(ttl, sent_at)
                failed = False
                self._answered.set()
            self._tell()

    async def _guard(self) -> None:
        """Notice the deadline at its moment, also while a renewal is under way."""
        while not self._known.lost:
            left = self._known.deadline - self._now()
            if left > 0:
                await self._sleep(left)
                continue
            # past it only an answer changes anything
            self._answered.clear()
            self._tell()
            await self._answered.wait()

    def _tell(self) -> None:
        holding = self.holding
        if holding is self._told:
            return
        self._told = holding
        if holding is Holding.LOST:
            self.lost.set()
        if holding is Holding.UNCERTAIN:
            self.uncertain.set()
        else:
            self.uncertain.clear()
        if self._on_change is not None:
            try:
                self._on_change(holding)
            except Exception:
                _log.exception("the listener of lease %x failed; the lease is renewed all the same", self._known.lease)
