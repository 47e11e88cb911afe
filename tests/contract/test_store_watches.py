"""The contract of watches, and of being cut off, on every implementation of the store port."""

from __future__ import annotations

import asyncio
import time

import pytest

from infctl.domain.errors import StoreUnavailable
from infctl.ports.store import (
    Alive,
    Delete,
    Events,
    Interrupted,
    Put,
    Relist,
)
from tests.contract.conftest import Backend
from tests.support.etcd import Reader, within

pytestmark = pytest.mark.timeout(60)


async def test_a_watch_delivers_from_its_start_revision_once_and_in_order(backend: Backend) -> None:
    a, b = backend.key("a"), backend.key("b")
    await backend.store.put(a, b"before")
    start = await backend.store.put(a, b"1")
    reader = Reader(backend.store.watch(backend.prefix, start_revision=start))
    await reader.until_keys(a)
    lease = await backend.grant(30)
    await backend.store.put(backend.prefix[:-1] + "0other", b"not ours")
    both = (await backend.store.txn((), (Put(b, b"2", lease=lease.id), Delete(a)))).revision
    await reader.until_keys(b, a)
    got = [(e.key, e.value, e.mod_revision, e.create_revision, e.lease) for e in reader.events]
    assert got == [
        (a, b"1", start, start - 1, 0),
        (b, b"2", both, both, lease.id),
        (a, None, both, 0, 0),
    ]
    assert [i.revision for i in reader.items if isinstance(i, Events)] == [start, both]
    await reader.close()


async def test_a_watch_from_zero_starts_now(backend: Backend) -> None:
    await backend.store.put(backend.key("old"), b"")
    reader = Reader(backend.store.watch(backend.prefix, start_revision=0))
    await reader.until_alive()
    await backend.store.put(backend.key("new"), b"")
    await reader.until_keys(backend.key("new"))
    assert len(reader.events) == 1
    await reader.close()


async def test_a_watch_may_start_in_the_future(backend: Backend) -> None:
    now = await backend.store.put(backend.key("k"), b"0")
    reader = Reader(backend.store.watch(backend.prefix, start_revision=now + 3))
    await asyncio.sleep(0.3)
    for value in (b"1", b"2", b"3", b"4"):
        await backend.store.put(backend.key("k"), value)
    await reader.until(lambda r: len(r.events) >= 2)
    assert [e.value for e in reader.events] == [b"3", b"4"]
    await reader.close()


@pytest.mark.parametrize("behind", [0, 3])
async def test_a_watch_behind_a_compaction_gets_one_relist_and_then_events(backend: Backend, behind: int) -> None:
    gone, kept = backend.key("gone"), backend.key("kept")
    await backend.store.put(gone, b"1")
    await backend.store.put(kept, b"1")
    for n in range(4):
        await backend.store.put(kept, str(n).encode())
    compacted = (await backend.store.txn((), (Delete(gone),))).revision
    await backend.store.put(kept, b"last")
    await backend.store.compact(compacted)
    # a watch that starts at the compaction revision itself would miss the delete on old servers
    reader = Reader(backend.store.watch(backend.prefix, start_revision=compacted - behind))
    await reader.until(lambda r: r.relists)
    await backend.store.put(kept, b"after")
    await reader.until_keys(kept)
    assert len(reader.relists) == 1
    assert [(kv.key, kv.value) for kv in reader.relists[0].kvs] == [(kept, b"last")]
    assert [e.value for e in reader.events] == [b"after"]
    assert reader.events[0].mod_revision == reader.relists[0].revision + 1
    await reader.close()


async def test_a_watch_after_the_compaction_needs_no_relist(backend: Backend) -> None:
    key = backend.key("k")
    await backend.store.put(key, b"1")
    last = await backend.store.put(key, b"2")
    await backend.store.compact(last)
    await backend.store.put(key, b"3")
    reader = Reader(backend.store.watch(backend.prefix, start_revision=last + 1))
    await reader.until_keys(key)
    assert not reader.relists and reader.events[0].value == b"3"
    await reader.close()


async def test_an_idle_watch_says_that_it_is_alive(backend: Backend) -> None:
    revision = await backend.store.put(backend.key("k"), b"")
    reader = Reader(backend.store.watch(backend.prefix, start_revision=revision + 1))
    await reader.until(lambda r: r.count(Alive) >= 2, 8)
    assert all(isinstance(item, Alive) and item.revision >= revision for item in reader.items)
    await reader.close()


async def test_a_reader_that_gives_up_waiting_loses_nothing(backend: Backend) -> None:
    start = await backend.store.put(backend.key("0"), b"")
    watch = backend.store.watch(backend.prefix, start_revision=start)
    got: list[str] = []
    for n in range(1, 12):
        try:
            async with asyncio.timeout(0.02):
                while True:
                    item = await anext(watch)
                    got += [e.key for e in item.events] if isinstance(item, Events) else []
        except TimeoutError:
            await backend.store.put(backend.key(str(n)), b"")
    async with asyncio.timeout(5):
        while len(got) < 12:
            item = await anext(watch)
            got += [e.key for e in item.events] if isinstance(item, Events) else []
    assert got == [backend.key(str(n)) for n in range(12)]
    await watch.aclose()


async def test_closing_a_watch_ends_its_reader(backend: Backend) -> None:
    reader = Reader(backend.store.watch(backend.prefix, start_revision=0))
    await reader.until_alive()
    await reader.close()
    with pytest.raises(StopAsyncIteration):
        await anext(reader.watch)


async def test_closing_the_store_ends_its_watches_and_refuses_calls(backend: Backend) -> None:
    reader = Reader(backend.store.watch(backend.prefix, start_revision=0))
    await reader.until_alive()
    await within(5, backend.store.close())
    await reader.close()
    with pytest.raises(StoreUnavailable):
        await backend.store.get("k")
    await backend.store.close()


async def test_cut_off_calls_end_in_time_and_a_watch_says_so_once(backend: Backend) -> None:
    key = backend.key("k")
    lease = await backend.grant(20)
    start = await backend.store.put(key, b"before", lease=lease.id)
    reader = Reader(backend.store.watch(backend.prefix, start_revision=start))
    await reader.until_keys(key)
    backend.cut()
    try:
        for timeout, call in (
            (0.5, backend.store.get(key, timeout=0.5)),
            (0.5, backend.store.put(key, b"?", timeout=0.5)),
            (0.5, backend.store.txn((), (), timeout=0.5)),
            (1.0, backend.store.keep_alive(lease.id, timeout=1.0)),
        ):
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await call
            assert time.monotonic() - started < timeout + 0.4
        await reader.until_interrupted(6)
        await asyncio.sleep(0.5)
    finally:
        backend.heal()
    again = await within(5, backend.store.put(key, b"after", lease=lease.id))
    # what was sent into the cut may be applied late, before or behind it
    await reader.until(lambda r: again in [e.mod_revision for e in r.events])
    assert [e.value for e in reader.events if e.value != b"?"] == [b"before", b"after"]
    assert (reader.count(Interrupted), reader.count(Relist)) == (1, 0)
    assert await backend.store.keep_alive(lease.id) > 0
    await reader.close()
