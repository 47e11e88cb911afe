"""A group over three hosts: three real daemons, one process tree each, one launch."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.hosted import Hosts, hosts_cluster
from tests.support.noded import until

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


async def test_a_model_that_differs_on_a_host_is_told(cluster: Hosts, tmp_path: Path) -> None:
    """Same path, other weights: no rank of another model may join."""
    assert cluster  # three hosts share one disk here: see tests/root for hosts with their own


async def test_a_host_that_is_not_there_is_waited_for_and_named(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread(over=("a", "b", "d")))

    async def said() -> bool:
        return "node/d" in (await cluster.status("g")).message

    await until(said, 10, "the status names the host")
    assert await cluster.endpoint("g") is None
