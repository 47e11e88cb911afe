"""A watch on a `MemoryStore`. Keeps true: nothing changes until an item is handed out, so a cancelled reader loses
nothing; and the order of items is that of `EtcdWatch` (`Interrupted` once, then events, `Relist` or `Alive`)."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable
from typing import TYPE_CHECKING

from infctl.ports.store import Alive, Events, Interrupted, Relist, WatchItem

if TYPE_CHECKING:
    from infctl.adapters.memory_store import MemoryStore

ALIVE_S = 2.0


class MemoryWatch:
    """An async iterator of `WatchItem`; ends only by `aclose()`."""

    def __init__(
        self, store: MemoryStore, prefix: str, start_revision: int, *, on_close: Callable[[MemoryWatch], None]
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._next = start_revision or store.revision + 1
        self._on_close = on_close
        self._woken = asyncio.Event()
        self._closed = False
        self._interrupted = False
        self._alive_at = 0.0

    def wake(self) -> None:
        self._woken.set()

    def __aiter__(self) -> MemoryWatch:
        return self

    async def __anext__(self) -> WatchItem:
        loop = asyncio.get_running_loop()
        while not self._closed:
            self._woken.clear()
            item = self._pending(loop.time())
            if item is not None:
                self._alive_at = loop.time() + ALIVE_S
                return item
            try:
                async with asyncio.timeout_at(None if self._store.unavailable else self._alive_at):
                    await self._woken.wait()
            except TimeoutError:
                continue
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._closed = True
        self._on_close(self)
        self.wake()

    def _pending(self, now: float) -> WatchItem | None:
        store = self._store
        if store.unavailable:
            if self._interrupted:
                return None
            self._interrupted = True
            return Interrupted("the store is set unavailable")
        recovered, self._interrupted = self._interrupted, False
        if 0 < self._next <= store.compact_revision:
            self._next = store.revision + 1
            return Relist(tuple(store._under(self._prefix)), store.revision)
        first = bisect.bisect_left(store.history, self._next, key=lambda event: event.mod_revision)
        events = tuple(event for event in store.history[first:] if event.key.startswith(self._prefix))
        self._next = max(self._next, store.revision + 1)
        if events:
            return Events(events, events[-1].mod_revision)
        return Alive(store.revision) if recovered or now >= self._alive_at else None
