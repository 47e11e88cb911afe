"""Status keys: the latest value of each, written soon after it changed, never more often than needed.

Only the newest value of a key is ever kept or written; what the store did not take is tried again with what is newest
by then.
"""

from __future__ import annotations

import asyncio
import contextlib

from infctl.domain.errors import StoreError
from infctl.ports.store import Store

SPACING = 0.1


class StatusWriter:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._wanted: dict[str, bytes] = {}
        self._written: dict[str, bytes] = {}
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def set(self, key: str, value: bytes, compare: bytes | None = None) -> None:
        """Want `value` under `key`. `compare` is what decides whether it changed (the value without its stamp)."""
        mark = compare if compare is not None else value
        if self._written.get(key) == mark and key not in self._wanted:
            return
        self._wanted[key] = value
        self._written[key] = mark
        self._idle.clear()
        self._work.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            for key in list(self._wanted):
                value = self._wanted.pop(key)
                try:
                    await self._store.put(key, value)
                except StoreError:
                    self._wanted.setdefault(key, value)
                    self._work.set()
                    await asyncio.sleep(1.0)
            if not self._wanted:
                self._idle.set()
            await asyncio.sleep(SPACING)

    async def flush(self, timeout: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout)
