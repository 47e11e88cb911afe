"""Hosts of a cluster are cut off from etcd, or lose power: what each of them holds is lost only with itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infctl.store.records import EndpointRecord
from tests.support import netns
from tests.support.hosts_cluster import STORE, HostedCluster, hosted
from tests.support.needs import need
from tests.support.noded import until
from tests.support.readapi import ask
from tests.support.witness import Seen, body, watch

pytestmark = [pytest.mark.root, pytest.mark.faults, pytest.mark.timeout(120)]

SLOW = ["--sim-load-seconds", "0.1", "--sim-decode-seconds", "0.03"]


@contextlib.asynccontextmanager
async def streaming(cluster: HostedCluster, group: str) -> AsyncIterator[Seen]:
    """A stream that runs on this group when it is given out, as its client sees it; it would run for minutes."""
    seen = Seen()
    stream = asyncio.create_task(watch(cluster.url, body(tokens=3500), seen, group=group))
    try:
        await more(seen, 5)
        yield seen
        assert not stream.done()
        assert (seen.error, seen.broken) == (None, [])
    finally:
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)


async def more(seen: Seen, tokens: int, seconds: float = 20.0) -> None:
    """So many tokens come."""
    target = len(seen.ids) + tokens

    async def came() -> bool:
        return len(seen.ids) >= target

    await until(came, seconds, f"{tokens} more tokens, {seen.error}")


async def routable(cluster: HostedCluster, *launches: str) -> None:
    async def those() -> bool:
        return (await ask(f"{cluster.admin}/v1/status"))[1]["routable"] == sorted(launches)

    await until(those, 15.0, f"the gateway routes to {launches}")


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
