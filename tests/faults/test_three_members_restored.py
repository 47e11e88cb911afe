"""A cluster of three restored from an older snapshot: whoever knew the newer state holds, and shouts, until restarted.

`etcdctl snapshot restore` gives the same cluster id where the token is the same: only the revision tells then. Nothing
is called lost on the word of the restored database, and it stays refused when it has overtaken the old one.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from pathlib import Path

import pytest

from infctl.adapters.etcd import EtcdStore
from infctl.adapters.etcd_binary import EtcdBinary, packaged_etcd
from infctl.domain.errors import StoreUnavailable
from infctl.domain.lease import Holding
from infctl.ports.store import Interrupted
from infctl.store.lease_keeper import LeaseKeeper
from tests.support.etcd import BINARIES, LiveCluster, Reader, live_cluster, store_on, within
from tests.support.proxy import proxy_to

pytestmark = [pytest.mark.faults, pytest.mark.timeout(90)]


def etcdctl(*arguments: str) -> None:
    packaged = packaged_etcd()
    program = str(packaged.with_name("etcdctl")) if packaged else "etcdctl"
    subprocess.run([program, *arguments], env={"ETCDCTL_API": "3"}, check=True, capture_output=True, timeout=30)


async def restore(etcds: LiveCluster, snapshot: Path, token: str) -> None:
    """As an operator does it: every member stopped, its data replaced, started again under its own address."""
    peers = {member.server.dir.name: member.running.peer_port for member in etcds.members if member.running}
    for member in etcds.members:
        member.kill()
    everyone = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in peers.items())
    for member in etcds.members:
        name, data = member.server.dir.name, member.server.dir / "data"
        shutil.rmtree(data)
        into = ["--name", name, "--data-dir", str(data), "--initial-cluster", everyone]
        into += ["--initial-cluster-token", token]
        into += ["--initial-advertise-peer-urls", f"http://127.0.0.1:{peers[name]}"]
        await asyncio.to_thread(etcdctl, "snapshot", "restore", str(snapshot), *into)
    await etcds.start()


async def refused(store: EtcdStore) -> None:
    for call in (
        lambda: store.get("w/0"),
        lambda: store.range("w/"),
        lambda: store.put("w/0", b""),
        lambda: store.grant(5),
        lambda: store.keep_alive(1),
    ):
        with pytest.raises(StoreUnavailable) as caught:
            await call()
        assert caught.value.reason == "StoreReplaced" and "restart" in caught.value.hint


async def until_held(store: EtcdStore) -> None:
    while not store.held:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("token", ["etcd-cluster", "another"], ids=["same-cluster-id", "other-cluster-id"])
async def test_a_database_restored_from_an_older_snapshot_is_held_for_good(
    tmp_path: Path, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(80):
        await asyncio.gather(*(_restored(binary, tmp_path / binary.version_text, token) for binary in BINARIES))
    shouts = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any("nothing of this store is served any more" in shout for shout in shouts)


async def _restored(binary: EtcdBinary, folder: Path, token: str) -> None:
    async with (
        live_cluster(binary, folder) as etcds,
        proxy_to(etcds.endpoints[0]) as proxy,
        store_on(*etcds.endpoints) as store,
        store_on(proxy.endpoint) as away,
    ):
        for n in range(5):
            await store.put(f"w/{n}", b"old")
        snapshot = folder / "snapshot"
        await asyncio.to_thread(etcdctl, "--endpoints", etcds.endpoints[0], "snapshot", "save", str(snapshot))
        keeper = LeaseKeeper(store, 3)
        await keeper.start()
        for n in range(20):
            last = await store.put("w/lease" if n == 10 else f"w/{n}", b"new", lease=keeper.lease_id if n == 10 else 0)
        readers = [Reader(each.watch("w/", start_revision=last)) for each in (store, away)]
        for reader in readers:
            await reader.until_keys("w/19")
        proxy.cut()

        await restore(etcds, snapshot, token)
        await within(20, until_held(store))
        await refused(store)

        async with store_on(*etcds.endpoints) as fresh:  # what a restarted process sees: it is served
            kv = await fresh.get("w/4")
            assert kv and kv.value == b"old" and await fresh.get("w/lease") is None
            while await fresh.put("w/foreign", b"") < last + 20:
                pass
        await refused(store)
        assert not keeper.lost.is_set(), "the restored database does not know the lease; that ends nothing"
        await within(10, keeper.uncertain.wait())
        assert keeper.holding is Holding.UNCERTAIN

        # a client that was away all the time finds a higher revision, but not the change it had seen last
        await proxy.heal()
        await within(10, until_held(away))
        await refused(away)
        await asyncio.sleep(0.3)
        for reader in readers:
            assert [event.key for event in reader.events] == ["w/19"] and not reader.relists
            assert isinstance(reader.items[-1], Interrupted) and reader.count(Interrupted) == 1
            await reader.close()
        await keeper.stop(revoke=False)


async def test_a_single_member_of_another_cluster_in_the_list_is_left_and_the_rest_serves(tmp_path: Path) -> None:
    """An address that was given to another cluster: what is behind it is never served, and holds up nothing."""
    binary = BINARIES[-1]
    async with live_cluster(binary, tmp_path / "ours") as ours, live_cluster(binary, tmp_path / "theirs") as theirs:
        async with store_on(*theirs.endpoints) as foreign:
            await foreign.put("k", b"foreign")
        near, *rest = ours.endpoints
        async with proxy_to(near) as proxy, store_on(proxy.endpoint, *rest) as store:
            await store.put("k", b"ours")
            proxy.cut()
            proxy.target = theirs.endpoints[0]
            await proxy.heal()
            await asyncio.sleep(0.5)
            with pytest.raises(StoreUnavailable) as caught:
                await store.get("k")
            assert caught.value.reason == "StoreReplaced" and store.endpoint != proxy.endpoint
            for _ in range(5):
                kv = await store.get("k")
                assert kv and kv.value == b"ours" and not store.held
