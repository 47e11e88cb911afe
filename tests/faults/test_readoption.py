"""A daemon that ends, in whatever way, ends no engine: the next one takes over what lives and ends what does not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from infctl.ports.store import Delete
from infctl.store.records import EndpointRecord
from infctl_daemon.proc import procfs
from tests.support.noded import Cluster, node_cluster, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with node_cluster(tmp_path, start=False) as made:
        made.noded.start(stop_groups=False)
        yield made


async def lease_of(cluster: Cluster, key: str) -> int:
    kv = await cluster.store.get(key)
    return kv.lease if kv else 0


async def again(cluster: Cluster, number: signal.Signals = signal.SIGKILL) -> None:
    """End the daemon, see that its engines live, start the next one."""
    before = cluster.noded.known("a").processes
    cluster.noded.signal(number)
    assert await cluster.noded.ended() == (0 if number == signal.SIGTERM else -number)
    assert len(cluster.noded.alive()) == len(before), "an engine outlives its daemon"
    cluster.noded.start(stop_groups=False)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_daemon_that_comes_back_in_time_keeps_launch_generation_and_lease(
    cluster: Cluster, number: signal.Signals
) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    pids = {p.pid for p in cluster.noded.known("a").processes}
    lease = await lease_of(cluster, cluster.keys.endpoint("a"))
    await again(cluster, number)

    await cluster.status(phase="ready")
    status = await cluster.status(phase="ready")
    await until(lambda: _logged(cluster, "launch.adopted"), 20, "the launch is adopted")
    await asyncio.sleep(cluster.noded.limits["leaseTtlSeconds"] + 1.0)
    now = await cluster.endpoint()
    assert now is not None and (now.launch, now.generation) == (first.launch, first.generation)
    assert (
        await lease_of(cluster, cluster.keys.endpoint("a"))
        == lease
        == await lease_of(cluster, cluster.keys.node_lease("n1"))
    )
    assert {p.pid for p in cluster.noded.known("a").processes} == pids
    assert status.launch == first.launch and (await cluster.store.range(cluster.keys.faults)).kvs == ()


async def _logged(cluster: Cluster, words: str) -> bool:
    return words in cluster.noded.log.read_text()


async def test_a_lease_that_ran_out_meanwhile_brings_a_new_generation_of_the_same_launch(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()

    async def gone() -> bool:
        return await cluster.endpoint() is None

    await until(gone, 20, "the lease takes the endpoint with it")
    cluster.noded.start(stop_groups=False)
    second = await cluster.ready()
    assert (second.launch, second.generation) == (first.launch, first.generation + 1)
    assert (await cluster.store.range(cluster.keys.faults)).kvs == ()


async def test_a_rank_that_died_while_no_daemon_was_there_is_told_at_once(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    old = list(cluster.noded.known("a").processes)
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGKILL)
    cluster.noded.start(stop_groups=False)

    notice = await cluster.fault(first.launch)
    assert notice.reason == "process-exited" and "scheduler_TP1" in notice.evidence and "no daemon" in notice.evidence
    second = await cluster.ready(not_launch=first.launch)
    assert second.generation == first.generation + 1
    assert not [p for p in old if procfs.is_alive(p.ident)]


async def test_a_rank_that_dies_after_the_adoption_is_seen_although_the_store_is_away(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    old = list(cluster.noded.known("a").processes)
    cluster.etcd.freeze()
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    cluster.noded.start(stop_groups=False)
    await until(lambda: _logged(cluster, "launch.adopted"), 20, "adopted without a store")
    os.kill(cluster.noded.pid("a", "scheduler_TP0"), signal.SIGKILL)

    async def dead() -> bool:
        return not [p for p in old if procfs.is_alive(p.ident)]

    await until(dead, 10, "the whole launch is killed")
    cluster.etcd.thaw()
    assert (await cluster.fault(first.launch)).reason == "process-exited"
    await cluster.ready(not_launch=first.launch)


async def test_a_group_that_was_deleted_while_no_daemon_was_there_is_stopped(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    await cluster.ready()
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    await cluster.store.txn([], [Delete(cluster.keys.group_spec("a"))])
    cluster.noded.start(stop_groups=False)

    async def over() -> bool:
        return not cluster.noded.alive() and await cluster.endpoint() is None

    await until(over, 30, "engine and endpoint are gone")


async def test_a_launch_of_another_boot_is_only_told_of(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    path = cluster.noded.folder / "state" / "groups" / "a.json"
    path.write_text(path.read_text().replace(procfs.boot_id(), "another-boot"))
    cluster.noded.start(stop_groups=False)
    assert (await cluster.fault(first.launch)).reason == "host-rebooted"
    await cluster.ready(not_launch=first.launch)


async def test_two_daemons_of_one_name_do_not_share_it(cluster: Cluster, tmp_path: Path) -> None:
    from tests.support.noded import Noded

    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    second = Noded(tmp_path / "n1-again", cluster.etcd.endpoint)
    second.start()
    try:
        await until(lambda: _has(second, "another daemon has this node's name"), 20, "it says so")
        await asyncio.sleep(2 * cluster.noded.limits["leaseTtlSeconds"])
        now = await cluster.endpoint()
        assert now is not None and now.launch == first.launch and second.state.groups() == []
        cluster.noded.signal(signal.SIGKILL)
        await cluster.noded.ended()
        await until(lambda: _has(second, "lease held"), 30, "the first one's lease runs out")
    finally:
        await second.close()


async def _has(noded: object, words: str) -> bool:
    return words in noded.log.read_text()  # type: ignore[attr-defined]


POINTS = ["claim", "claimed", "spawn", "spawned", "recorded", "checked", "published"]


@pytest.mark.parametrize("point", POINTS)
async def test_a_daemon_that_dies_at_any_point_of_a_start_leaves_one_launch_in_the_end(
    cluster: Cluster, point: str
) -> None:
    cluster.noded.signal(signal.SIGTERM)
    await cluster.noded.ended()
    cluster.noded.start(stop_groups=False, crash_at=point)
    await cluster.apply(cluster.spec())
    assert await cluster.noded.ended(40.0) == -signal.SIGKILL
    cluster.noded.start(stop_groups=False)
    await _one_launch(cluster)


@pytest.mark.parametrize("point", ["kill", "killed", "fault"])
async def test_a_daemon_that_dies_at_any_point_of_an_end_finishes_it(cluster: Cluster, point: str) -> None:
    cluster.noded.signal(signal.SIGTERM)
    await cluster.noded.ended()
    cluster.noded.start(stop_groups=False, crash_at=point)
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGKILL)
    assert await cluster.noded.ended(40.0) == -signal.SIGKILL
    cluster.noded.start(stop_groups=False)
    await cluster.ready(not_launch=first.launch)
    await _one_launch(cluster)
    assert (await cluster.fault(first.launch)).launch == first.launch


async def _one_launch(cluster: Cluster) -> None:
    """Ready, registered, one set of processes, and nothing of any other launch: no process, key file, record."""
    status = await cluster.status(phase="ready", seconds=40.0)
    found = await cluster.endpoint()
    assert isinstance(found, EndpointRecord) and (found.launch, found.generation) == (status.launch, status.generation)
    assert procfs.marked("INFCTL_LAUNCH", found.launch)
    ours = {name for name in _marks(cluster) if name.startswith("a-")}
    assert ours == {found.launch}
    keys = [p.name for p in (cluster.noded.folder / "run" / "keys").iterdir()]
    assert keys == [f"{found.launch}.yaml"]
    launches = (await cluster.store.range(f"{cluster.keys.group('a')}launches/")).kvs
    assert [kv.key.rpartition("/")[2] for kv in launches] == [found.launch]


def _marks(cluster: Cluster) -> set[str]:
    """Launches that any process of the test's state folder carries in its environment."""
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if str(cluster.noded.folder).encode() in line:
            found |= {w.partition(b"=")[2].decode() for w in words if w.startswith(b"INFCTL_LAUNCH=")}
    return found
