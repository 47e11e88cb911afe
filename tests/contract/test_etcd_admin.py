"""The full database: what still works, and the three steps out of it. On every etcd found."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from infctl.adapters.etcd.admin import EtcdAdmin
from infctl.adapters.etcd_binary import EtcdBinary
from infctl.domain.errors import StoreFull
from infctl.ports.store import Delete, Put
from tests.support.etcd import BINARIES, live_etcd, store_on

every_etcd = pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: binary.version_text)


@every_etcd
async def test_the_member_is_listed_and_no_alarm_is_on(binary: EtcdBinary, tmp_path: Path) -> None:
    async with live_etcd(binary, tmp_path) as etcd, store_on(etcd.endpoint) as store:
        admin = EtcdAdmin(store)
        (member,) = await admin.members()
        assert member.client_urls == (f"http://{etcd.endpoint}",) and not member.learner
        assert await admin.alarms() == ()


@every_etcd
async def test_a_full_database_refuses_puts_but_not_deletes_and_is_repaired_in_three_steps(
    binary: EtcdBinary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infctl.adapters.etcd_binary.QUOTA_BYTES", 4 << 20)
    async with live_etcd(binary, tmp_path) as etcd, store_on(etcd.endpoint) as store:
        admin = EtcdAdmin(store)
        lease = await store.grant(60)
        # the quota is held against what was committed, ten times a second: a quick machine is past it by then
        with pytest.raises(StoreFull):
            async with asyncio.timeout(10):
                for n in itertools.count():
                    await store.put(f"k/{n}", b"." * 200_000, lease=lease.id)
        with pytest.raises(StoreFull):
            await store.txn((), (Put("k", b""), Delete("k/0")))
        with pytest.raises(StoreFull):
            await store.grant(60)
        assert await store.keep_alive(lease.id) > 0
        deleted = await store.txn((), (Delete("k/", prefix=True),))
        assert deleted.deleted > 5
        (alarm,) = await admin.alarms()
        assert alarm.name == "NOSPACE"

        await store.compact(deleted.revision)
        await admin.defragment()
        await admin.disarm(alarm)
        assert await admin.alarms() == ()
        await store.put("k", b"")
