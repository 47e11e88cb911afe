"""A group over three hosts: one of them is cut off from etcd, or loses power (DESIGN R2, R6)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from infctl.store.records import EndpointRecord
from tests.support import netns
from tests.support.hosts_cluster import STORE, HostedCluster, hosted
from tests.support.needs import need
from tests.support.noded import until

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


def standing(cluster: HostedCluster, state: str) -> Callable[[], Coroutine[Any, Any, EndpointRecord | None]]:
    async def look() -> EndpointRecord | None:
        found = await cluster.endpoint("g")
        return found if found is not None and found.state == state else None

    return look
