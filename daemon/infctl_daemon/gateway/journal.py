"""What the gateway writes to the store: batched, newest value of a key only, never in the way of a token.

Serving never waits for it. While the store is away values wait (bounded: the oldest finished ones are dropped and
counted); a lease that is gone is replaced by the caller's next one and the value is written again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from infctl.domain.errors import LeaseLost, StoreError
from infctl.ports.store import Put, Store

BATCH = 100
GATHER = 0.005
BOUND = 20_000
log = structlog.get_logger()


@dataclass(slots=True)
class _Value:
    value: bytes
    lease: Callable[[], int]


class Journal:
    """One writer task over a map of pending values. `lease` is asked for when the value is sent, 0 = wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: dict[str, _Value] = {}
        self._wake = asyncio.Event()
        self._retry = 0.05
        self.dropped = 0
        self.written = 0
        self.available = True

    def put(self, key: str, value: bytes, lease: Callable[[], int]) -> None:
        """Write `key` soon; a value that still waits is replaced."""
        self._pending.pop(key, None)
        self._pending[key] = _Value(value, lease)
        if len(self._pending) > BOUND:
            self._pending.pop(next(iter(self._pending)))
            self.dropped += 1
        self._wake.set()

    @property
    def lag(self) -> int:
        return len(self._pending)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER)
            await self._flush()

    async def drain(self, timeout: float) -> None:
        """Write what waits, for at most `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._pending and self.available:
                    await self._flush()

    async def _flush(self) -> None:
        self._wake.clear()
        ready = {k: v for k, v in list(self._pending.items())[: BATCH * 4] if v.lease() != 0}
        keys = list(ready)[:BATCH]
        if not keys:
            if self._pending:
                await asyncio.sleep(self._retry)
                self._wake.set()
            return
        sent = {k: ready[k] for k in keys}
        try:
            await self._store.txn((), [Put(k, v.value, v.lease()) for k, v in sent.items()], timeout=3.0)
        except LeaseLost:
            # the keeper has a new lease soon; nothing is lost here
            await self._back_off("a lease is gone")
            return
        except StoreError as error:
            await self._back_off(error.message)
            return
        if not self.available:
            log.info("journal.available", waited=len(self._pending))
        self.available = True
        self._retry = 0.05
        self.written += len(sent)
        for key, value in sent.items():
            if self._pending.get(key) is value:
                del self._pending[key]
        if self._pending:
            self._wake.set()

    async def _back_off(self, why: str) -> None:
        if self.available:
            log.warning("journal.unavailable", why=why, waiting=len(self._pending))
        self.available = False
        await asyncio.sleep(self._retry)
        self._retry = min(1.0, self._retry * 2)
        self._wake.set()
