"""Three members of etcd: whichever dies, freezes or is cut off, the watch misses nothing and the lease is kept.

Every etcd found on this machine; the versions side by side. Timing bounds are generous: figures are in `bench store`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from infctl.adapters.etcd_binary import EtcdBinary
from infctl.domain.errors import StoreUnavailable
from infctl.domain.lease import Holding
from infctl.ports.store import Interrupted, Put
from infctl.store.lease_keeper import LeaseKeeper
from tests.support.etcd import BINARIES, LiveCluster, LiveEtcd, Reader, live_cluster, live_etcd, store_on, within
from tests.support.ledger import Ledger, ledger_on
from tests.support.net import free_ports
from tests.support.proxy import proxy_to

pytestmark = [pytest.mark.faults, pytest.mark.timeout(90)]


async def on_each(case: object, folder: Path, *more: object) -> None:
    """The case on every etcd, at the same time."""
    async with asyncio.timeout(80):
        await asyncio.gather(*(case(binary, folder / binary.version_text, *more) for binary in BINARIES))  # type: ignore[operator]


@contextlib.asynccontextmanager
async def scene(binary: EtcdBinary, folder: Path, first: str) -> AsyncIterator[tuple[LiveCluster, LiveEtcd, Ledger]]:
    """A cluster, the member that the client is connected to (the leader, or a follower), and the client at work."""
    async with live_cluster(binary, folder) as etcds:
        leader = await etcds.leader()
        used = leader if first == "leader" else etcds.others(leader)[0]
        rest = [member.endpoint for member in etcds.others(used)]
        async with ledger_on(used.endpoint, *rest, writers=rest) as ledger:
            assert ledger.store.endpoint == used.endpoint
            yield etcds, used, ledger


@pytest.mark.parametrize("used", ["follower", "leader"])
async def test_the_connected_member_is_killed(tmp_path: Path, used: str) -> None:
    await on_each(_killed, tmp_path, used)


async def _killed(binary: EtcdBinary, folder: Path, first: str) -> None:
    async with scene(binary, folder, first) as (_, used, ledger):
        await asyncio.sleep(0.5)
        killed_at = time.monotonic()
        used.kill()
        # without its leader the cluster elects one first
        assert await ledger.seen_after(killed_at, 8) < (6.0 if first == "leader" else 3.0)
        assert ledger.store.endpoint != used.endpoint
        await asyncio.sleep(1.0)
        await used.start()
        await ledger.settle()
        await ledger.check()
        assert ledger.changes == [] and ledger.reader.count(Interrupted) <= 2
        kv = await ledger.store.get("w/0")
        assert kv and kv.lease == ledger.keeper.lease_id and ledger.keeper.holding is Holding.HELD


@pytest.mark.parametrize("used", ["follower", "leader"])
async def test_the_connected_member_is_frozen_and_thawed(tmp_path: Path, used: str) -> None:
    await on_each(_frozen, tmp_path, used)


async def _frozen(binary: EtcdBinary, folder: Path, first: str) -> None:
    async with scene(binary, folder, first) as (_, used, ledger):
        await asyncio.sleep(0.5)
        frozen_at = time.monotonic()
        used.freeze()
        assert await ledger.seen_after(frozen_at, 10) < 8.0
        assert ledger.store.endpoint != used.endpoint
        deadline = ledger.keeper.deadline
        while ledger.keeper.deadline == deadline:  # renewed elsewhere, inside its time
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        used.thaw()
        await ledger.settle()
        await ledger.check()
        assert ledger.changes == [] and ledger.reader.count(Interrupted) <= 2
        kv = await ledger.store.get("w/0")
        assert kv and kv.lease == ledger.keeper.lease_id
        assert not ledger.store.held, "a member that comes back with old state is no replaced database"


async def test_two_of_three_are_gone_and_come_back(tmp_path: Path) -> None:
    await on_each(_no_quorum, tmp_path)


async def _no_quorum(binary: EtcdBinary, folder: Path) -> None:
    """Unknown is not lost: the lease outlives its own time, because the next leader gives it a full one again."""
    async with scene(binary, folder, "follower") as (etcds, used, ledger), store_on(used.endpoint) as near:
        await near.get("w/0")
        short = LeaseKeeper(ledger.store, 4)
        await short.start()
        await ledger.store.put("short", b"", lease=short.lease_id)
        dead = await etcds.leader()  # a leader that is only frozen ends leases by its clock when it thaws
        (frozen,) = etcds.others(used, dead)
        dead.kill()
        frozen.freeze()
        await ledger.reader.until_interrupted(15)
        await within(15, short.uncertain.wait())
        for call in (near.get("w/0", timeout=1), near.range("w/", timeout=1), near.put("w/x", b"", timeout=1)):
            with pytest.raises(StoreUnavailable) as caught:
                await call
            assert caught.value.reason == "StoreUnavailable"
        status = await near.status(timeout=2)
        assert status.cluster_id, "the member that is left still tells about itself"
        assert not short.lost.is_set() and not ledger.keeper.lost.is_set()
        interrupted = ledger.reader.count(Interrupted)

        frozen.thaw()
        await dead.start()
        back_at = time.monotonic()
        while short.holding is not Holding.HELD or ledger.keeper.holding is not Holding.HELD:
            assert time.monotonic() - back_at < 12
            assert not short.lost.is_set() and not ledger.keeper.lost.is_set()
            await asyncio.sleep(0.05)
        await ledger.settle()
        await ledger.check()
        for key, keeper in (("short", short), ("w/0", ledger.keeper)):
            kv = await ledger.store.get(key)
            assert kv and kv.lease == keeper.lease_id, "nothing was fenced"
        assert interrupted == 1 and not ledger.store.held
        await short.stop()


@contextlib.contextmanager
def frozen_listener() -> Iterator[str]:
    """A process that listens and is stopped: the kernel takes the connection, nobody ever answers."""
    (port,) = free_ports(1)
    code = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print(1, flush=True); time.sleep(99)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline()
            os.kill(process.pid, signal.SIGSTOP)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


@contextlib.contextmanager
def full_listener() -> Iterator[str]:
    """A listener whose queue is full: the kernel drops every further SYN, as a firewall would."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            each = stack.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_dead_endpoints_in_the_list_delay_the_start_and_no_more(tmp_path: Path) -> None:
    """Refused, stopped, or swallowed by a firewall: a lease, a write and a watch begin all the same."""
    (refused,) = free_ports(1)
    with frozen_listener() as frozen, full_listener() as full:
        async with live_etcd(BINARIES[-1], tmp_path) as etcd:

            async def starts(*dead: str) -> None:
                began = time.monotonic()
                async with store_on(*dead, etcd.endpoint) as store, LeaseKeeper(store, 10) as keeper:
                    key = f"w/{dead[0]}"
                    revision = await store.put(key, b"", lease=keeper.lease_id)
                    reader = Reader(store.watch("w/", start_revision=revision))
                    await reader.until(lambda r: key in [e.key for e in r.events], 10)
                    assert store.endpoint == etcd.endpoint and not reader.count(Interrupted)
                    assert time.monotonic() - began < 3.0 * len(dead) + 1.0
                    await reader.close()

            await asyncio.gather(
                starts(f"127.0.0.1:{refused}"), starts(frozen), starts(full), starts(f"127.0.0.1:{refused}", full)
            )


