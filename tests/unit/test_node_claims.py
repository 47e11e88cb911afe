"""The owner's transactions, over the store in memory: late, unclear and refused writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from infctl.adapters.memory_store import MemoryStore
from infctl.domain.errors import StoreFull, StoreUnavailable
from infctl.ports.store import Compare, Delete, Get, Op, TxnResult
from infctl.store.codec import decode, encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, FaultNotice, Generation, GroupSpec, LaunchRecord, NodeLease, Secret
from infctl_daemon.node.claims import Claims, Refused, Registration
from infctl_daemon.node.leases import SpareLease

KEYS = Keys("default")
SPEC = GroupSpec(name="a", pool="p", node="n1", model_path="/m", max_running=1, max_queued=1, tp=2)


class FullStore(MemoryStore):
    """Refuses what etcd 3.5 does under NOSPACE, once `full` is set: leases, and all but a lone delete or reads."""

    full = False

    async def grant(self, ttl_s: float, *, timeout: float = 5.0) -> Any:
        if self.full:
            raise StoreFull("no space")
        return await super().grant(ttl_s, timeout=timeout)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = (), *, timeout: float = 5.0
    ) -> TxnResult:
        lone_delete = len(then) == 1 and isinstance(then[0], Delete) and not compares and not orelse
        if self.full and not lone_delete and any(not isinstance(op, Get) for op in (*then, *orelse)):
            raise StoreFull("no space")
        return await super().txn(compares, then, orelse, timeout=timeout)


@dataclass
class Owner:
    store: FullStore
    claims: Claims
    lease: int

    async def claim(self, above: int = 0) -> Registration:
        got = await self.claims.claim_launch(SPEC, above, self.lease)
        assert isinstance(got, Registration)
        return got

    async def publish(self, at: Registration) -> Refused | None:
        endpoint = EndpointRecord(
            group="a",
            pool="p",
            node="n1",
            generation=at.generation,
            launch=at.launch,
            url="http://127.0.0.1:1",
            model="m",
            revision="r",
            tokenizer="",
            tokenizer_digest="",
            context_length=1,
            vocab_size=1,
            max_running=1,
            max_queued=1,
        )
        return await self.claims.publish(endpoint, Secret(launch=at.launch, api_key="k"), self.lease)

    async def fault(self, launch: str, reason: str = "process-exited") -> bool:
        notice = FaultNotice(fault_id="f1234", group="a", launch=launch, generation=0, reason=reason, at_ms=1.0)
        return await self.claims.write_fault(notice)

    async def present(self, *keys: str) -> list[bool]:
        return [await self.store.get(key) is not None for key in keys]


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    store = FullStore()
    lease = (await store.grant(60)).id
    node = NodeLease(node="n1", boot_id="b", incarnation="i")
    await store.put(KEYS.node_lease("n1"), encode(node), lease=lease)
    yield Owner(store, Claims(store, KEYS, "n1", SpareLease(store)), lease)
    await store.close()


async def test_the_generation_is_one_above_the_highest_of_store_and_state_file(owner: Owner) -> None:
    assert (await owner.claim()).generation == 1
    assert (await owner.claim(above=7)).generation == 8
    assert (await owner.claim()).generation == 9


async def test_a_new_launch_removes_the_records_and_the_endpoint_of_the_old_one(owner: Owner) -> None:
    first = await owner.claim()
    assert await owner.publish(first) is None
    second = await owner.claim()
    launches = (await owner.store.range(f"{KEYS.group('a')}launches/")).kvs
    assert [decode(LaunchRecord, kv.value).launch for kv in launches] == [second.launch]
    assert await owner.present(KEYS.endpoint("a"), KEYS.secret("a")) == [False, False]


async def test_a_late_publish_after_the_fault_is_refused(owner: Owner) -> None:
    at = await owner.claim()
    owner.store.unclear_writes = 1
    with pytest.raises(StoreUnavailable):
        await owner.publish(at)
    assert await owner.fault(at.launch)
    assert await owner.present(KEYS.endpoint("a"), KEYS.secret("a")) == [False, False]
    refused = await owner.publish(at)
    assert refused is not None and "fault notice" in refused.why
    assert await owner.present(KEYS.endpoint("a")) == [False]


async def test_a_publish_without_the_nodes_lease_key_is_not_a_refusal(owner: Owner) -> None:
    at = await owner.claim()
    owner.store.expire(owner.lease)
    owner.lease = (await owner.store.grant(60)).id
    with pytest.raises(StoreUnavailable, match="lease key"):
        await owner.publish(at)


async def test_an_older_launch_can_neither_publish_nor_write_a_fault(owner: Owner) -> None:
    old = await owner.claim()
    new = await owner.claim()
    refused = await owner.publish(old)
    assert refused is not None
    assert not await owner.fault(old.launch)
    assert await owner.publish(new) is None


async def test_a_generation_of_the_same_launch_needs_it_registered_and_without_a_fault(owner: Owner) -> None:
    at = await owner.claim()
    raised = await owner.claims.claim_generation("a", at.launch, at.generation, owner.lease)
    assert isinstance(raised, Registration)
    assert (raised.launch, raised.generation) == (at.launch, at.generation + 1)
    assert await owner.publish(raised) is None
    assert await owner.fault(at.launch)
    again = await owner.claims.claim_generation("a", at.launch, raised.generation, owner.lease)
    assert isinstance(again, Refused)


async def test_an_unclear_claim_of_a_generation_is_simply_asked_again(owner: Owner) -> None:
    at = await owner.claim()
    owner.store.unclear_writes = 1
    with pytest.raises(StoreUnavailable):
        await owner.claims.claim_generation("a", at.launch, at.generation, owner.lease)
    raised = await owner.claims.claim_generation("a", at.launch, at.generation, owner.lease)
    assert isinstance(raised, Registration)
    assert raised.generation == at.generation + 2
    assert await owner.publish(raised) is None


async def test_a_generation_raised_meanwhile_is_no_refusal_of_the_same_launch(owner: Owner) -> None:
    """A refusal would kill a launch that is healthy and still registered (R5)."""
    first = await owner.claim()
    raised = await owner.claims.claim_generation("a", first.launch, first.generation, owner.lease)
    assert isinstance(raised, Registration) and raised.generation > first.generation
    with pytest.raises(StoreUnavailable):
        await owner.publish(first)
    assert await owner.publish(raised) is None


async def test_a_fault_is_one_transaction_and_a_repeated_one_says_the_same(owner: Owner) -> None:
    at = await owner.claim()
    assert await owner.publish(at) is None
    owner.store.unclear_writes = 1
    with pytest.raises(StoreUnavailable):
        await owner.fault(at.launch)
    before = (await owner.store.range(KEYS.root)).kvs
    assert await owner.fault(at.launch)
    after = (await owner.store.range(KEYS.root)).kvs
    assert [kv.key for kv in after] == [kv.key for kv in before], "one event, one notice, however often it is tried"
    kv = await owner.store.get(KEYS.fault("a", at.launch))
    assert kv is not None and kv.lease != 0
    record = await owner.store.get(KEYS.group_launch("a", at.launch))
    assert record is not None and decode(LaunchRecord, record.value).ended_why == "process-exited"


async def test_without_space_the_dead_endpoint_still_leaves(owner: Owner) -> None:
    at = await owner.claim()
    assert await owner.publish(at) is None
    owner.store.full = True
    assert await owner.fault(at.launch)
    assert await owner.present(KEYS.endpoint("a"), KEYS.secret("a")) == [False, False]
    kv = await owner.store.get(KEYS.group_generation("a"))
    assert kv is not None and decode(Generation, kv.value).launch == at.launch


async def test_another_writer_of_the_generation_is_a_refusal(owner: Owner) -> None:
    at = await owner.claim()
    other = Claims(owner.store, KEYS, "n1", SpareLease(owner.store))
    assert isinstance(await other.claim_launch(SPEC, 0, owner.lease), Registration)
    refused = await owner.publish(at)
    assert refused is not None
    assert "gone" in refused.why, "the other claim removed the record of our launch"


async def test_an_explanation_takes_the_place_of_an_end_that_only_followed_from_it(owner: Owner) -> None:
    """A rank on another host dies of the kill, and its daemon is faster than the one that knows why."""
    at = await owner.claim()
    member = Claims(owner.store, KEYS, "n2", SpareLease(owner.store))
    crash = FaultNotice(fault_id="f1", group="a", launch=at.launch, generation=0, reason="process-exited", by="node/n2")
    assert await member.write_fault(crash)
    hang = FaultNotice(fault_id="f2", group="a", launch=at.launch, generation=1, reason="hang", evidence="silent")
    assert await owner.claims.write_fault(hang)
    kv = await owner.store.get(KEYS.fault("a", at.launch))
    assert kv is not None
    told = decode(FaultNotice, kv.value)
    assert (told.fault_id, told.reason) == ("f1", "hang") and "process-exited" in told.evidence
    record = await owner.store.get(KEYS.group_launch("a", at.launch))
    assert record is not None and decode(LaunchRecord, record.value).ended_why == "hang"
    again = FaultNotice(fault_id="f3", group="a", launch=at.launch, generation=1, reason="process-exited")
    assert await member.write_fault(again)
    kv = await owner.store.get(KEYS.fault("a", at.launch))
    assert kv is not None and decode(FaultNotice, kv.value) == told
