"""Permission to take a group of a pool away on purpose: minReady and the budget, decided by compare-and-swap.

Kept true: two drainers anywhere in the cluster never decide on the same view; the entry of a daemon whose lease is gone
does not count; an entry is taken out only by the intent that made it.
"""

from __future__ import annotations

import asyncio

import msgspec

from infctl.domain.disruption import Wait, judge
from infctl.domain.errors import StoreError, StoreUnavailable
from infctl.ports.store import Compare, Get, KeyValue, Put, Store
from infctl.store.codec import BadRecord, Stored, decode, decode_stored, encode
from infctl.store.intent_records import Disruption, Disruptions
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, PoolSpec
from infctl.store.stamp import now_text

TRIES = 8
GIVE_BACK_FOR = 600.0
RETRY = 1.0


class Permissions:
    """Asked by the drains of one node."""

    def __init__(self, store: Store, keys: Keys, node: str) -> None:
        self._store = store
        self._keys = keys
        self._node = node

    async def ask(self, group: str, pool: PoolSpec, intent: str, *, below_min: bool) -> Wait | None:
        """None: the disruption is entered. Raises StoreError."""
        key = self._keys.disruption(pool.name)
        for _ in range(TRIES):
            kv, stored, ready = await self._look(pool.name)
            alive = {name: one for name, one in stored.record.groups.items() if await self._lives(one.node)}
            wait = judge(
                group,
                pool=pool.name,
                min_ready=pool.min_ready,
                budget=pool.disruptions,
                ready=ready,
                disrupted=alive.keys(),
                below_min=below_min,
            )
            if wait is not None or group not in ready:
                return wait
            entered = {**alive, group: Disruption(node=self._node, intent=intent, at=now_text())}
            value = stored.encode(msgspec.structs.replace(stored.record, groups=entered))
            # who came back to life since we looked counts again
            gone = {one.node for name, one in stored.record.groups.items() if name not in alive}
            compares = [Compare.unchanged(key, kv.mod_revision if kv else 0)]
            compares += [Compare.absent(self._keys.node_lease(node)) for node in sorted(gone)]
            if (await self._store.txn(compares, [Put(key, value)])).succeeded:
                return None
        raise StoreUnavailable("the pool's disruptions change all the time")

    async def give_back(self, group: str, pool: str, intent: str) -> None:
        """Take our entry out, however long the store is away. Entries of others stay."""
        key = self._keys.disruption(pool)
        until = asyncio.get_running_loop().time() + GIVE_BACK_FOR
        while asyncio.get_running_loop().time() < until:
            try:
                kv = await self._store.get(key)
                if kv is None:
                    return
                stored = decode_stored(Disruptions, kv.value, kv.mod_revision)
                mine = stored.record.groups.get(group)
                if mine is None or mine.intent != intent:
                    return
                left = {name: one for name, one in stored.record.groups.items() if name != group}
                value = stored.encode(msgspec.structs.replace(stored.record, groups=left))
                if (await self._store.txn([Compare.unchanged(key, kv.mod_revision)], [Put(key, value)])).succeeded:
                    return
            except BadRecord:
                return
            except StoreError:
                await asyncio.sleep(RETRY)

    async def forget_all_but(self, intents: set[str]) -> None:
        """Entries of an earlier life of this daemon that no open intent stands for. Raises StoreError."""
        for kv in (await self._store.range(self._keys.disruptions)).kvs:
            try:
                record = decode(Disruptions, kv.value)
            except BadRecord:
                continue
            for group, one in record.groups.items():
                if one.node == self._node and one.intent not in intents:
                    await self.give_back(group, record.pool, one.intent)

    async def _look(self, pool: str) -> tuple[KeyValue | None, Stored[Disruptions], set[str]]:
        key = self._keys.disruption(pool)
        seen = await self._store.txn([], [Get(key), Get(self._keys.endpoints, prefix=True)])
        kv = seen.gets[0][0] if seen.gets[0] else None
        value = kv.value if kv else encode(Disruptions(pool=pool))
        ready = set()
        for one in seen.gets[1]:
            try:
                endpoint = decode(EndpointRecord, one.value)
            except BadRecord:
                continue
            if endpoint.pool == pool and endpoint.state == "ready":
                ready.add(endpoint.group)
        return kv, decode_stored(Disruptions, value), ready

    async def _lives(self, node: str) -> bool:
        return node == self._node or await self._store.get(self._keys.node_lease(node)) is not None