async def test_the_network_to_the_connected_member_swallows_everything(tmp_path: Path) -> None:
    await on_each(_swallowed, tmp_path)


async def _swallowed(binary: EtcdBinary, folder: Path) -> None:
    async with live_cluster(binary, folder) as etcds:
        near, *rest = etcds.members
        others = [member.endpoint for member in rest]
        async with proxy_to(near.endpoint) as proxy, ledger_on(proxy.endpoint, *others, writers=others) as ledger:
            await asyncio.sleep(0.5)
            lost_at = time.monotonic()
            proxy.swallow()
            assert await ledger.seen_after(lost_at, 10) < 8.0
            await ledger.settle()
            await ledger.check()
            deadline = ledger.keeper.deadline
            while ledger.keeper.deadline == deadline:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            assert ledger.changes == [] and ledger.reader.count(Interrupted) == 1


async def test_a_watch_8000_events_behind_goes_on_elsewhere_when_its_member_dies(tmp_path: Path) -> None:
    await on_each(_far_behind, tmp_path)


async def _far_behind(binary: EtcdBinary, folder: Path) -> None:
    total = 8000
    async with live_cluster(binary, folder) as etcds:
        near, *rest = etcds.members
        others = [member.endpoint for member in rest]
        names = [f"w/{n:05}" for n in range(total)]
        async with store_on(*others) as writer:
            start = 0
            for n in range(0, total, 100):
                done = await writer.txn((), tuple(Put(name, b"." * 200) for name in names[n : n + 100]), timeout=10)
                start = start or done.revision
        async with proxy_to(near.endpoint) as proxy, store_on(proxy.endpoint, *others) as store:
            proxy.cut_after(1_000_000)
            reader = Reader(store.watch("w/", start_revision=start))
            await within(15, proxy.was_cut.wait())
            near.kill()
            await reader.until(lambda r: r.count(Interrupted), 10)
            at = [isinstance(item, Interrupted) for item in reader.items].index(True)
            before = sum(len(item.events) for item in reader.items[:at])  # type: ignore[union-attr]
            assert before < total, "it must die in the middle"
            await reader.until(lambda r: len(r.events) >= total, 30)
            await reader.until_alive()
            assert sorted(e.key for e in reader.events) == names and not reader.relists
            revisions = [e.mod_revision for e in reader.events]
            assert revisions == sorted(revisions)
            await reader.close()
