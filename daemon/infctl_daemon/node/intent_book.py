"""One intent in the store as its executor keeps it: what is wanted, what we said last, and every write of ours to it.

Kept true: a status is written only over the one that we know, in one transaction with the effect it speaks of; a closed
one is never changed; intent and statuses are durable until every executor has closed its own, then fade in a few hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from infctl.domain.errors import LeaseLost, StoreError
from infctl.domain.intents import CLOSED
from infctl.ports.store import Compare, Get, Op, Put, Store
from infctl.store.codec import BadRecord, decode
from infctl.store.intent_records import Intent, IntentStatus
from infctl.store.keys import Keys
from infctl.store.records import Generation
from infctl.store.stamp import now_text
from infctl_daemon.node.leases import RotatingLease

RETRY_FIRST = 0.2
RETRY_MOST = 5.0


class Entry:
    """Made by `read`. `generation` is what was registered for the target when it was read."""

    def __init__(self, store: Store, keys: Keys, node: str, intent: Intent, value: bytes, lease: RotatingLease) -> None:
        self._store = store
        self._lease = lease
        self._value = value
        self._node = node
        self._key = keys.intent(intent.intent)
        self._status_key = keys.intent_status(intent.intent, node)
        self._status_of = partial(keys.intent_status, intent.intent)
        self._revision = 0
        self.intent = intent
        self.status: IntentStatus | None = None
        self.generation = 0

    def fresh(self, state: str, **fields: object) -> IntentStatus:
        """The next word: what was said before, with these fields."""
        base = self.status or IntentStatus(intent=self.intent.intent, executor=f"node/{self._node}", state=state)
        return msgspec.structs.replace(base, state=state, updated_at=now_text(), **fields)

    async def write(
        self, status: IntentStatus, effects: Sequence[Op] = (), compares: Sequence[Compare] = (), *, close: bool = False
    ) -> bool:
        """Put the status together with its effects. False: what was compared is otherwise. Raises StoreError."""
        value = msgspec.json.encode(status)
        known = [Compare.present(self._key), Compare.unchanged(self._status_key, self._revision)]
        lease = 0
        ops: list[Op] = list(effects)
        if close:
            unchanged, lease, others = await self._closing()
            known.append(unchanged)
            ops += [Put(self._key, self._value, lease), *others]
        ops.append(Put(self._status_key, value, lease))
        try:
            done = await self._store.txn([*known, *compares], ops, [Get(self._status_key)])
        except LeaseLost:
            self._lease.forget()
            raise
        if done.succeeded:
            self._revision, self.status = done.revision, status
            return True
        kv = done.gets[0][0] if done.gets and done.gets[0] else None
        if kv is not None and kv.mod_revision != self._revision:
            # an earlier try of ours that was not answered, or an earlier life's
            self._revision, self.status = kv.mod_revision, decode(IntentStatus, kv.value)
            return kv.value == value
        return False

    async def _closing(self) -> tuple[Compare, int, list[Op]]:
        """What a last word of ours stands on, the lease it gets (0: others are not done) and theirs, to fade with it.

        Each of them rewrites the intent, so of two at the same moment one looks again. Raises StoreError.
        """
        others = [node for node in self.intent.executors if node != self._node]
        seen = await self._store.txn([], [Get(self._key), *(Get(self._status_of(node)) for node in others)])
        intent, said = seen.gets[0], [kvs[0] for kvs in seen.gets[1:] if kvs]
        unchanged = Compare.unchanged(self._key, intent[0].mod_revision if intent else 0)
        if len(said) < len(others) or not all(_is_closed(kv.value) for kv in said):
            return unchanged, 0, []
        lease = await self._lease.get()
        return unchanged, lease, [Put(kv.key, kv.value, lease) for kv in said]

    @property
    def closed(self) -> bool:
        return self.status is not None and self.status.state in CLOSED

    async def close(self, status: IntentStatus, effects: Sequence[Op] = ()) -> None:
        """The last word, however long the store is away. Nothing where another one was said or the intent is gone."""
        delay = RETRY_FIRST
        tries = 0
        while not self.closed:
            try:
                if await self.write(status, effects, close=True):
                    return
                tries += 1
                if tries > 3 + len(self.intent.executors):
                    return  # the intent was deleted: nobody asks any more
            except StoreError:
                await asyncio.sleep(delay)
                delay = min(RETRY_MOST, 2 * delay)

    async def look(self, generation_key: str) -> bool:
        """Read all of it at one revision. False when it is gone or cannot be read. Raises StoreError."""
        wanted = [Get(self._key), Get(self._status_key), *([Get(generation_key)] if generation_key else [])]
        seen = await self._store.txn([], wanted)
        kv, said = (kvs[0] if kvs else None for kvs in seen.gets[:2])
        if kv is None:
            return False
        try:
            self.intent, self._value = decode(Intent, kv.value), kv.value
            if said is not None:
                self.status, self._revision = decode(IntentStatus, said.value), said.mod_revision
            if generation_key and seen.gets[2]:
                self.generation = decode(Generation, seen.gets[2][0].value).generation
        except BadRecord:
            return False
        return True


def _is_closed(value: bytes) -> bool:
    try:
        return decode(IntentStatus, value).state in CLOSED
    except BadRecord:
        return False
