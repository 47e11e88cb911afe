"""Our rank keys, `groups/<g>/ranks/<launch>/<node>`: what this host says of its parts of launches over several hosts.

Kept true: a key is written under the node's lease of the moment and again under each later one, only while its launch
is registered without a fault notice; only the newest word of each is written, and what is over leaves no key behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from infctl.domain.errors import LeaseLost, StoreError
from infctl.ports.store import Compare, Delete, Op, Put, Relation, Store, Target
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import RankPart
from infctl.store.stamp import now_text

RETRY = 0.5
TIMEOUT = 5.0


class RankKeys:
    """`say` what holds now and go on; `run` writes it."""

    def __init__(self, store: Store, keys: Keys, lease: Callable[[], int]) -> None:
        self._store = store
        self._keys = keys
        self._lease = lease
        self._wanted: dict[str, RankPart] = {}  # by key
        self._gone: set[str] = set()
        self._written: dict[str, tuple[RankPart, int]] = {}
        self._work = asyncio.Event()

    def say(self, part: RankPart) -> None:
        key = self._key(part.group, part.launch, part.node)
        self._wanted[key] = part
        self._gone.discard(key)
        self._work.set()

    def withdraw(self, group: str, launch: str, node: str) -> None:
        key = self._key(group, launch, node)
        self._wanted.pop(key, None)
        self._written.pop(key, None)
        self._gone.add(key)
        self._work.set()

    def leased(self) -> None:
        """There is another lease: what hung on the old one is written again."""
        self._work.set()

    def _key(self, group: str, launch: str, node: str) -> str:
        return self._keys.group_rank(group, launch, node)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            if not await self._all():
                self._work.set()
                await asyncio.sleep(RETRY)

    async def _all(self) -> bool:
        """Write what is not written yet; False where the store did not take all of it."""
        took = True
        for key in list(self._gone):
            if key not in self._gone:
                continue
            try:
                await self._store.txn([], [Delete(key)], timeout=TIMEOUT)
                self._gone.discard(key)
            except StoreError:
                took = False
        lease = self._lease()
        for key, part in list(self._wanted.items()) if lease else ():
            if self._wanted.get(key) is not part or self._written.get(key) == (part, lease):
                continue  # there is a newer word by now, or none any more
            try:
                await self._write(key, part, lease)
            except LeaseLost:
                continue  # the next lease makes us come back
            except StoreError:
                took = False
            else:
                if key in self._wanted:
                    self._written[key] = (part, lease)
        return took

    async def _write(self, key: str, part: RankPart, lease: int) -> None:
        """One key. A launch that is over gets none, and is not asked for again: the watch tells its loop."""
        keys, group, launch = self._keys, part.group, part.launch
        registered = Compare(keys.group_launch(group, launch), Target.VERSION, Relation.GREATER, 0)
        put: list[Op] = [Put(key, encode(msgspec.structs.replace(part, at=now_text())), lease)]
        await self._store.txn([registered, Compare.absent(keys.fault(group, launch))], put, timeout=TIMEOUT)
