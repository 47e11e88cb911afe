"""Hosts of a cluster are cut off from etcd, or lose power: what each of them holds is lost only with itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from infctl.store.records import EndpointRecord
from tests.support import netns
from tests.support.hosts_cluster import STORE, hosted
from tests.support.hosts_streams import SLOW, more, routable, streaming
from tests.support.needs import need
from tests.support.noded import until

pytestmark = [pytest.mark.root, pytest.mark.faults, pytest.mark.timeout(120)]


async def test_a_host_cut_off_from_etcd_keeps_its_engine_and_its_streams_and_registers_the_same_launch_again(
    tmp_path: Path,
) -> None:
    need(netns.why_not())
    async with hosted(tmp_path, "a", "b", gateway="b") as cluster:
        await cluster.apply(cluster.spec(node="a", engine_args=SLOW))
        first = await cluster.ready()
        assert cluster.hosts.a.address in first.url
        processes = cluster.daemons["a"].known("a").processes
        await routable(cluster, first.launch)

        async def withdrawn() -> bool:
            return await cluster.endpoint() is None

        async def raised() -> EndpointRecord | None:
            found = await cluster.endpoint()
            return found if found is not None and found.generation > first.generation else None

        async with streaming(cluster, "a") as seen:
            cluster.hosts.cut("a", STORE)
            await until(withdrawn, 15.0, "its lease is gone, its endpoint too")
            await more(seen, 30)
            assert set(cluster.daemons["a"].alive()) == set(processes)
            cluster.hosts.heal("a", STORE)
            again = await until(raised, 25.0, "it is registered again")
            assert (again.launch, again.generation, again.url) == (first.launch, first.generation + 1, first.url)
            assert cluster.daemons["a"].known("a").processes == processes
            assert set(cluster.daemons["a"].alive()) == set(processes)
            await routable(cluster, first.launch)
            await more(seen, 10)
        assert await cluster.store.get(cluster.keys.fault("a", first.launch)) is None
        code, out, err = await cluster.cli("b", "get", "group/a", "--no-headers")
        assert code == 0 and "Ready" in out, out + err


async def test_a_host_loses_power_and_its_stream_goes_on_at_another_host(tmp_path: Path) -> None:
    need(netns.why_not())
    async with hosted(tmp_path, "a", "b", gateway="b") as cluster:
        for name in ("a", "b"):
            await cluster.apply(cluster.spec(name, node=name, engine_args=SLOW))
        a, b = [await cluster.ready(name) for name in ("a", "b")]
        await routable(cluster, a.launch, b.launch)
        async with streaming(cluster, "a") as seen:
            cluster.power_off("a")
            assert cluster.daemons["a"].alive() == []
            await more(seen, 30)
        await routable(cluster, b.launch)
