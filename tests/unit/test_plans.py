"""A launch over several hosts in the store: its plan, and its end by whichever host is first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec
import pytest

from infctl.adapters.memory_store import MemoryStore
from infctl.domain.errors import StoreUnavailable
from infctl.ports.store import Compare, Delete, Op, Put, TxnResult
from infctl.store.codec import decode, encode
from infctl.store.keys import Keys
from infctl.store.records import (
    EndpointRecord,
    FaultNotice,
    GroupSpec,
    Host,
    LaunchPlan,
    LaunchRecord,
    NodeLease,
    Secret,
)
from infctl_daemon.node import plans
from infctl_daemon.node.claims import Claims, Refused, Registration
from infctl_daemon.node.leases import SpareLease

KEYS = Keys("default")
SPEC = GroupSpec(
    name="g", pool="p", node="a", hosts=[Host(node="a"), Host(node="b")], model_path="/m", max_running=1,
    max_queued=1, tp=2,
)  # fmt: skip


class MeddledStore(MemoryStore):
    """Lets something happen between what is read and the write of a plan."""

    meddle: list[tuple[str, bytes]]

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = (), *, timeout: float = 5.0
    ) -> TxnResult:
        if any(isinstance(op, Put) and op.key.endswith("/plan") for op in then) and getattr(self, "meddle", None):
            key, value = self.meddle.pop(0)
            await super().txn([], [Put(key, value)])
        return await super().txn(compares, then, orelse, timeout=timeout)


@dataclass
class Launched:
    """A launch that node `a` claimed, with a member on `b`."""

    store: MeddledStore
    owner: Claims
    member: Claims
    at: Registration
    lease: int

    @property
    def launch(self) -> str:
        return self.at.launch

    def plan(self, launch: str = "", at: str = "") -> LaunchPlan:
        return LaunchPlan(
            launch=launch or self.launch, group="g", owner="a", spec=SPEC, served_model="m", revision="r",
            leader="10.0.0.1", rendezvous=1, url="http://10.0.0.1:1", at=at,
        )  # fmt: skip

    def notice(self, fault_id: str, by: str, reason: str = "process-exited") -> FaultNotice:
        return FaultNotice(
            fault_id=fault_id, group="g", launch=self.launch, generation=0, reason=reason, evidence=by, by=by,
            at="2030-01-01T00:00:00Z", at_ms=1.0,
        )  # fmt: skip

    async def planned(self) -> LaunchPlan | None:
        kv = await self.store.get(KEYS.launch_plan("g", self.launch))
        return decode(LaunchPlan, kv.value) if kv else None

    async def told(self) -> FaultNotice | None:
        kv = await self.store.get(KEYS.fault("g", self.launch))
        return decode(FaultNotice, kv.value) if kv else None

    async def record(self) -> LaunchRecord:
        kv = await self.store.get(KEYS.group_launch("g", self.launch))
        assert kv is not None
        return decode(LaunchRecord, kv.value)

    async def publish(self) -> None:
        endpoint = EndpointRecord(
            group="g", pool="p", node="a", generation=self.at.generation, launch=self.launch, url="http://10.0.0.1:1",
            model="m", revision="r", tokenizer="", tokenizer_digest="", context_length=1, vocab_size=1, max_running=1,
            max_queued=1,
        )  # fmt: skip
        assert await self.owner.publish(endpoint, Secret(launch=self.launch, api_key="k"), self.lease) is None

    async def events(self) -> int:
        return len((await self.store.range(f"{KEYS.root}events/")).kvs)


@pytest.fixture
async def launched() -> AsyncIterator[Launched]:
    store = MeddledStore()
    lease = (await store.grant(60)).id
    await store.put(KEYS.node_lease("a"), encode(NodeLease(node="a", boot_id="b", incarnation="i")), lease=lease)
    owner, member = (Claims(store, KEYS, node, SpareLease(store)) for node in ("a", "b"))
    at = await owner.claim_launch(SPEC, 0, lease)
    assert isinstance(at, Registration)
    yield Launched(store, owner, member, at, lease)
    await store.close()


async def write(launched: Launched, plan: LaunchPlan) -> Refused | None:
    return await plans.write(launched.store, KEYS, plan)


async def test_a_plan_is_written_once_and_stays_as_it_is(launched: Launched) -> None:
    assert await write(launched, launched.plan(at="first")) is None
    assert await write(launched, launched.plan(at="second")) is None
    assert await launched.planned() == launched.plan(at="first")


async def test_a_plan_whose_answer_was_lost_is_found_there(launched: Launched) -> None:
    launched.store.unclear_writes = 1
    with pytest.raises(StoreUnavailable):
        await write(launched, launched.plan(at="first"))
    assert await write(launched, launched.plan(at="second")) is None
    assert await launched.planned() == launched.plan(at="first")


async def test_a_launch_that_is_not_the_registered_one_gets_no_plan(launched: Launched) -> None:
    refused = await write(launched, launched.plan("g-bbbbbbbb"))
    assert refused is not None and launched.launch in refused.why
    assert await launched.store.get(KEYS.launch_plan("g", "g-bbbbbbbb")) is None


async def test_a_launch_that_is_over_gets_no_plan(launched: Launched) -> None:
    assert await launched.member.write_fault(launched.notice("f1", "node/b"))
    refused = await write(launched, launched.plan())
    assert refused is not None and "fault notice" in refused.why
    assert await launched.planned() is None


async def test_a_notice_between_the_look_and_the_write_refuses_the_plan(launched: Launched) -> None:
    launched.store.meddle = [(KEYS.fault("g", launched.launch), encode(launched.notice("f1", "node/b")))]
    refused = await write(launched, launched.plan())
    assert refused is not None and "fault notice" in refused.why
    assert await launched.planned() is None


async def test_a_launch_that_ended_longer_ago_than_notices_last_gets_no_plan(launched: Launched) -> None:
    assert await launched.member.write_fault(launched.notice("f1", "node/b"))
    await launched.store.txn([], [Delete(KEYS.fault("g", launched.launch))])
    assert await write(launched, launched.plan()) is not None
    assert await launched.planned() is None


async def test_a_generation_that_is_raised_meanwhile_is_looked_at_again(launched: Launched) -> None:
    key = KEYS.group_generation("g")
    kv = await launched.store.get(key)
    assert kv is not None
    launched.store.meddle = [(key, kv.value)]
    assert await write(launched, launched.plan()) is None
    assert await launched.planned() is not None


async def test_of_two_writers_the_first_notice_stays_and_both_are_told_that_it_is_there(launched: Launched) -> None:
    await launched.publish()
    assert await launched.member.write_fault(launched.notice("f1", "node/b", "host-lost"))
    assert await launched.owner.write_fault(launched.notice("f2", "node/a"))
    told = await launched.told()
    assert told is not None and (told.fault_id, told.by, told.generation) == ("f1", "node/b", launched.at.generation)
    for key in (KEYS.endpoint("g"), KEYS.secret("g")):
        assert await launched.store.get(key) is None
    assert await launched.events() == 1


async def test_the_owner_first_and_a_member_after_it(launched: Launched) -> None:
    await launched.publish()
    assert await launched.owner.write_fault(launched.notice("f1", "node/a"))
    assert await launched.member.write_fault(launched.notice("f2", "node/b", "host-lost"))
    told = await launched.told()
    assert told is not None and told.fault_id == "f1"
    assert (await launched.record()).ended_why == "process-exited"
    assert await launched.events() == 1


async def test_the_record_that_a_member_ends_keeps_what_its_owner_wrote(launched: Launched) -> None:
    begun = await launched.record()
    assert await launched.member.write_fault(launched.notice("f1", "node/b"))
    ended = await launched.record()
    assert (ended.node, ended.started_at, ended.tp) == ("a", begun.started_at, 2) and begun.started_at
    assert (ended.ended_by, ended.ended_why) == ("node/b", "process-exited")


async def test_the_record_that_a_later_life_of_the_owner_ends_keeps_what_the_earlier_one_wrote(
    launched: Launched,
) -> None:
    begun = await launched.record()
    later = Claims(launched.store, KEYS, "a", SpareLease(launched.store))
    raised = await later.claim_generation("g", launched.launch, launched.at.generation, launched.lease)
    assert isinstance(raised, Registration)
    assert await later.write_fault(launched.notice("f1", "node/a"))
    ended = await launched.record()
    assert (ended.started_at, ended.tp) == (begun.started_at, 2)


async def test_a_notice_that_has_ended_is_not_written_anew(launched: Launched) -> None:
    """A host that was cut off for longer than notices last comes back with its own word for an old end."""
    assert await launched.owner.write_fault(launched.notice("f1", "node/a"))
    await launched.store.txn([], [Delete(KEYS.fault("g", launched.launch))])
    assert await launched.member.write_fault(launched.notice("f2", "node/b", "host-lost"))
    assert await launched.told() is None
    record = await launched.record()
    assert (record.ended_by, record.ended_why) == ("node/a", "process-exited")
    assert await launched.events() == 1


async def test_a_member_whose_launch_was_replaced_has_nothing_to_tell(launched: Launched) -> None:
    assert isinstance(await launched.owner.claim_launch(SPEC, 0, launched.lease), Registration)
    assert not await launched.member.write_fault(launched.notice("f1", "node/b"))
    assert await launched.told() is None


async def test_a_members_notice_while_the_owner_raises_the_generation_is_written(launched: Launched) -> None:
    raised = await launched.owner.claim_generation("g", launched.launch, 1, launched.lease)
    assert isinstance(raised, Registration)
    assert await launched.member.write_fault(launched.notice("f1", "node/b"))
    told = await launched.told()
    assert told is not None and told.generation == raised.generation


async def test_a_members_notice_without_an_answer_is_repeated_as_the_same(launched: Launched) -> None:
    notice = launched.notice("f1", "node/b")
    reads_first = 1
    launched.store.unclear_writes = 0
    real, done = launched.store.txn, []

    async def unclear(*args: object, **words: object) -> TxnResult:
        result = await real(*args, **words)  # type: ignore[arg-type]
        done.append(result)
        if len(done) == reads_first + 1:
            raise StoreUnavailable("applied, but the answer was lost")
        return result

    launched.store.txn = unclear  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await launched.member.write_fault(notice)
    assert await launched.member.write_fault(msgspec.structs.replace(notice, at_ms=2.0))
    told = await launched.told()
    assert told is not None and told.at_ms == 1.0
    assert await launched.events() == 1
