"""Events for people: in order, at most once each, kept for about ten minutes; never in the way of anything.

While the store is away they wait in memory (bounded, the oldest go first). The same sentence about the same thing is
not repeated within half a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from infctl.domain.errors import LeaseLost, StoreError
from infctl.ports.store import Store
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import EventRecord
from infctl.store.stamp import event_id, now_text
from infctl_daemon.node.leases import RotatingLease

MAX_WAITING = 1000
REPEAT_AFTER = 30.0


class EventWriter:
    def __init__(self, store: Store, keys: Keys, node: str) -> None:
        self._store = store
        self._keys = keys
        self._actor = f"node/{node}"
        self._lease = RotatingLease(store)
        self._waiting: deque[tuple[str, EventRecord]] = deque(maxlen=MAX_WAITING)
        self._said: dict[tuple[str, ...], float] = {}
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def say(
        self, kind: str, subject: str, *, reason: str = "", message: str = "", fault_id: str = "", **fields: Any
    ) -> None:
        """Queue one event. Never waits."""
        now = asyncio.get_running_loop().time()
        word = (kind, subject, message, str(fields.get("launch", "")))
        if now - self._said.get(word, -REPEAT_AFTER) < REPEAT_AFTER:
            return
        self._said = {w: t for w, t in self._said.items() if now - t < REPEAT_AFTER}
        self._said[word] = now
        record = EventRecord(
            at=now_text(),
            kind=kind,
            subject=subject,
            actor=self._actor,
            reason=reason,
            fault_id=fault_id,
            message=message,
            fields=fields,
        )
        self._waiting.append((event_id(), record))
        self._idle.clear()
        self._work.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._waiting:
                if not await self._write_one():
                    await asyncio.sleep(1.0)
            self._idle.set()

    async def _write_one(self) -> bool:
        name, record = self._waiting[0]
        try:
            # the name is fixed when the event happens: a repeated put is the same event
            await self._store.put(self._keys.event(name), encode(record), lease=await self._lease.get())
        except LeaseLost:
            self._lease.forget()
            return True
        except StoreError:
            return False
        if self._waiting and self._waiting[0][0] == name:
            self._waiting.popleft()
        return True

    async def flush(self, timeout: float) -> None:
        """Give what is queued a last chance."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout)
