"""One host's part of a launch, with the test in the owner's place: what the member's daemon does on its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from infctl.ports.store import Delete
from infctl.store.codec import encode
from infctl.store.records import FaultNotice, Generation, GroupSpec, Host, LaunchPlan, LaunchRecord
from infctl_daemon.engine.identity import identify
from tests.support.hosted import Hosts, hosts_cluster
from tests.support.noded import QUICK, until

pytestmark = [pytest.mark.faults]
LAUNCH = "g-aaaaaaaa"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Hosts]:
    async with hosts_cluster(tmp_path, ("a",)) as found:
        yield found


async def plan(cluster: Hosts, launch: str = LAUNCH, *, load: float = 60.0, revision: str = "") -> LaunchPlan:
    """Node `z` owns a launch of two hosts; its engine never answers. Ours is the second."""
    spec: GroupSpec = cluster.spec(
        "g",
        node="z",
        hosts=[Host(node="z"), Host(node="a")],
        restart=msgspec.structs.replace(QUICK, load_deadline=load),
    )
    revision = revision or identify(spec.model_path, "", "", 0).revision
    made = LaunchPlan(
        launch=launch, group="g", owner="z", spec=spec, served_model="tiny", revision=revision, leader="127.0.0.1",
        rendezvous=1, url="http://127.0.0.1:1",
    )  # fmt: skip
    keys, store = cluster.keys, cluster.store
    await store.put(keys.group_generation("g"), encode(Generation(generation=1, launch=launch, owner="z")))
    await store.put(keys.group_launch("g", launch), encode(LaunchRecord(launch=launch, group="g", node="z")))
    await store.put(keys.launch_plan("g", launch), encode(made))
    return made


async def begun(cluster: Hosts, launch: str = LAUNCH) -> None:
    async def look() -> bool:
        return (await cluster.parts(launch)).get("a") is not None and bool(cluster.daemons["a"].living("g"))

    await until(look, 20, "the part has begun")


async def test_another_model_than_the_owners_is_refused_before_anything_is_started(cluster: Hosts) -> None:
    await plan(cluster, revision="another")
    notice = await cluster.fault(LAUNCH, "g")
    assert notice.reason == "weights-wrong" and "another" in notice.evidence and notice.by == "node/a"
    assert not cluster.daemons["a"].part("g")


async def test_a_part_that_does_not_load_in_time_ends_the_launch(cluster: Hosts) -> None:
    await plan(cluster, load=2.0)
    notice = await cluster.fault(LAUNCH, "g")
    assert notice.reason == "load-timeout" and notice.evidence.startswith("node/a: ")
    await cluster.gone("g")


async def test_a_launch_that_is_replaced_is_left_and_the_next_one_begun(cluster: Hosts) -> None:
    await plan(cluster)
    await begun(cluster)
    old = cluster.daemons["a"].part("g")
    await plan(cluster, "g-bbbbbbbb")
    await begun(cluster, "g-bbbbbbbb")
    assert not {p.pid for p in old} & {p.pid for p in cluster.daemons["a"].living("g")}
    assert await cluster.store.get(cluster.keys.fault("g", LAUNCH)) is None


async def test_a_launch_that_is_over_when_its_plan_is_seen_is_not_begun(cluster: Hosts) -> None:
    daemon = cluster.daemons["a"]
    notice = FaultNotice(fault_id="f1", group="g", launch=LAUNCH, generation=1, reason="process-exited", at_ms=1.0)
    await cluster.put(cluster.keys.fault("g", LAUNCH), notice)
    await plan(cluster)
    await asyncio.sleep(1.5)
    assert not daemon.part("g") and not await cluster.parts(LAUNCH)


async def test_a_planned_end_waits_for_node_rank_0_and_then_ends_the_part(cluster: Hosts) -> None:
    await plan(cluster)
    await begun(cluster)
    owner_part = cluster.keys.group_rank("g", LAUNCH, "z")
    await cluster.store.put(owner_part, encode(msgspec.structs.replace((await cluster.parts(LAUNCH))["a"], node="z")))
    notice = FaultNotice(fault_id="f1", group="g", launch=LAUNCH, generation=1, reason="drained", at_ms=1.0)
    await cluster.put(cluster.keys.fault("g", LAUNCH), notice)
    await asyncio.sleep(1.5)
    assert cluster.daemons["a"].living("g"), "node-rank 0 is still there"
    await cluster.store.txn([], [Delete(owner_part)])
    await cluster.gone("g", 5.0)


async def test_etcd_frozen_ends_nothing_and_a_dead_rank_is_killed_and_told_later(cluster: Hosts) -> None:
    await plan(cluster)
    await begun(cluster)
    daemon = cluster.daemons["a"]
    cluster.etcd.freeze()
    try:
        await asyncio.sleep(5.0)  # longer than the lease
        assert daemon.living("g")
        os.kill(daemon.rank("g"), signal.SIGKILL)
        await cluster.gone("g", 5.0)
    finally:
        cluster.etcd.thaw()
    assert (await cluster.fault(LAUNCH, "g")).reason == "process-exited"
