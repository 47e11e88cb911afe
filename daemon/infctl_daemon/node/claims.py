"""The transactions by which an owner registers, publishes and ends its launches, and by which any member ends one.

Kept true:
* the generation only rises, by compare-and-swap, and is never deleted (R1);
* an endpoint is written only while the launch is registered, not ended, without a fault notice, and our node's lease
  key is held by the lease that the endpoint gets;
* a failed compare is a refusal only when the read-back shows another writer or a fault (R5); otherwise the answer is
  `StoreUnavailable` and the caller tries again;
* a fault is one transaction, the first notice of a launch stays, and a retry writes what the first try wrote; only what
  explains an end is put in place of an end that nobody could explain, which may be what follows from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from infctl.domain.causes import explains
from infctl.domain.errors import LeaseLost, StoreFull, StoreUnavailable
from infctl.domain.ids import launch_id
from infctl.ports.store import Compare, Delete, Get, KeyValue, Op, Put, Relation, Store, Target, TxnResult
from infctl.store.codec import Record, decode, decode_stored, encode
from infctl.store.keys import Keys
from infctl.store.records import (
    EndpointRecord,
    EventRecord,
    FaultNotice,
    Generation,
    GroupSpec,
    LaunchRecord,
    Secret,
)
from infctl.store.stamp import now_text
from infctl_daemon.node.leases import SpareLease

TXN_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Registration:
    """The generation key as we know it; `mod_revision` is what the next compare stands on, `before` what it held."""

    launch: str
    generation: int
    mod_revision: int
    before: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """A definite no."""

    why: str


def _first(result: TxnResult, index: int) -> KeyValue | None:
    return result.gets[index][0] if index < len(result.gets) and result.gets[index] else None


class _Launched(Record, frozen=True, kw_only=True):
    """The part that an endpoint and its secret have in common."""

    launch: str


class Claims:
    """The owner's writes for the groups of one node."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        node: str,
        spare: SpareLease,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._store = store
        self._keys = keys
        self._node = node
        self._spare = spare
        self._entropy = entropy
        self._known: dict[str, Registration] = {}
        self._launches: dict[str, LaunchRecord] = {}

    def _held(self, lease: int) -> Compare:
        return Compare.held_by(self._keys.node_lease(self._node), lease)

    def _unended(self, group: str, launch: str) -> Compare:
        """The launch's record is there as it was made: ending it is its second version."""
        return Compare(self._keys.group_launch(group, launch), Target.VERSION, Relation.EQUAL, 1)

    def _record(self, launch: str, generation: int) -> bytes:
        return encode(Generation(generation=generation, launch=launch, owner=self._node, at=now_text()))

    async def claim_launch(self, spec: GroupSpec, above: int, lease: int) -> Registration | Refused:
        """A new launch under the next generation; records of older launches are removed. Raises StoreError."""
        group, keys = spec.name, self._keys
        key = keys.group_generation(group)
        before = await self._store.txn([], [Get(key), Get(f"{keys.group(group)}launches/", prefix=True)])
        kv = _first(before, 0)
        current = decode(Generation, kv.value).generation if kv else 0
        generation = 1 + max(current, above)
        launch = launch_id(group, self._entropy(5))
        record = LaunchRecord(launch=launch, group=group, node=self._node, tp=spec.tp, started_at=now_text())
        ops: list[Op] = [Delete(old.key) for old in (before.gets[1] if len(before.gets) > 1 else ())]
        # an endpoint of an earlier life may still hang on that life's lease
        ops += [Delete(keys.endpoint(group)), Delete(keys.secret(group))]
        ops += [Put(key, self._record(launch, generation)), Put(keys.group_launch(group, launch), encode(record))]
        compares = [Compare.unchanged(key, kv.mod_revision if kv else 0), self._held(lease)]
        done = await self._store.txn(compares, ops, [Get(key)], timeout=TXN_TIMEOUT)
        if done.succeeded:
            self._known[group] = Registration(launch, generation, done.revision, current)
            self._launches[group] = record
            return self._known[group]
        now = _first(done, 0)
        if now is not None and (kv is None or now.mod_revision != kv.mod_revision):
            other = decode(Generation, now.value)
            return Refused(f"generation {other.generation} was taken by {other.owner} for {other.launch}")
        raise StoreUnavailable("the node's lease key is not ours at this moment")

    async def claim_generation(self, group: str, launch: str, above: int, lease: int) -> Registration | Refused:
        """The next generation of the launch that runs (R7). Raises StoreError."""
        key = self._keys.group_generation(group)
        kv = await self._store.get(key)
        current = decode(Generation, kv.value) if kv else None
        if kv is None or current is None or current.launch != launch:
            return Refused(f"the registered launch is {current.launch if current else 'none'}")
        generation = 1 + max(current.generation, above)
        done = await self._store.txn(
            [Compare.unchanged(key, kv.mod_revision), *self._alive(group, launch), self._held(lease)],
            [Put(key, self._record(launch, generation))],
            self._look(group, launch),
            timeout=TXN_TIMEOUT,
        )
        if done.succeeded:
            self._known[group] = Registration(launch, generation, done.revision)
            return self._known[group]
        return self._why_not(done, launch, current.generation)

    def _alive(self, group: str, launch: str) -> list[Compare]:
        return [self._unended(group, launch), Compare.absent(self._keys.fault(group, launch))]

    def _look(self, group: str, launch: str) -> list[Op]:
        keys = self._keys
        return [
            Get(keys.group_generation(group)),
            Get(keys.group_launch(group, launch)),
            Get(keys.fault(group, launch)),
        ]

    def _why_not(self, done: TxnResult, launch: str, generation: int) -> Refused:
        """The reason in the read-back, where it is a definite one. Raises StoreUnavailable otherwise."""
        registered, record, fault = (_first(done, i) for i in range(3))
        if fault is not None:
            return Refused("there is a fault notice for this launch")
        if record is None or record.version != 1:
            return Refused("the launch's record is ended or gone")
        now = decode(Generation, registered.value) if registered else None
        if now is None or now.launch != launch:
            return Refused(f"the registered launch is {now.launch if now else 'none'}")
        if now.generation > generation:
            # still our launch: nothing is wrong with it, the caller only has to ask with the generation of now
            raise StoreUnavailable(f"generation {now.generation} of {launch} was claimed meanwhile")
        raise StoreUnavailable("the node's lease key is not ours at this moment")

    async def recall(self, group: str, launch: str) -> Registration | None:
        """What an earlier life of ours registered for this launch; None where this life knows it, or nobody did.

        Raises StoreError. A registration of another launch is left to `publish`, which refuses then.
        """
        if (known := self._known.get(group)) is not None and known.launch == launch:
            return None
        generation_key, record_key = self._keys.group_generation(group), self._keys.group_launch(group, launch)
        found = await self._store.txn([], [Get(generation_key), Get(record_key)], timeout=TXN_TIMEOUT)
        kv, begun = _first(found, 0), _first(found, 1)
        registered = decode(Generation, kv.value) if kv else None
        if kv is None or registered is None or registered.launch != launch:
            return None
        if begun is not None:
            self._launches[group] = decode(LaunchRecord, begun.value)
        self._known[group] = Registration(launch, registered.generation, kv.mod_revision)
        return self._known[group]

    async def publish(self, endpoint: EndpointRecord, secret: Secret, lease: int) -> Refused | None:
        """Write the endpoint and its key under the node's lease. Raises StoreError."""
        group, launch, keys = endpoint.group, endpoint.launch, self._keys
        known = self._known.get(group)
        if known is None or known.launch != launch:
            return Refused("this launch was not claimed by us")
        if known.generation != endpoint.generation:
            raise StoreUnavailable(f"generation {known.generation} of {launch} was claimed meanwhile")
        done = await self._store.txn(
            [
                Compare.unchanged(keys.group_generation(group), known.mod_revision),
                *self._alive(group, launch),
                self._held(lease),
            ],
            [Put(keys.endpoint(group), encode(endpoint), lease), Put(keys.secret(group), encode(secret), lease)],
            self._look(group, launch),
            timeout=TXN_TIMEOUT,
        )
        return None if done.succeeded else self._why_not(done, launch, endpoint.generation)

    async def restate(self, group: str, launch: str, state: str) -> int:
        """Let the endpoint say `state`: same generation, same lease, other fields as they are. Returns its revision.

        0 when there is no endpoint of this launch at this moment. Raises StoreError.
        """
        key = self._keys.endpoint(group)
        kv = await self._store.get(key)
        if kv is None:
            return 0
        stored = decode_stored(EndpointRecord, kv.value, kv.mod_revision)
        if stored.record.launch != launch:
            return 0
        if stored.record.state == state:
            return kv.mod_revision
        value = stored.encode(msgspec.structs.replace(stored.record, state=state))
        done = await self._store.txn(
            [Compare.unchanged(key, kv.mod_revision)], [Put(key, value, keep_lease=True)], timeout=TXN_TIMEOUT
        )
        if not done.succeeded:
            raise StoreUnavailable("the endpoint was written meanwhile")
        return done.revision

    async def write_fault(self, notice: FaultNotice) -> bool:
        """End a launch: endpoint and key out, notice in, if there is none yet. False when another launch is registered.

        Raises StoreError. When the store has no space left the deletes alone are done.
        """
        group, launch, keys = notice.group, notice.launch, self._keys
        known = self._known.get(group)
        for _ in range(4):
            if known is None or known.launch != launch or not self._begun(group, launch):
                found = await self._store.txn([], self._look(group, launch), timeout=TXN_TIMEOUT)
                kv, begun, told = (_first(found, i) for i in range(3))
                registered = decode(Generation, kv.value) if kv else None
                if kv is None or registered is None or registered.launch != launch:
                    return False
                if told is not None:
                    await self._explain(told, begun, notice)
                    return True
                if begun is not None:
                    self._launches[group] = record = decode(LaunchRecord, begun.value)
                    if record.ended_at:
                        return True  # longer ago than notices last
                known = Registration(launch, registered.generation, kv.mod_revision)
                notice = msgspec.structs.replace(notice, generation=known.generation)
            ops: list[Op] = [Delete(keys.endpoint(group)), Delete(keys.secret(group))]
            try:
                ops += await self._notice_ops(notice)
                first = [
                    Compare.unchanged(keys.group_generation(group), known.mod_revision),
                    Compare.absent(keys.fault(group, launch)),
                ]
                done = await self._store.txn(first, ops, timeout=TXN_TIMEOUT)
            except StoreFull:
                return await self._withdraw_when_full(group, launch)
            except LeaseLost:
                continue  # the reserve had run out; the next one is fresh
            if done.succeeded:
                return True
            known = None  # somebody raised the generation, or told of the fault: look who
        raise StoreUnavailable("the generation changes all the time")

    async def _explain(self, told: KeyValue, begun: KeyValue | None, notice: FaultNotice) -> None:
        """Where ranks on several hosts end each other, the first notice may be about one that only followed."""
        first, keys = decode(FaultNotice, told.value), self._keys
        if not explains(notice.reason, first.reason) or begun is None:
            return
        evidence = f"{notice.evidence}; told first by {first.by}: {first.reason}: {first.evidence}"
        better = msgspec.structs.replace(first, reason=notice.reason, evidence=evidence, by=notice.by)
        ended = msgspec.structs.replace(decode(LaunchRecord, begun.value), ended_why=notice.reason)
        key, record = keys.fault(notice.group, notice.launch), keys.group_launch(notice.group, notice.launch)
        await self._store.txn(
            [Compare.unchanged(key, told.mod_revision), Compare.unchanged(record, begun.mod_revision)],
            [Put(key, encode(better), keep_lease=True), Put(record, encode(ended))],
            timeout=TXN_TIMEOUT,
        )

    def _begun(self, group: str, launch: str) -> bool:
        """Whether we know what the owner wrote of the launch: its end keeps that."""
        return group in self._launches and self._launches[group].launch == launch

    async def _withdraw_when_full(self, group: str, launch: str) -> bool:
        """Take the endpoint out of a full database. etcd refuses every transaction over its quota, compares and all,
        but a lone delete passes; the owner alone writes this key, so looking first is guard enough."""
        for key in (self._keys.endpoint(group), self._keys.secret(group)):
            kv = await self._store.get(key)
            if kv is not None and decode(_Launched, kv.value).launch == launch:
                await self._store.txn((), (Delete(key),), timeout=TXN_TIMEOUT)
        return True

    async def _notice_ops(self, notice: FaultNotice) -> list[Op]:
        keys = self._keys
        lease = await self._spare.take()
        begun = self._launches.get(notice.group)
        if begun is None or begun.launch != notice.launch:
            begun = LaunchRecord(launch=notice.launch, group=notice.group, node=self._node)
        ended = msgspec.structs.replace(
            begun,
            ended_at=notice.at,
            ended_by=f"node/{self._node}",
            ended_why=notice.reason,
        )
        event = EventRecord(
            at=notice.at,
            kind="fault.written",
            subject=f"group/{notice.group}",
            actor=f"node/{self._node}",
            reason=notice.reason,
            fault_id=notice.fault_id,
            message=notice.evidence,
            fields={"launch": notice.launch, "generation": notice.generation},
        )
        return [
            Put(keys.fault(notice.group, notice.launch), encode(notice), lease),
            Put(keys.group_launch(notice.group, notice.launch), encode(ended)),
            # named after the fault, so that a repeated notice is still one event
            Put(keys.event("e" + notice.fault_id[1:]), encode(event), lease),
        ]
