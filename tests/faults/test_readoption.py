"""A daemon that ends, in whatever way, ends no engine: the next one takes over what lives and ends what does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from infctl.store.records import EndpointRecord
from infctl_daemon.proc import procfs
from tests.support.left_behind import footprint
from tests.support.noded import Cluster, Noded, node_cluster, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]

SWEPT_S = 5.0  # until nothing is left of a launch that is being ended, on a busy machine


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with node_cluster(tmp_path, start=False) as made:
        made.noded.start(stop_groups=False)
        yield made


@pytest_asyncio.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Cluster]:
    """With a lease that a busy machine cannot use up while a daemon starts."""
    async with node_cluster(tmp_path, start=False) as made:
        made.noded.limits["leaseTtlSeconds"] = 10
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
    patient: Cluster, number: signal.Signals
) -> None:
    cluster = patient
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    pids = {p.pid for p in cluster.noded.known("a").processes}
    lease = await lease_of(cluster, cluster.keys.endpoint("a"))
    before = cluster.footprint()
    began = time.monotonic()
    await again(cluster, number)

    await until(lambda: _logged(cluster, "launch.adopted"), 20, "the launch is adopted")
    assert time.monotonic() - began < 15.0, "the start of a python, and a look at each process"
    status = await cluster.status(phase="ready")
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
    assert cluster.footprint().idents == before.idents and cluster.footprint().in_shm == before.in_shm

    # what the first life started, the second one ends without a trace
    await cluster.delete("a")
    await cluster.nothing_left(before, SWEPT_S + 5.0)


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
    before = cluster.footprint()
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGKILL)
    cluster.noded.start(stop_groups=False)
    started_ms = time.time() * 1000

    notice = await cluster.fault(first.launch)
    assert notice.reason == "process-exited" and "scheduler_TP1" in notice.evidence and "no daemon" in notice.evidence
    assert notice.at_ms - started_ms < 10_000, "the start of a python, and then at once"
    await cluster.nothing_left(before, SWEPT_S)
    second = await cluster.ready(not_launch=first.launch)
    assert second.generation == first.generation + 1


async def test_a_launch_that_ended_whole_while_no_daemon_was_there_leaves_nothing(cluster: Cluster) -> None:
    """Nobody is left who could be asked what he had mapped: the record says it."""
    await cluster.apply(cluster.spec())
    first = await cluster.ready()

    async def on_record() -> bool:
        return any(name.startswith("sglang_loads") for name in cluster.noded.state.read("a").shm)

    await until(on_record, 20.0, "what it has mapped is on record")
    before = cluster.footprint()
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    for ident in before.idents:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ident.pid, signal.SIGKILL)
    assert before.in_shm
    cluster.noded.start(stop_groups=False)
    assert (await cluster.fault(first.launch)).reason == "process-exited"
    await cluster.nothing_left(before, SWEPT_S)


async def test_a_rank_that_dies_after_the_adoption_is_seen_although_the_store_is_away(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    before = cluster.footprint()
    cluster.etcd.freeze()
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    cluster.noded.start(stop_groups=False)
    await until(lambda: _logged(cluster, "launch.adopted"), 20, "adopted without a store")
    os.kill(cluster.noded.pid("a", "scheduler_TP0"), signal.SIGKILL)

    async def dead() -> bool:
        return not before.living and not before.in_shm

    await until(dead, SWEPT_S, "the whole launch is killed")
    cluster.etcd.thaw()
    assert (await cluster.fault(first.launch)).reason == "process-exited"
    await cluster.nothing_left(before, SWEPT_S)
    await cluster.ready(not_launch=first.launch)


async def test_a_group_that_was_deleted_while_no_daemon_was_there_is_stopped(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    await cluster.ready()
    before = cluster.footprint()
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    await cluster.delete("a")
    cluster.noded.start(stop_groups=False)
    await cluster.nothing_left(before, 30.0)


async def test_a_launch_of_another_boot_is_only_told_of(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    before = cluster.footprint()
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    path = cluster.noded.folder / "state" / "groups" / "a.json"
    path.write_text(path.read_text().replace(procfs.boot_id(), "another-boot"))
    cluster.noded.start(stop_groups=False)
    started_ms = time.time() * 1000
    notice = await cluster.fault(first.launch)
    assert notice.reason == "host-rebooted" and notice.at_ms - started_ms < 10_000
    await cluster.ready(not_launch=first.launch)
    # recorded pids are believed no more; what says by itself that it is of that launch is ended all the same
    await cluster.nothing_left(before, SWEPT_S)


async def test_two_daemons_of_one_name_do_not_share_it(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    second = Noded(tmp_path / "n1-again", cluster.etcd.endpoint)
    second.start()
    try:
        await until(lambda: _has(second, "another daemon has this node's name"), 20, "it says so")
        await asyncio.sleep(2 * cluster.noded.limits["leaseTtlSeconds"])
        now = await cluster.endpoint()
        assert now is not None and now.launch == first.launch and second.state.groups() == []
        assert {e.partition("-")[0] for e in _marks(second.folder)} == set(), "nothing was started"
        cluster.noded.signal(signal.SIGKILL)
        await cluster.noded.ended()
        began = time.monotonic()
        await until(lambda: _has(second, "lease held"), 30, "the first one's lease runs out")
        assert time.monotonic() - began < cluster.noded.limits["leaseTtlSeconds"] + 15.0
        again = await cluster.ready(not_launch=first.launch)
        assert again.generation > first.generation
        taken = footprint(second.folder / "state", second.folder / "run", "a")
        second.signal(signal.SIGTERM)
        assert await second.ended() == 0
        await cluster.nothing_left(taken, 0.0)
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
    dead = _marks(cluster.noded.folder)
    cluster.noded.start(stop_groups=False)
    began = time.monotonic()
    await _one_launch(cluster)
    assert time.monotonic() - began < 30.0, "a start of everything, and a look at what was there"
    assert dead <= {(await cluster.status()).launch} or point in ("spawn", "spawned"), "what ran was taken over"


@pytest.mark.parametrize("point", ["kill", "killed", "fault"])
async def test_a_daemon_that_dies_at_any_point_of_an_end_finishes_it(cluster: Cluster, point: str) -> None:
    cluster.noded.signal(signal.SIGTERM)
    await cluster.noded.ended()
    cluster.noded.start(stop_groups=False, crash_at=point)
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    before = cluster.footprint()
    os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGKILL)
    assert await cluster.noded.ended(40.0) == -signal.SIGKILL
    cluster.noded.start(stop_groups=False)
    await cluster.nothing_left(before, 20.0)
    await cluster.ready(not_launch=first.launch)
    await _one_launch(cluster)
    assert (await cluster.fault(first.launch)).launch == first.launch


async def _one_launch(cluster: Cluster) -> None:
    """Ready, registered, one set of processes, and nothing of any other launch: no process, key file, record."""
    status = await cluster.status(phase="ready", seconds=40.0)
    found = await cluster.endpoint()
    assert isinstance(found, EndpointRecord) and (found.launch, found.generation) == (status.launch, status.generation)
    assert procfs.marked("INFCTL_LAUNCH", found.launch)
    assert _marks(cluster.noded.folder) == {found.launch}
    keys = [p.name for p in (cluster.noded.folder / "run" / "keys").iterdir()]
    assert keys == [f"{found.launch}.yaml"]
    launches = (await cluster.store.range(f"{cluster.keys.group('a')}launches/")).kvs
    assert [kv.key.rpartition("/")[2] for kv in launches] == [found.launch]


def _marks(folder: Path) -> set[str]:
    """Launches that any process of the daemon with this folder carries in its environment."""
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if f"{folder}/".encode() in line:
            found |= {w.partition(b"=")[2].decode() for w in words if w.startswith(b"INFCTL_LAUNCH=")}
    return found
