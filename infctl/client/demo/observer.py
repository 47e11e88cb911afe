"""What the driver sees of the cluster while the demo runs: events and fault notices, watched as they are written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from infctl.ports.store import Events, Relist, Store, WatchEvent
from infctl.store.codec import BadRecord, decode
from infctl.store.keys import Keys
from infctl.store.records import EventRecord, FaultNotice


class Observer:
    """Collects from the revision it was started at. `noticed` maps a launch to (notice, epoch ms when we saw it)."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self.events: list[EventRecord] = []
        self.noticed: dict[str, tuple[FaultNotice, float]] = {}

    async def start(self) -> None:
        now = await self._store.range(self._keys.faults)
        for prefix, take in ((self._keys.events, self._event), (self._keys.faults, self._notice)):
            self._tasks.append(asyncio.create_task(self._follow(prefix, now.revision + 1, take)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Whether `condition` came true within `timeout` seconds; looked at whenever something was seen."""
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return condition()
        return True

    async def _follow(self, prefix: str, revision: int, take: Callable[[WatchEvent], None]) -> None:
        async with aclosing(self._store.watch(prefix, start_revision=revision)) as items:  # type: ignore[type-var]
            async for item in items:
                if isinstance(item, Events):
                    seen = item.events
                elif isinstance(item, Relist):
                    seen = tuple(WatchEvent(kv.key, kv.value, kv.mod_revision) for kv in item.kvs)
                else:
                    continue
                for event in seen:
                    take(event)
                self._changed.set()

    def _event(self, event: WatchEvent) -> None:
        if event.value is not None:
            try:
                self.events.append(decode(EventRecord, event.value))
            except BadRecord:
                return

    def _notice(self, event: WatchEvent) -> None:
        if event.value is not None:
            try:
                notice = decode(FaultNotice, event.value)
            except BadRecord:
                return
            self.noticed.setdefault(notice.launch, (notice, time.time() * 1000.0))
