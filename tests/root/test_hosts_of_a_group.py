"""A group over three hosts: one of them is cut off from etcd, or loses power (DESIGN R2, R6)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infctl.store.records import EndpointRecord
from tests.support import netns
from tests.support.hosts_cluster import STORE, HostedCluster, hosted
from tests.support.hosts_streams import SLOW, more, routable, streaming
from tests.support.needs import need
from tests.support.noded import QUICK, until

pytestmark = [pytest.mark.root, pytest.mark.faults, pytest.mark.timeout(120)]


async def test_a_host_cut_off_from_etcd_kills_nothing_of_its_group_and_the_owners_loss_of_power_ends_it_everywhere(
    tmp_path: Path,
) -> None:
    need(netns.why_not())
    async with hosted(tmp_path, "a", "b", "c") as cluster:
        await cluster.apply(cluster.spread())
        first = await cluster.ready("g")
        before = {name: daemon.living("g") for name, daemon in cluster.daemons.items()}
        cluster.hosts.cut("b", STORE)
        await until(standing(cluster, "unfit"), 15.0, "the endpoint is withdrawn")
        cluster.hosts.heal("b", STORE)
        again = await until(standing(cluster, "ready"), 25.0, "it is back")
        assert (again.launch, again.generation) == (first.launch, first.generation)
        assert {name: daemon.living("g") for name, daemon in cluster.daemons.items()} == before
        assert await cluster.store.get(cluster.keys.fault("g", first.launch)) is None

        cluster.power_off("a")
        notice = await cluster.fault(first.launch, "g")
        assert notice.by in ("node/b", "node/c")
        await cluster.gone("g")
        assert await cluster.endpoint("g") is None


async def test_two_hosts_of_a_group_are_cut_from_each_other_and_its_stream_goes_on_at_another_group(
    tmp_path: Path,
) -> None:
    """Both still reach etcd and the gateway: the engine that stands still and the data path are the two classes."""
    need(netns.why_not())
    async with hosted(tmp_path, "a", "b", "c", gateway="c") as cluster:
        await cluster.apply(cluster.spread(over=("a", "b"), engine_args=SLOW))
        await cluster.apply(cluster.spec("other", node="c", engine_args=SLOW))
        first, other = await cluster.ready("g"), await cluster.ready("other")
        await routable(cluster, first.launch, other.launch)
        async with streaming(cluster, "g") as seen:
            old = cluster.now()
            cluster.hosts.cut("a", "b")
            notice = await cluster.fault(first.launch, "g", seconds=40.0)
            await more(seen, 30)
        assert notice.reason in ("hang", "process-exited")
        await cluster.ended(old)
        cluster.hosts.heal("a", "b")
        await cluster.ready("g", not_launch=first.launch)


async def test_a_members_host_loses_power_and_the_stream_goes_on_at_another_group(tmp_path: Path) -> None:
    need(netns.why_not())
    async with hosted(tmp_path, "a", "b", "c", gateway="c") as cluster:
        # the hang is told before b's lease ends: a relaunch before that would be planned with it once more
        later = msgspec.structs.replace(QUICK, first_delay=4.0, max_delay=4.0)
        await cluster.apply(cluster.spread(over=("a", "b"), engine_args=SLOW, restart=later))
        await cluster.apply(cluster.spec("other", node="c", engine_args=SLOW))
        first, other = await cluster.ready("g"), await cluster.ready("other")
        await routable(cluster, first.launch, other.launch)
        async with streaming(cluster, "g") as seen:
            old = cluster.now()
            cluster.power_off("b")
            notice = await cluster.fault(first.launch, "g", seconds=40.0)
            assert notice.by == "node/a" and notice.reason in ("hang", "host-lost")
            await more(seen, 30)
        await cluster.ended(old)

        async def waits() -> bool:
            said = (await cluster.status("g")).message
            return "no daemon is registered" in said and "b" in said

        await until(waits, 15.0, "the status names the host that it waits for")
        cluster.hosts.power_on("b")
        cluster.daemons["b"].start(stop_groups=False)
        second = await cluster.ready("g", not_launch=first.launch)
        assert set(await cluster.parts(second.launch)) == {"a", "b"}


async def test_an_idle_group_is_ended_when_a_members_host_loses_power(tmp_path: Path) -> None:
    need(netns.why_not())
    async with hosted(tmp_path, "a", "b") as cluster:
        await cluster.apply(cluster.spread(over=("a", "b")))
        first = await cluster.ready("g")
        old = cluster.now()
        cluster.power_off("b")
        notice = await cluster.fault(first.launch, "g", seconds=60.0)
        assert notice.by == "node/a"
        await cluster.ended(old)


async def test_the_owners_host_is_cut_off_from_etcd_only_and_its_stream_runs_on(tmp_path: Path) -> None:
    need(netns.why_not())
    async with hosted(tmp_path, "a", "b", "c", gateway="c") as cluster:
        await cluster.apply(cluster.spread(over=("a", "b"), engine_args=SLOW))
        first = await cluster.ready("g")
        before = {name: daemon.living("g") for name, daemon in cluster.daemons.items()}
        await routable(cluster, first.launch)
        async with streaming(cluster, "g") as seen:
            cluster.hosts.cut("a", STORE)

            async def withdrawn() -> bool:
                return await cluster.endpoint("g") is None

            await until(withdrawn, 15.0, "its lease is gone, its endpoint too")
            await more(seen, 150)  # longer than the member's probes take
            cluster.hosts.heal("a", STORE)
            again = await until(standing(cluster, "ready"), 25.0, "it is registered again")
            assert (again.launch, again.generation) == (first.launch, first.generation + 1)
            await more(seen, 10)
        assert {name: daemon.living("g") for name, daemon in cluster.daemons.items()} == before
        assert await cluster.store.get(cluster.keys.fault("g", first.launch)) is None


def standing(cluster: HostedCluster, state: str) -> Callable[[], Coroutine[Any, Any, EndpointRecord | None]]:
    async def look() -> EndpointRecord | None:
        found = await cluster.endpoint("g")
        return found if found is not None and found.state == state else None

    return look
