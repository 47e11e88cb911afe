"""A worker that was ended, or whose daemon is cut off, is not fed by a gateway that hears nothing of it (DESIGN R5)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from infctl.ports.store import Delete
from infctl.store.codec import decode
from infctl.store.records import EndpointRecord, Secret
from tests.support.cluster import Cluster, running
from tests.support.etcd import BINARIES, LiveEtcd
from tests.support.proxy import Proxy
from tests.support.readapi import ask
from tests.support.witness import body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

FAST = ("--sim-decode-seconds", "0.02")
# an engine that goes on answering after its SIGTERM, until the grace is over
STUBBORN = (*FAST, "--sim-fault", "ignore_sigterm:on=true")


@asynccontextmanager
async def with_a_stubborn_b(folder: Path) -> AsyncIterator[tuple[Cluster, EndpointRecord, EndpointRecord]]:
    async with running(folder, ("a",), tp=1, sim=FAST) as cluster:
        await cluster.apply_groups(["b"], tp=1, sim=STUBBORN)
        a, b = await cluster.ready("a", "b")
        processes = await cluster.tree("b")
        try:
            yield cluster, a, b
        finally:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


async def key_of(cluster: Cluster, group: str) -> str:
    kv = await cluster.store.get(cluster.keys.secret(group))
    assert kv is not None
    return decode(Secret, kv.value).api_key


async def answers(endpoint: EndpointRecord, key: str) -> bool:
    """The engine says yes to the probe that a gateway would believe."""
    return (await ask(f"{endpoint.url}/v1/loads?include=core", key))[0] == 200


async def end(cluster: Cluster, group: str) -> None:
    """Delete the group's specification and wait until its daemon is ending the launch."""
    await cluster.store.txn([], [Delete(cluster.keys.group_spec(group))])

    async def ending() -> bool:
        return (await cluster.status(group)).phase == "ending"

    await until(ending, 10, "the launch is being ended")


async def routable(cluster: Cluster) -> list[str]:
    found = (await cluster.get(cluster.admin + "/v1/status"))["routable"]
    assert isinstance(found, list)
    return found


async def only(cluster: Cluster, *launches: str, seconds: float) -> None:
    async def those() -> bool:
        return await routable(cluster) == sorted(launches)

    await until(those, seconds, f"only {launches} are routable")


async def test_a_gateway_started_while_etcd_is_frozen_does_not_feed_a_launch_that_is_ended(tmp_path: Path) -> None:
    async with with_a_stubborn_b(tmp_path) as (cluster, a, b):
        key = await key_of(cluster, "b")
        file = tmp_path / "gateway" / "gw1.snapshot.json"

        def kept() -> bool:
            found = json.loads(file.read_bytes()) if file.exists() else {"secrets": {}}
            return {s["launch"] for s in found["secrets"].values()} == {a.launch, b.launch}

        await until(kept, 10, "both are in the snapshot")
        cluster.processes["gateway"].kill()
        cluster.processes["gateway"].wait(10)
        await end(cluster, "b")
        cluster.etcd.freeze()
        try:
            await cluster.start_gateway()
            await only(cluster, a.launch, seconds=10)
            assert await answers(b, key), "its engine would have been believed"
            refused = await watch(cluster.url, body(tokens=5), group="b")
            assert refused.error is not None and refused.error["type"] == "unavailable"
            served = await watch(cluster.url, body(tokens=5))
            assert served.error is None and len(served.ids) == 5
            assert list(await cluster.get(cluster.admin + "/v1/launches")) == [a.launch]
        finally:
            cluster.etcd.thaw()


@asynccontextmanager
async def behind(target: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    await proxy.heal()
    try:
        yield proxy
    finally:
        await proxy.close()


async def test_a_gateway_that_is_cut_off_from_etcd_hears_of_an_ended_launch_from_its_daemon(tmp_path: Path) -> None:
    async with with_a_stubborn_b(tmp_path) as (cluster, a, b), behind(cluster.etcd.endpoint) as proxy:
        cluster.processes["gateway"].terminate()
        cluster.processes["gateway"].wait(15)
        cluster.gateway_flags = ["--endpoints", proxy.endpoint]
        await cluster.start_gateway()
        await cluster.ready("a", "b")
        key = await key_of(cluster, "b")
        proxy.swallow()
        await end(cluster, "b")
        await only(cluster, a.launch, seconds=20)
        assert await answers(b, key), "its engine would have gone on being fed"
        served = [await watch(cluster.url, body(tokens=5)) for _ in range(4)]
        assert [s for s in served if s.error or len(s.ids) != 5] == []
        proxy.pass_on()


async def test_a_worker_whose_daemon_is_cut_off_from_etcd_is_not_fed_once_its_registration_is_gone(
    tmp_path: Path,
) -> None:
    etcd = await LiveEtcd(BINARIES[0], tmp_path / "etcd").start()
    cluster = Cluster(tmp_path, etcd, record=False)
    try:
        async with behind(etcd.endpoint) as proxy:
            config = tmp_path / "node.yaml"
            limits = {"loadsPollSeconds": 0.4, "stallSeconds": 1.2, "probeSeconds": 0.3, "leaseTtlSeconds": 4}
            config.write_text(json.dumps({"apiVersion": "infctl/v1", "kind": "NodeConfig", "limits": limits}))
            cluster.daemon_flags = ["--endpoints", proxy.endpoint, "--config", str(config)]
            cluster.start_daemon()
            await cluster.start_gateway()
            await cluster.apply_groups(["a"], tp=1, sim=FAST)
            (a,) = await cluster.ready("a")
            key = await key_of(cluster, "a")
            proxy.swallow()

            async def gone() -> bool:
                return await cluster.endpoint("a") is None

            await until(gone, 20, "its registration is gone")
            began = asyncio.get_running_loop().time()
            await only(cluster, seconds=15)
            status = await cluster.get(cluster.admin + "/v1/status")
            assert status["in_doubt"] == [a.launch], "it was not forgotten: nobody vouches for it"
            assert asyncio.get_running_loop().time() - began < 15
            assert await answers(a, key), "its engine would have been believed"
            proxy.pass_on()
            (again,) = await cluster.ready("a", above=a.generation)
            assert again.launch == a.launch, "the same launch under its next generation"
            served = await watch(cluster.url, body(tokens=5))
            assert served.error is None and len(served.ids) == 5
    finally:
        await cluster.close()
        await etcd.close()
