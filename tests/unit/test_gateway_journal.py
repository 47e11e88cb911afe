"""The journal writes the newest value of each key, in batches, and loses nothing while the store is away."""

import asyncio
import contextlib

from infctl.adapters.memory_store import MemoryStore
from infctl_daemon.gateway import journal as module
from infctl_daemon.gateway.journal import Journal
from tests.support.witness import until


class Counting(MemoryStore):
    """Counts transactions and how many puts each had."""

    def __init__(self):
        super().__init__()
        self.sizes: list[int] = []

    async def txn(self, compares, then, orelse=(), *, timeout=5.0):
        self.sizes.append(len(then))
        return await super().txn(compares, then, orelse, timeout=timeout)


@contextlib.asynccontextmanager
async def running(store):
    journal = Journal(store)
    task = asyncio.create_task(journal.run())
    try:
        yield journal
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_values_of_one_moment_go_in_one_transaction():
    store = Counting()
    lease = await store.grant(60)
    async with running(store) as journal:
        for i in range(50):
            journal.put(f"/k{i}", b"v", lambda: lease.id)
        await until(lambda: journal.lag == 0, 2, "everything written")
    assert store.sizes == [50]
    assert (await store.get("/k7")).lease == lease.id


async def test_no_transaction_is_larger_than_the_bound():
    store = Counting()
    lease = await store.grant(60)
    async with running(store) as journal:
        for i in range(350):
            journal.put(f"/k{i}", b"v", lambda: lease.id)
        await until(lambda: journal.lag == 0, 2, "everything written")
    assert max(store.sizes) <= module.BATCH and sum(store.sizes) == 350


async def test_only_the_newest_value_of_a_key_is_written():
    store = Counting()
    lease = await store.grant(60)
    async with running(store) as journal:
        for i in range(20):
            journal.put("/k", str(i).encode(), lambda: lease.id)
        await until(lambda: journal.lag == 0, 2, "everything written")
    assert (await store.get("/k")).value == b"19" and store.sizes == [1]


async def test_while_the_store_is_away_values_wait_and_then_go_out():
    store = Counting()
    lease = await store.grant(60)
    store.unavailable = True
    async with running(store) as journal:
        journal.put("/k", b"1", lambda: lease.id)
        await until(lambda: not journal.available, 2, "it noticed")
        journal.put("/k", b"2", lambda: lease.id)
        assert journal.lag == 1
        store.unavailable = False
        await until(lambda: journal.lag == 0, 3, "everything written")
    assert journal.available and (await store.get("/k")).value == b"2"


async def test_a_value_without_a_lease_waits_and_does_not_hold_up_others():
    store = Counting()
    lease = await store.grant(60)
    late = [0]
    async with running(store) as journal:
        journal.put("/late", b"1", lambda: late[0])
        journal.put("/now", b"1", lambda: lease.id)
        await until(lambda: journal.written == 1, 2, "the one with a lease is written")
        assert await store.get("/late") is None
        late[0] = lease.id
        await until(lambda: journal.lag == 0, 2, "the other follows")


async def test_a_lease_that_is_gone_costs_no_value():
    store = Counting()
    old, new = await store.grant(60), await store.grant(60)
    current = [old.id]
    await store.revoke(old.id)
    async with running(store) as journal:
        journal.put("/k", b"1", lambda: current[0])
        await asyncio.sleep(0.2)
        assert journal.lag == 1
        current[0] = new.id
        await until(lambda: journal.lag == 0, 3, "written under the new lease")
    assert (await store.get("/k")).lease == new.id


async def test_the_queue_is_bounded_and_counts_what_it_drops(monkeypatch):
    monkeypatch.setattr(module, "BOUND", 10)
    journal = Journal(Counting())
    for i in range(15):
        journal.put(f"/k{i}", b"v", lambda: 0)
    assert journal.lag == 10 and journal.dropped == 5
