"""A group over three hosts: three real daemons, one process tree each, one launch."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.support.hosted import Hosts, hosts_cluster
from tests.support.noded import QUICK, until

pytestmark = [pytest.mark.faults]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Hosts]:
    async with hosts_cluster(tmp_path) as found:
        yield found


async def test_ranks_of_three_hosts_are_one_launch_and_one_endpoint(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread())
    found = await cluster.ready("g")
    parts = await cluster.parts(found.launch)
    assert {n: (p.node_rank, p.state, p.ranks) for n, p in parts.items()} == {
        "a": (0, "loaded", 1), "b": (1, "loaded", 1), "c": (2, "loaded", 1),
    }  # fmt: skip
    assert found.node == "a"


@pytest.mark.parametrize("host", ["b", "c"])
async def test_a_dead_rank_on_any_host_ends_the_launch_everywhere_and_brings_one_new(cluster: Hosts, host: str) -> None:
    await cluster.apply(cluster.spread())
    first = await cluster.ready("g")
    before = {node: {p.pid for p in daemon.part("g")} for node, daemon in cluster.daemons.items()}
    os.kill(cluster.daemons[host].rank("g"), signal.SIGKILL)
    notice = await cluster.fault(first.launch, "g")
    assert notice.by == f"node/{host}" and notice.reason == "process-exited" and "scheduler" in notice.evidence
    second = await cluster.ready("g", not_launch=first.launch)
    for node, daemon in cluster.daemons.items():
        assert not before[node] & {p.pid for p in daemon.living("g")}, node
    assert set(await cluster.parts(second.launch)) == {"a", "b", "c"}
    assert not await cluster.parts(first.launch)


async def test_a_dead_rank_of_the_owner_ends_the_members_too(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread())
    first = await cluster.ready("g")
    old = {p for daemon in cluster.daemons.values() for p in daemon.part("g")}
    os.kill(cluster.daemons["a"].rank("g"), signal.SIGKILL)
    second = await cluster.ready("g", not_launch=first.launch)
    assert second.generation > first.generation
    living = {p for daemon in cluster.daemons.values() for p in daemon.living("g")}
    assert not old & living


async def test_a_group_is_deleted_on_every_host(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread())
    first = await cluster.ready("g")
    for daemon in cluster.daemons.values():
        daemon.part("g")
    await cluster.delete("g")
    await cluster.gone("g")
    assert (await cluster.fault(first.launch, "g")).reason == "deleted"

    async def no_keys() -> bool:
        return not await cluster.parts(first.launch)

    await until(no_keys, 10, "the rank keys are gone")


async def test_a_members_daemon_is_killed_and_takes_its_part_over(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread())
    first = await cluster.ready("g")
    daemon = cluster.daemons["b"]
    processes = daemon.part("g")
    daemon.signal(signal.SIGKILL)
    await daemon.ended()

    async def unfit() -> bool:
        found = await cluster.endpoint("g")
        return found is not None and found.state == "unfit"

    await until(unfit, 15, "the endpoint is out of routing when the host's lease is over")
    daemon.start()

    async def fit() -> bool:
        found = await cluster.endpoint("g")
        return found is not None and found.state == "ready" and found.launch == first.launch

    await until(fit, 20, "the endpoint is back")
    assert daemon.part("g") == processes and len(daemon.living("g")) == len(processes)
    await asyncio.sleep(1.0)
    assert (await cluster.parts(first.launch))["b"].state == "loaded"


async def test_a_frozen_rank_of_a_member_is_a_hang_that_ends_the_launch_everywhere(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread())
    first = await cluster.ready("g")
    old = {p.pid for daemon in cluster.daemons.values() for p in daemon.part("g")}
    os.kill(cluster.daemons["c"].rank("g"), signal.SIGSTOP)

    async def told() -> bool:
        # a rank that dies of the owner's kill may be told of first; the cause takes its place
        notice = await cluster.fault(first.launch, "g", seconds=40.0)
        return (notice.by, notice.reason) == ("node/a", "hang")

    await until(told, 40.0, "the notice says why")
    await cluster.ready("g", not_launch=first.launch)
    assert not old & {p.pid for daemon in cluster.daemons.values() for p in daemon.living("g")}


async def test_the_owners_daemon_is_killed_and_members_go_on_while_its_engine_answers(cluster: Hosts) -> None:
    """Its lease ends, which is one class of evidence; its engine answers the members' probes, so nothing is killed."""
    await cluster.apply(cluster.spread())
    first = await cluster.ready("g")
    parts = {node: daemon.part("g") for node, daemon in cluster.daemons.items()}
    owner = cluster.daemons["a"]
    owner.signal(signal.SIGKILL)
    await owner.ended()

    async def withdrawn() -> bool:
        return await cluster.endpoint("g") is None

    await until(withdrawn, 15, "the endpoint went with the lease")
    await asyncio.sleep(5.0)  # longer than the probes that would end it
    owner.start()
    again = await cluster.ready("g")
    assert (again.launch, again.generation) == (first.launch, first.generation + 1)
    assert {node: daemon.part("g") for node, daemon in cluster.daemons.items()} == parts
    assert all(len(daemon.living("g")) == len(parts[node]) for node, daemon in cluster.daemons.items())


