"""The store port without a server: the same contract in one process, for tests and for a try-out without etcd.

Keeps true: what it does differently from etcd would be a bug; `tests/contract/test_store_contract.py` runs on both.
Every transaction is one revision, a transaction that changes nothing is none, and a value comparison with an absent
key is false, as in etcd. Leases run by the loop's clock, stand still while `unavailable` and then get their full time
again, as those of an etcd that was down do.

Hooks for tests: `unavailable`, `expire(lease)`, and `unclear_writes`: so many writes are applied but not confirmed.
"""

from __future__ import annotations

import asyncio
import bisect
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from infctl.adapters.memory_watch import MemoryWatch
from infctl.domain.errors import Compacted, LeaseLost, StoreError, StoreUnavailable
from infctl.ports.store import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Lease,
    Op,
    Put,
    RangeResult,
    Relation,
    StoreStatus,
    Target,
    TxnResult,
    WatchEvent,
)

MAX_OPS = 128
MAX_VALUE = 1_500_000

_RELATIONS = {
    Relation.EQUAL: operator.eq,
    Relation.NOT_EQUAL: operator.ne,
    Relation.GREATER: operator.gt,
    Relation.LESS: operator.lt,
}


@dataclass(slots=True)
class _Lease:
    ttl: float
    ends_at: float
    keys: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class MemoryStore:
    """See the module docstring. All state is gone with the object."""

    def __init__(self) -> None:
        self.revision = 1
        self.compact_revision = 0
        self.history: list[WatchEvent] = []
        self.unclear_writes = 0
        self.replaced = ""
        self._unavailable = False
        self._closed = False
        self._now: dict[str, KeyValue] = {}
        self._versions: dict[str, list[tuple[int, KeyValue | None]]] = {}
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 1
        self._watches: set[MemoryWatch] = set()

    @property
    def unavailable(self) -> bool:
        return self._unavailable

    @unavailable.setter
    def unavailable(self, value: bool) -> None:
        self._unavailable = value
        for lease_id, lease in self._leases.items():
            if value and lease.timer:
                lease.timer.cancel()
            elif not value:
                self._arm(lease_id, lease)
        self._wake()

    def expire(self, lease_id: int) -> None:
        """End a lease now, as if nobody had renewed it."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return
        if lease.timer:
            lease.timer.cancel()
        self._write([Delete(key) for key in sorted(lease.keys)])

    def expect(self, cluster_id: int, revision: int) -> None:
        """There is no other database here: what was known is not needed."""

    async def get(self, key: str, *, timeout: float = 5.0) -> KeyValue | None:
        self._check()
        return self._now.get(key)

    async def range(
        self, prefix: str, *, limit: int = 0, revision: int = 0, keys_only: bool = False, timeout: float = 10.0
    ) -> RangeResult:
        self._check()
        found = list(self._under(prefix) if not revision else self._under_at(prefix, revision))
        if keys_only:
            found = [replace(kv, value=b"") for kv in found]
        cut = found[:limit] if limit else found
        return RangeResult(tuple(cut), revision or self.revision, len(cut) < len(found))

    async def put(self, key: str, value: bytes, *, lease: int = 0, timeout: float = 5.0) -> int:
        return (await self.txn((), (Put(key, value, lease),), timeout=timeout)).revision

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Op],
        orelse: Sequence[Op] = (),
        *,
        timeout: float = 5.0,
    ) -> TxnResult:
        self._check()
        _validate(compares, then, orelse)
        succeeded = all(self._holds(compare) for compare in compares)
        ops = then if succeeded else orelse
        self._check_puts(ops)
        gets, deleted = self._write(ops)
        self._maybe_unclear()
        return TxnResult(succeeded, self.revision, gets, deleted)

    async def grant(self, ttl_s: float, *, timeout: float = 5.0) -> Lease:
        self._check()
        lease_id, self._next_lease = self._next_lease, self._next_lease + 1
        lease = self._leases[lease_id] = _Lease(float(max(1, math.ceil(ttl_s))), 0.0)
        self._arm(lease_id, lease)
        return Lease(lease_id, lease.ttl)

    async def keep_alive(self, lease_id: int, *, timeout: float = 1.5) -> float:
        self._check()
        lease = self._lease(lease_id)
        self._arm(lease_id, lease)
        return lease.ttl

    async def time_to_live(self, lease_id: int, *, timeout: float = 5.0) -> float:
        self._check()
        return self._lease(lease_id).ends_at - asyncio.get_running_loop().time()

    async def revoke(self, lease_id: int, *, timeout: float = 5.0) -> None:
        self._check()
        self.expire(lease_id)
        self._maybe_unclear()

    def watch(self, prefix: str, *, start_revision: int) -> MemoryWatch:
        watch = MemoryWatch(self, prefix, start_revision, on_close=self._watches.discard)
        self._watches.add(watch)
        return watch

    async def compact(self, revision: int, *, timeout: float = 5.0) -> None:
        self._check()
        self._check_revision(revision, oldest=self.compact_revision + 1)
        self.compact_revision = revision
        self.history = [event for event in self.history if event.mod_revision > revision]
        for key, versions in list(self._versions.items()):
            at = bisect.bisect_right(versions, revision, key=lambda version: version[0])
            kept = versions[max(0, at - 1) :]
            if kept[0][1] is None and kept[0][0] <= revision:
                kept = kept[1:]
            self._versions[key] = kept
            if not kept:
                del self._versions[key]

    async def status(self, *, timeout: float = 5.0) -> StoreStatus:
        self._check()
        size = sum(len(kv.key) + len(kv.value) for kv in self._now.values())
        return StoreStatus("memory", 1, 1, 1, self.revision, size, size)

    async def close(self) -> None:
        self._closed = True
        for lease in self._leases.values():
            if lease.timer:
                lease.timer.cancel()
        for watch in list(self._watches):
            await watch.aclose()

    def _check(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._unavailable:
            raise StoreUnavailable("the store is set unavailable")

    def _maybe_unclear(self) -> None:
        if self.unclear_writes > 0:
            self.unclear_writes -= 1
            raise StoreUnavailable("applied, but the answer was lost")

    def _check_revision(self, revision: int, *, oldest: int) -> None:
        if revision > self.revision:
            raise StoreUnavailable(f"revision {revision} is in the future")
        if revision < oldest:
            raise Compacted("the revision was compacted away", compact_revision=self.compact_revision)

    def _lease(self, lease_id: int) -> _Lease:
        try:
            return self._leases[lease_id]
        except KeyError:
            raise LeaseLost(f"lease {lease_id:x} no longer exists") from None

    def _arm(self, lease_id: int, lease: _Lease) -> None:
        loop = asyncio.get_running_loop()
        if lease.timer:
            lease.timer.cancel()
        lease.ends_at = loop.time() + lease.ttl
        lease.timer = loop.call_at(lease.ends_at, self.expire, lease_id)

    def _under(self, prefix: str) -> Iterable[KeyValue]:
        return (self._now[key] for key in sorted(self._now) if key.startswith(prefix))

    def _under_at(self, prefix: str, revision: int) -> Iterable[KeyValue]:
        self._check_revision(revision, oldest=self.compact_revision)
        for key in sorted(self._versions):
            versions = self._versions[key]
            at = bisect.bisect_right(versions, revision, key=lambda version: version[0])
            kv = versions[at - 1][1] if at else None
            if kv is not None and key.startswith(prefix):
                yield kv

    def _holds(self, compare: Compare) -> bool:
        if not compare.prefix:
            return _holds(compare, self._now.get(compare.key))
        under = list(self._under(compare.key))
        return all(_holds(compare, kv) for kv in under) if under else _holds(compare, None)

    def _check_puts(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if isinstance(op, Put):
                if op.keep_lease and op.key not in self._now:
                    raise _invalid(f"key not found: {op.key}")
                if op.lease and not op.keep_lease:
                    self._lease(op.lease)

    def _write(self, ops: Iterable[Op]) -> tuple[tuple[tuple[KeyValue, ...], ...], int]:
        """Apply one branch as one revision; returns what its gets saw and how many keys were deleted."""
        revision, gets, deleted = self.revision + 1, [], 0
        events: list[WatchEvent] = []
        for op in ops:
            match op:
                case Get():
                    one = self._now.get(op.key)
                    found = list(self._under(op.key)) if op.prefix else [one] if one else []
                    gets.append(tuple(found[: op.limit] if op.limit else found))
                case Put():
                    events.append(self._put(op, revision))
                case Delete():
                    doomed = [kv.key for kv in self._under(op.key)] if op.prefix else [op.key]
                    gone = [self._delete(key, revision) for key in doomed if key in self._now]
                    deleted += len(gone)
                    events += gone
        if events:
            self.revision = revision
            self.history += events
            self._wake()
        return tuple(gets), deleted

    def _put(self, put: Put, revision: int) -> WatchEvent:
        old = self._now.get(put.key)
        lease = old.lease if put.keep_lease and old else put.lease
        created = old.create_revision if old else revision
        kv = KeyValue(put.key, put.value, created, revision, old.version + 1 if old else 1, lease)
        self._set(kv.key, kv, revision)
        return WatchEvent(kv.key, kv.value, revision, created, lease)

    def _delete(self, key: str, revision: int) -> WatchEvent:
        self._set(key, None, revision)
        return WatchEvent(key, None, revision)

    def _set(self, key: str, kv: KeyValue | None, revision: int) -> None:
        old = self._now.pop(key, None)
        if old and old.lease in self._leases:
            self._leases[old.lease].keys.discard(key)
        if kv is not None:
            self._now[key] = kv
            if kv.lease:
                self._leases[kv.lease].keys.add(key)
        self._versions.setdefault(key, []).append((revision, kv))

    def _wake(self) -> None:
        for watch in self._watches:
            watch.wake()


def _holds(compare: Compare, kv: KeyValue | None) -> bool:
    if kv is None and compare.target is Target.VALUE:
        return False
    actual = getattr(kv, compare.target.value) if kv else 0
    return bool(_RELATIONS[compare.relation](actual, compare.operand))


def _invalid(text: str) -> StoreError:
    return StoreError(f"the store refused the request: {text}", reason="InvalidRequest", hint="this is a bug")


def _validate(compares: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op]) -> None:
    """What etcd refuses whatever the state is."""
    if max(len(compares), len(then), len(orelse)) > MAX_OPS:
        raise _invalid("too many operations")
    for branch in (then, orelse):
        puts: set[str] = set()
        for op in branch:
            if not op.key and not getattr(op, "prefix", False):
                raise _invalid("key is not provided")
            if isinstance(op, Put):
                if len(op.value) > MAX_VALUE:
                    raise _invalid("request is too large")
                if op.key in puts:
                    raise _invalid(f"duplicate key: {op.key}")
                puts.add(op.key)
        for op in branch:
            if isinstance(op, Delete) and any(p == op.key or (op.prefix and p.startswith(op.key)) for p in puts):
                raise _invalid(f"duplicate key: {op.key}")
