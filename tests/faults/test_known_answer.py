"""Groups of one pool that answer differently, on real processes: who may serve, and what is said about it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infctl.store.codec import decode
from infctl.store.records import EventRecord, GroupSpec, Host, KnownAnswer, Secret
from infctl_daemon.proc import ports
from tests.support.noded import Cluster, node_cluster, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]


LONG = 60.0  # a busy machine starts engines slowly; nothing here is measured


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with node_cluster(tmp_path) as made:
        yield made


def group(cluster: Cluster, name: str, *args: str) -> GroupSpec:
    return cluster.spec(name=name, tp=1, engine_args=["--sim-load-seconds", "0.1", *args])


async def events(cluster: Cluster) -> list[EventRecord]:
    found = await cluster.store.range(cluster.keys.events)
    records = [decode(EventRecord, kv.value) for kv in found.kvs]
    return [e for e in records if e.kind.startswith("answer.")]


async def test_two_groups_that_agree_outvote_a_wrong_first_and_each_turn_is_told_once(cluster: Cluster) -> None:
    bad = group(cluster, "a", "--sim-fault", "wrong_token")
    await cluster.apply(bad)
    first = await cluster.ready("a", seconds=LONG)

    await cluster.apply(group(cluster, "b"))
    refused = await cluster.status("b", reason="canary-failed", seconds=LONG)
    assert refused.message.startswith("group/b answered ")
    assert refused.message.endswith("given only by group/a")
    assert await cluster.endpoint("b") is None

    await cluster.apply(group(cluster, "c"))
    await cluster.ready("c", seconds=LONG)
    await cluster.ready("b", seconds=LONG)  # its next try is right
    kv = await cluster.store.get(cluster.keys.pool_answer("p"))
    assert kv is not None
    known = decode(KnownAnswer, kv.value)
    assert (known.confirmed, sorted(v.group for v in known.voices)) == (True, ["b", "c"])

    os.kill(cluster.noded.pid("a", "main"), signal.SIGKILL)
    await cluster.fault(first.launch, "a")
    outvoted = await cluster.status("a", reason="canary-failed", seconds=LONG)
    assert outvoted.message.endswith("agreed by group/b and group/c")
    assert await cluster.endpoint("a") is None

    async def told() -> list[EventRecord] | None:
        found = await events(cluster)
        return found if len(found) >= 3 else None

    found = await until(told)
    assert [e.kind for e in found] == ["answer.recorded", "answer.differs", "answer.confirmed"]
    assert {e.subject for e in found} == {"pool/p"}


async def test_what_the_daemon_cannot_run_yet_is_said_and_nothing_is_started(cluster: Cluster) -> None:
    hosts = [Host(node="n1"), Host(node="n2")]
    await cluster.apply(cluster.spec(name="wide", hosts=hosts))
    await cluster.apply(cluster.spec(name="half", role="prefill"))

    async def said(name: str) -> str:
        return (await cluster.status(name)).message

    wide = await until(lambda: said("wide"))
    half = await until(lambda: said("half"))
    assert wide == "waits for node/n2: no daemon is registered there"
    assert half.startswith("role prefill is asked for")
    for name in ("wide", "half"):
        assert (await cluster.status(name)).phase == "idle"
        assert await cluster.store.get(cluster.keys.group_generation(name)) is None
    # the same group on one host is started at once
    await cluster.apply(cluster.spec(name="wide"))
    await cluster.ready("wide", seconds=LONG)


async def test_an_engine_sees_its_groups_gpus_and_all_its_ranks_are_waited_for(cluster: Cluster) -> None:
    uuids = [f"GPU-0000000{i}-0000-0000-0000-000000000000" for i in range(4)]
    await cluster.apply(cluster.spec(tp=2, pp=2, hosts=[Host(node="n1", gpus=uuids)]))
    await cluster.ready(seconds=LONG)
    ranks = [p for p in cluster.noded.known("a").processes if "scheduler" in p.title]
    assert len(ranks) == 4
    environ = Path(f"/proc/{cluster.noded.pid('a', 'main')}/environ").read_bytes().split(b"\0")
    assert f"CUDA_VISIBLE_DEVICES={','.join(uuids)}".encode() in environ
    assert b"CUDA_DEVICE_ORDER=PCI_BUS_ID" in environ


async def test_each_launch_meets_at_another_port_that_was_free(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec(tp=2))
    first = await cluster.ready(seconds=LONG)
    ports = [nccl_port(cluster)]
    os.kill(cluster.noded.pid("a", "main"), signal.SIGKILL)
    second = await cluster.ready(not_launch=first.launch, seconds=LONG)
    ports.append(nccl_port(cluster))
    assert first.url == second.url
    base = int(first.url.rpartition(":")[2])
    assert ports[0] != ports[1]
    assert all(base + 260 <= port < base + 300 for port in ports)
    kv = await cluster.store.get(cluster.keys.secret("a"))
    assert kv is not None
    key = decode(Secret, kv.value).api_key
    main = Path(f"/proc/{cluster.noded.pid('a', 'main')}")
    assert key.encode() not in (main / "cmdline").read_bytes() + (main / "environ").read_bytes()


async def test_a_rendezvous_port_that_is_taken_is_passed_over(cluster: Cluster) -> None:
    base = ports.choose(str(cluster.noded.folder), ())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base + 260))
        taken.listen(1)
        await cluster.apply(cluster.spec(tp=2, port=base))
        found = await cluster.ready(seconds=LONG)
        assert found.url.endswith(f":{base}")
        assert nccl_port(cluster) == base + 261


def nccl_port(cluster: Cluster) -> int:
    words = Path(f"/proc/{cluster.noded.pid('a', 'main')}/cmdline").read_text().split("\0")
    return int(words[words.index("--nccl-port") + 1])