async def test_the_owners_host_dies_and_a_member_ends_the_launch(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread())
    first = await cluster.ready("g")
    owner = cluster.daemons["a"]
    for daemon in cluster.daemons.values():
        daemon.part("g")
    for member in ("b", "c"):
        os.kill(cluster.daemons[member].rank("g"), signal.SIGSTOP)  # as ranks that wait for a peer without a word
    owner.signal(signal.SIGKILL)
    for process in owner.part("g"):
        os.kill(process.pid, signal.SIGKILL)
    notice = await cluster.fault(first.launch, "g", seconds=40.0)
    assert notice.by in ("node/b", "node/c") and notice.reason == "host-lost"
    await cluster.gone("g")
    await owner.ended()
    owner.start()
    second = await cluster.ready("g", not_launch=first.launch)
    assert set(await cluster.parts(second.launch)) == {"a", "b", "c"}


async def test_a_host_that_cannot_load_in_time_ends_the_launch_everywhere(cluster: Hosts) -> None:
    """Its rank is frozen while it loads; whoever's deadline is first ends it for all."""
    slow = msgspec.structs.replace(QUICK, load_deadline=4.0, attempts=0)
    args = ["--sim-load-seconds", "2.0", "--sim-decode-seconds", "0.01"]
    await cluster.apply(cluster.spread(restart=slow, engine_args=args))

    async def loading() -> bool:
        return any("::scheduler" in p.title for p in cluster.daemons["b"].part("g"))

    await until(loading, 15, "the rank on b is there")
    os.kill(cluster.daemons["b"].rank("g"), signal.SIGSTOP)
    status = await cluster.status("g", phase="failed", seconds=30.0)
    assert status.reason == "load-timeout"
    await cluster.gone("g")


@pytest.mark.parametrize("point", ["spawn", "spawned", "recorded", "part-loaded"])
async def test_a_members_daemon_that_dies_at_any_point_of_a_start_leaves_one_launch_in_the_end(
    tmp_path: Path, point: str
) -> None:
    async with hosts_cluster(tmp_path, ("a", "b"), crash_at={"b": point}) as cluster:
        await cluster.apply(cluster.spread(over=("a", "b")))
        daemon = cluster.daemons["b"]
        assert await daemon.ended() != 0
        for one in cluster.daemons.values():
            one.part("g")
        daemon.start()
        found = await cluster.ready("g", seconds=40.0)
        parts = await cluster.parts(found.launch)
        assert {node: part.state for node, part in parts.items()} == {"a": "loaded", "b": "loaded"}
        mains = {node: one.part("g")[0] for node, one in cluster.daemons.items()}
        running = {
            p.pid for p in psutil.process_iter() if "--node-rank" in _argv(p) and str(tmp_path) in " ".join(_argv(p))
        }
        assert running == {p.pid for p in mains.values()}


def _argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def test_a_host_that_is_not_there_is_waited_for_and_named(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread(over=("a", "b", "d")))

    async def said() -> bool:
        return "node/d" in (await cluster.status("g")).message

    await until(said, 10, "the status names the host")
    assert await cluster.endpoint("g") is None
