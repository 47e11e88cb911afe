"""Hold and shout: what the client does with a database that is not the one it knew. The members lie on command."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from infctl.adapters.etcd import EtcdStore
from infctl.adapters.etcd.messages import message
from infctl.domain.errors import LeaseLost, StoreError
from infctl.ports.store import Events, Interrupted, Put
from tests.support.fake_etcd import FakeMember, fake_member

pytestmark = pytest.mark.timeout(20)
GONE = ("NOT_FOUND", "etcdserver: requested lease not found")


@pytest.fixture
async def members(tmp_path: Any) -> Any:
    async with fake_member(tmp_path / "a") as a, fake_member(tmp_path / "b") as b:
        yield a, b


@pytest.fixture
async def store(members: Any) -> Any:
    made = EtcdStore([member.endpoint for member in members])
    yield made
    await made.close()


async def reason(call: Any) -> str:
    with pytest.raises(StoreError) as caught:
        await call
    assert not isinstance(caught.value, LeaseLost)
    return caught.value.reason


def calls(member: FakeMember) -> int:
    return sum(member.calls.values())


async def test_a_member_of_another_cluster_is_left_for_ever(members: Any, store: EtcdStore) -> None:
    a, b = members
    await store.get("k")
    a.cluster_id = 78
    assert await reason(store.get("k")) == "StoreReplaced"
    asked = calls(a)
    b.answer = lambda rpc, request: ("UNAVAILABLE", "etcdserver: no leader")
    assert await reason(store.put("k", b"")) == "StoreUnavailable"
    b.answer = b.plain
    await store.put("k", b"")
    assert calls(a) == asked and store.endpoint == b.endpoint and not store.held


async def test_when_every_member_is_of_another_cluster_nothing_is_served_any_more(
    members: Any, store: EtcdStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.get("k")
    for member in members:
        member.cluster_id = 78
    assert [await reason(store.get("k")) for _ in members] == ["StoreReplaced"] * 2
    asked = [calls(member) for member in members]
    for member in members:
        member.cluster_id = 77  # too late: somebody has to look first
    for call in (store.get("k"), store.put("k", b""), store.grant(5), store.keep_alive(1), store.revoke(1)):
        assert await reason(call) == "StoreReplaced"
    assert [calls(member) for member in members] == asked
    assert [r.levelno for r in caplog.records if "serves cluster" in r.message] == [logging.ERROR] * 3


@pytest.mark.parametrize("write", [False, True])
async def test_a_fallen_revision_holds_also_when_the_new_database_has_overtaken_the_old(
    members: Any, store: EtcdStore, write: bool
) -> None:
    await store.get("k")
    for member in members:
        member.revision = 4
    assert await reason(store.put("k", b"") if write else store.get("k")) == "StoreReplaced"
    for member in members:
        member.revision = 1000
    asked = [calls(member) for member in members]
    for call in (store.get("k"), store.range("k"), store.txn((), (Put("k", b""),)), store.grant(5), store.status()):
        assert await reason(call) == "StoreReplaced"
    assert [calls(member) for member in members] == asked and store.held


async def test_one_member_that_reads_old_state_is_left_and_holds_nothing(members: Any, store: EtcdStore) -> None:
    """Old servers do that after a pause; the others are at the revision that was seen."""
    await store.get("k")
    members[0].revision = 4
    assert (await store.range("k")).revision == 5
    assert store.endpoint == members[1].endpoint and not store.held


async def test_a_revision_seen_by_a_watch_counts_too(members: Any, store: EtcdStore) -> None:
    a, _ = members
    a.revision = 9
    a.answer = lambda rpc, request: (
        a.plain(rpc, request)
        if rpc != "Watch"
        else message("WatchResponse")(header=a.header(), created=request.HasField("create"), watch_id=0)
    )
    watch = store.watch("p/", start_revision=0)
    async with asyncio.timeout(5):
        await anext(watch)
    for member in members:
        member.revision = 8
    assert await reason(store.put("k", b"")) == "StoreReplaced"
    await watch.aclose()


async def test_a_lease_that_a_replaced_database_does_not_know_is_not_lost(members: Any, store: EtcdStore) -> None:
    await store.get("k")
    for member in members:
        member.answer = lambda rpc, request, m=member: GONE if rpc == "Put" else m.plain(rpc, request)
    with pytest.raises(LeaseLost):
        await store.put("k", b"", lease=7)
    for member in members:
        member.revision = 4
    assert await reason(store.keep_alive(7)) == "StoreUnavailable", "ttl 0 by a member that may only lag"
    assert await reason(store.put("k", b"", lease=7)) == "StoreReplaced"
    assert await reason(store.keep_alive(7)) == "StoreReplaced"


async def test_a_grant_by_a_replaced_database_is_refused(members: Any, store: EtcdStore) -> None:
    await store.get("k")
    for member in members:
        member.revision = 4
        member.answer = lambda rpc, request, m=member: message("LeaseGrantResponse")(header=m.header(), id=1, ttl=5)
    assert await reason(store.grant(5)) == "StoreReplaced"


async def test_a_watch_does_not_resume_in_another_history(members: Any, store: EtcdStore) -> None:
    """The revision has grown past the last event, but what happened at it is something else: restored, overtaken."""
    a, b = members
    kv, event = message("KeyValue"), message("Event")
    there = [kv(key=b"p/k", mod_revision=6)]
    streams = 0

    def answer(rpc: str, request: Any) -> Any:
        nonlocal streams
        if rpc == "Range":
            return message("RangeResponse")(header=a.header(), kvs=there)
        if not request.HasField("create"):
            return ("UNAVAILABLE", "gone")
        streams += 1
        mod = 5 + streams
        return message("WatchResponse")(header=a.header(), events=[event(kv=kv(key=b"p/k", mod_revision=mod))])

    for member in members:
        member.revision, member.answer = 100, answer
    watch = store.watch("p/", start_revision=6)
    async with asyncio.timeout(10):
        first = await anext(watch)
        assert isinstance(first, Events) and isinstance(await anext(watch), Interrupted)
        assert isinstance(await anext(watch), Events) and streams == 2, "the same history: it goes on"
        assert isinstance(await anext(watch), Interrupted)
    await asyncio.sleep(1.0)
    assert store.held and streams == 2, "revision 7 was another change there"
    asked = calls(a) + calls(b)
    await asyncio.sleep(1.0)
    assert calls(a) + calls(b) == asked, "nothing polls what is held"
    await watch.aclose()
