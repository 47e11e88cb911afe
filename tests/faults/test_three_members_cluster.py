"""A whole cluster on three members of etcd: what happens to them, no client of the gateway notices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from infctl.ports.store import KeyValue
from tests.support.cluster import Cluster, running
from tests.support.etcd import LiveCluster, LiveEtcd
from tests.support.traffic import traffic
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

RATE = 20.0
LEASE_S = 10.0


async def leases(cluster: Cluster) -> dict[str, int]:
    """The lease of every key that says who lives: the node, the gateway, the endpoints."""
    keys = cluster.keys
    kvs: list[KeyValue] = []
    for prefix in (keys.nodes, keys.gateways, keys.endpoints):
        kvs += (await cluster.store.range(prefix)).kvs
    return {kv.key: kv.lease for kv in kvs if kv.lease}


def connected(cluster: Cluster, name: str) -> list[LiveEtcd]:
    """The members to which a process of the cluster has a connection."""
    etcds: LiveCluster = cluster.etcd
    far = [c.raddr for c in psutil.Process(cluster.processes[name].pid).net_connections("tcp") if c.raddr]
    return [member for member in etcds.members if int(member.endpoint.rpartition(":")[2]) in {a.port for a in far}]


async def test_the_leader_is_killed_and_then_the_connected_member_frozen_and_no_stream_notices(tmp_path: Path) -> None:
    async with running(tmp_path, sim=("--sim-decode-seconds", "0.05"), etcd_members=3) as cluster:
        etcds: LiveCluster = cluster.etcd
        before = {e.group: e for e in await cluster.ready("a", "b")}
        engines = {p.pid for group in before for p in await cluster.tree(group)}
        held = await leases(cluster)
        assert len(held) == 4, held
        tokens = 500  # 25 s: longer than a lease behind each fault
        async with traffic(cluster.url, RATE) as load:
            seen = [Seen() for _ in range(6)]
            streams = [
                asyncio.create_task(watch(cluster.url, body(tokens=tokens), one, group="ab"[n % 2], timeout=100))
                for n, one in enumerate(seen)
            ]
            await until(lambda: all(len(one.ids) > 20 for one in seen), 20, "every stream runs")

            leader = await etcds.leader()
            leader.kill()
            await asyncio.sleep(6.0)
            await leader.start()
            await etcds.leader()
            # usually one; during the election the daemon may have turned to the other one and back
            for frozen in connected(cluster, "noded"):
                led = frozen is await etcds.leader()
                frozen.freeze()
                await asyncio.sleep(LEASE_S + 1.0)
                assert set(connected(cluster, "noded")) - {frozen}, "it went to another member"
                assert await leases(cluster) == held, "a lease was lost while its member hung"
                if led:
                    # a leader that thaws after that long may end leases by its own clock before it hears that it
                    # was replaced (etcd before 3.4.31); then they are really lost, which is another test
                    frozen.kill()
                    await frozen.start()
                else:
                    frozen.thaw()
                await etcds.leader()
            await asyncio.gather(*streams)
        assert load.failures == [] and load.served == load.sent > 20 * RATE
        for one in seen:
            assert one.error is None and one.broken == [] and one.done and len(one.ids) == tokens
        assert [one.ids for one in seen] == [seen[0].ids] * len(seen)
        assert {e.group: e for e in await cluster.ready("a", "b")} == before, "no restart, no new generation"
        assert {p.pid for group in before for p in await cluster.tree(group)} == engines
        assert await leases(cluster) == held and await cluster.faults() == []
        for one in seen:
            record = await cluster.stream(one.stream)
            assert record is not None and record.state == "COMPLETED" and record.migrations == 0
