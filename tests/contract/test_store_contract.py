"""The contract of `infctl.ports.store`, run on every implementation: what passes here may be relied upon.

Keys, transactions and leases; watches are in `test_store_watches.py`.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from infctl.domain.errors import Compacted, LeaseLost, StoreError, StoreUnavailable
from infctl.ports.store import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    Relation,
    Target,
    TxnResult,
)
from tests.contract.conftest import Backend
from tests.support.etcd import Reader

pytestmark = pytest.mark.timeout(60)


async def test_an_absent_key_is_none_even_where_later_keys_exist(backend: Backend) -> None:
    await backend.store.put(backend.key("z"), b"1")
    assert await backend.store.get(backend.key("a")) is None


async def test_a_put_raises_the_revision_and_the_version_and_keeps_the_creation(backend: Backend) -> None:
    key = backend.key("k")
    first = await backend.store.put(key, b"1")
    second = await backend.store.put(key, b"")
    assert second == first + 1
    assert await backend.store.get(key) == KeyValue(key, b"", first, second, 2)


async def test_a_key_that_was_deleted_starts_anew(backend: Backend) -> None:
    key = backend.key("k")
    await backend.store.put(key, b"1")
    await backend.store.txn((), (Delete(key),))
    again = await backend.store.put(key, b"2")
    assert await backend.store.get(key) == KeyValue(key, b"2", again, again, 1)


async def test_a_range_is_sorted_and_ends_with_its_prefix(backend: Backend) -> None:
    for name in ("a/2", "a/10", "a0", "a", "b/1", "a/ü"):
        await backend.store.put(backend.key(name), name.encode())
    found = await backend.store.range(backend.key("a/"))
    assert [kv.value.decode() for kv in found.kvs] == ["a/10", "a/2", "a/ü"]
    assert found.revision == (await backend.store.get(backend.key("a/ü"))).mod_revision and not found.more


async def test_a_limited_range_says_that_there_is_more(backend: Backend) -> None:
    for name in "abc":
        await backend.store.put(backend.key(name), b"v")
    cut = await backend.store.range(backend.prefix, limit=2, keys_only=True)
    assert [(kv.key[-1], kv.value) for kv in cut.kvs] == [("a", b""), ("b", b"")] and cut.more
    assert not (await backend.store.range(backend.prefix, limit=3)).more


async def test_a_range_at_an_old_revision_shows_what_was_there(backend: Backend) -> None:
    a, b = backend.key("a"), backend.key("b")
    before = await backend.store.put(a, b"old")
    await backend.store.txn((), (Put(a, b"new"), Put(b, b"1")))
    old = await backend.store.range(backend.prefix, revision=before)
    assert [(kv.key, kv.value) for kv in old.kvs] == [(a, b"old")] and old.revision == before


async def test_a_compacted_revision_is_definite_and_a_future_one_is_not(backend: Backend) -> None:
    key = backend.key("k")
    old = await backend.store.put(key, b"1")
    new = await backend.store.put(key, b"2")
    await backend.store.compact(new)
    with pytest.raises(Compacted):
        await backend.store.range(key, revision=old)
    with pytest.raises(Compacted):
        await backend.store.compact(new)
    assert (await backend.store.range(key, revision=new)).kvs[0].value == b"2"
    with pytest.raises(StoreUnavailable):
        await backend.store.range(key, revision=new + 1000, timeout=0.5)


async def test_a_transaction_is_one_revision_and_its_gets_see_its_puts(backend: Backend) -> None:
    a, b, c = backend.key("a"), backend.key("b"), backend.key("c")
    await backend.store.put(c, b"gone")
    result = await backend.store.txn(
        (Compare.absent(a), Compare.present(c)),
        (Put(a, b"1"), Put(b, b"2"), Delete(c), Get(backend.prefix, prefix=True), Get(c), Get(b)),
        (Get(a),),
    )
    assert result.succeeded and result.deleted == 1
    assert [[kv.value for kv in found] for found in result.gets] == [[b"1", b"2"], [], [b"2"]]
    assert {kv.mod_revision for kv in result.gets[0]} == {result.revision}


async def test_a_refused_compare_runs_the_other_branch_and_leaves_the_revision(backend: Backend) -> None:
    key = backend.key("k")
    revision = await backend.store.put(key, b"theirs")
    result = await backend.store.txn((Compare.unchanged(key, revision - 1),), (Put(key, b"mine"),), (Get(key),))
    assert not result.succeeded and result.revision == revision
    assert result.gets[0][0].value == b"theirs"


async def test_deleting_nothing_is_no_revision(backend: Backend) -> None:
    revision = await backend.store.put(backend.key("k"), b"")
    result = await backend.store.txn((), (Delete(backend.key("no")), Delete(backend.key("no/"), prefix=True)))
    assert (result.deleted, result.revision) == (0, revision)


async def test_a_single_delete_tells_how_many_keys_went(backend: Backend) -> None:
    for name in ("a", "b/1", "b/2", "c"):
        await backend.store.put(backend.key(name), b"")
    before = (await backend.store.status()).revision
    one = await backend.store.txn((), (Delete(backend.key("a")),))
    two = await backend.store.txn((), (Delete(backend.key("b/"), prefix=True),), (Put(backend.key("never"), b""),))
    assert [(r.succeeded, r.deleted, r.revision - before, r.gets) for r in (one, two)] == [
        (True, 1, 1, ()),
        (True, 2, 2, ()),
    ]
    assert [kv.key for kv in (await backend.store.range(backend.prefix)).kvs] == [backend.key("c")]


async def test_only_one_of_many_swaps_of_the_same_revision_wins(backend: Backend) -> None:
    key = backend.key("counter")
    await backend.store.put(key, b"0")

    async def add_one() -> None:
        while True:
            kv = await backend.store.get(key)
            new = str(int(kv.value) + 1).encode()
            if (await backend.store.txn((Compare.unchanged(key, kv.mod_revision),), (Put(key, new),))).succeeded:
                return

    async with asyncio.timeout(20):
        await asyncio.gather(*(add_one() for _ in range(20)))
    assert (await backend.store.get(key)).value == b"20"


_ABSENT = {Target.VALUE: b"", Target.MOD: 0, Target.CREATE: 0, Target.VERSION: 0, Target.LEASE: 0}


@pytest.mark.parametrize("target", Target)
async def test_an_absent_key_compares_as_zero_and_as_no_value_at_all(backend: Backend, target: Target) -> None:
    key = backend.key("absent")
    await backend.store.put(backend.key("later"), b"x")

    async def holds(relation: Relation, operand: int | bytes, prefix: bool = False) -> bool:
        result: TxnResult = await backend.store.txn((Compare(key, target, relation, operand, prefix),), ())
        return result.succeeded

    for prefix in (False, True):
        for relation in Relation:
            expected = target is not Target.VALUE and relation is Relation.EQUAL
            assert await holds(relation, _ABSENT[target], prefix) is expected
        if target is not Target.VALUE:
            assert await holds(Relation.LESS, 1, prefix)
            assert not await holds(Relation.GREATER, 1, prefix)


async def test_a_prefix_compare_must_hold_for_every_key(backend: Backend) -> None:
    first = await backend.store.put(backend.key("p/1"), b"")
    nothing_new = Compare(backend.key("p/"), Target.MOD, Relation.LESS, first + 1, prefix=True)
    nobody = Compare(backend.key("p/"), Target.CREATE, Relation.EQUAL, 0, prefix=True)
    assert (await backend.store.txn((nothing_new,), ())).succeeded
    assert not (await backend.store.txn((nobody,), ())).succeeded
    await backend.store.put(backend.key("p/2"), b"")
    assert not (await backend.store.txn((nothing_new,), ())).succeeded


@pytest.mark.parametrize(
    "then",
    [
        pytest.param([Put(str(i), b"") for i in range(129)], id="129-ops"),
        pytest.param([Put("x", b""), Put("x", b"")], id="a-key-put-twice"),
        pytest.param([Put("x", b""), Delete("x")], id="put-and-deleted"),
        pytest.param([Delete("x"), Put("xy", b""), Delete("x", prefix=True)], id="put-below-a-deleted-prefix"),
        pytest.param([Put("no/such/key", b"", keep_lease=True)], id="keeps-the-lease-of-an-absent-key"),
        pytest.param([Put("", b"")], id="no-key"),
        pytest.param([Put("x", b"." * 1_600_000)], id="too-large"),
    ],
)
async def test_a_request_that_can_never_work_is_not_an_outage(backend: Backend, then: list[Op]) -> None:
    with pytest.raises(StoreError) as caught:
        await backend.store.txn((), then)
    assert not isinstance(caught.value, StoreUnavailable) and caught.value.reason == "InvalidRequest"


async def test_128_operations_in_each_list_are_allowed(backend: Backend) -> None:
    keys = [backend.key(f"{i:03}") for i in range(128)]
    result = await backend.store.txn(
        [Compare.absent(key) for key in keys], [Put(key, b"") for key in keys], [Get(key) for key in keys]
    )
    assert result.succeeded and len((await backend.store.range(backend.prefix)).kvs) == 128


async def test_a_lease_that_does_not_exist_is_lost_for_sure(backend: Backend) -> None:
    key = backend.key("k")
    with pytest.raises(LeaseLost):
        await backend.store.put(key, b"", lease=0x5EAD)
    with pytest.raises(LeaseLost):
        await backend.store.txn((), (Put(backend.key("other"), b""), Put(key, b"", lease=0x5EAD)))
    with pytest.raises(LeaseLost):
        await backend.store.keep_alive(0x5EAD)
    with pytest.raises(LeaseLost):
        await backend.store.time_to_live(0x5EAD)
    await backend.store.revoke(0x5EAD)
    assert (await backend.store.range(backend.prefix)).kvs == ()


async def test_revoking_a_lease_deletes_its_keys_in_one_revision(backend: Backend) -> None:
    lease = await backend.grant(30)
    for name in "ab":
        await backend.store.put(backend.key(name), b"", lease=lease.id)
    reader = Reader(backend.store.watch(backend.prefix, start_revision=0))
    await reader.until_alive()
    await backend.store.revoke(lease.id)
    await reader.until(lambda r: len(r.events) == 2)
    assert {e.key for e in reader.events} == {backend.key("a"), backend.key("b")}
    assert all(e.is_delete for e in reader.events) and len({e.mod_revision for e in reader.events}) == 1
    with pytest.raises(LeaseLost):
        await backend.store.keep_alive(lease.id)
    await reader.close()


async def test_a_lease_nobody_renews_expires_and_one_that_is_renewed_does_not(backend: Backend) -> None:
    short, kept = await backend.grant(1), await backend.grant(1)
    await backend.store.put(backend.key("short"), b"", lease=short.id)
    await backend.store.put(backend.key("kept"), b"", lease=kept.id)
    reader = Reader(backend.store.watch(backend.prefix, start_revision=0))
    started = time.monotonic()
    while not reader.events and time.monotonic() - started < 8:
        assert await backend.store.keep_alive(kept.id) == kept.ttl_s
        await asyncio.sleep(0.2)
    assert [(e.key, e.is_delete) for e in reader.events] == [(backend.key("short"), True)]
    assert time.monotonic() - started >= 0.9 * short.ttl_s
    with pytest.raises(LeaseLost):
        await backend.store.keep_alive(short.id)
    assert (await backend.store.get(backend.key("kept"))).lease == kept.id
    await reader.close()


async def test_a_put_moves_a_key_off_its_lease_unless_it_keeps_it(backend: Backend) -> None:
    key = backend.key("k")
    lease = await backend.grant(30)
    await backend.store.put(key, b"1", lease=lease.id)
    held = Compare.held_by(key, lease.id)
    assert (await backend.store.txn((held,), (Put(key, b"2", keep_lease=True),))).succeeded
    assert (await backend.store.get(key)).lease == lease.id
    await backend.store.put(key, b"3")
    assert not (await backend.store.txn((held,), ())).succeeded
    await backend.store.revoke(lease.id)
    assert (await backend.store.get(key)).value == b"3"


async def test_the_status_names_a_leader_and_the_revision(backend: Backend) -> None:
    revision = await backend.store.put(backend.key("k"), b"")
    status = await backend.store.status()
    assert status.leader and status.cluster_id and status.version and status.revision == revision
