"""A gateway that dies and starts again while etcd is away: it serves from its disk, and only whom a probe confirms."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.support.cluster import Cluster, running
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.timeout(90)]

FAST = ("--sim-decode-seconds", "0.02")
QUICK = {"restart": {"firstDelaySeconds": 0.3, "maxDelaySeconds": 0.3, "attempts": 1000}}


def file_of(cluster: Cluster) -> Path:
    return cluster.folder / "gateway" / "gw1.snapshot.json"


async def kept(cluster: Cluster, *launches: str) -> dict[str, object]:
    """The file, once it names all these launches and their keys."""

    def complete() -> dict[str, object] | None:
        if not file_of(cluster).exists():
            return None
        found = json.loads(file_of(cluster).read_bytes())
        named = {e["launch"] for e in found["endpoints"]}, {s["launch"] for s in found["secrets"].values()}
        return found if all(set(launches) <= names for names in named) else None

    found: dict[str, object] = await until(complete, 10, "the snapshot is on disk")
    return found


def kill_gateway(cluster: Cluster) -> None:
    process = cluster.processes["gateway"]
    process.kill()
    process.wait(10)


async def ready(cluster: Cluster) -> tuple[int, dict[str, object]]:
    async with aiohttp.ClientSession() as http, http.get(cluster.url + "/ready") as answer:
        return answer.status, await answer.json()


async def serving(cluster: Cluster) -> dict[str, object]:
    async def good() -> dict[str, object] | None:
        status, said = await ready(cluster)
        return said if status == 200 else None

    said: dict[str, object] = await until(good, 10, "the gateway is ready")
    return said


@pytest.mark.parametrize("how", ["frozen", "stopped"])
async def test_a_gateway_started_while_etcd_is_away_serves_from_its_snapshot(tmp_path: Path, how: str) -> None:
    async with running(tmp_path, ("a", "b"), sim=FAST, **QUICK) as cluster:
        a, b = await cluster.ready("a", "b")
        file = await kept(cluster, a.launch, b.launch)
        assert stat.S_IMODE(file_of(cluster).stat().st_mode) == 0o600
        if how == "frozen":
            cluster.etcd.freeze()
        else:
            cluster.etcd.kill()
        try:
            kill_gateway(cluster)
            (await cluster_rank(cluster, "b")).kill()  # its endpoint cannot be withdrawn, and stays in the file
            await cluster.start_gateway()
            said = await serving(cluster)
            assert said["from_snapshot"] is True and said["store"] == "away"
            assert said["groups"] == ["a"], "who did not answer a probe gets nothing"
            assert said["snapshot_revision"] == file["revision"]
            age_ms = said["snapshot_age_ms"]
            assert isinstance(age_ms, float) and 0 < age_ms < 60_000
            fresh = await asyncio.gather(*(watch(cluster.url, body(tokens=10)) for _ in range(20)))
            assert [s for s in fresh if s.error or s.broken or len(s.ids) != 10] == []
            launches = await cluster.get(cluster.admin + "/v1/launches")
            assert list(launches) == [a.launch], "nothing was sent to the dead group"
            long = Seen()
            task = asyncio.create_task(watch(cluster.url, body(tokens=400), long))
            await until(lambda: len(long.ids) > 20, 10, "a long stream runs")
        finally:
            if how == "frozen":
                cluster.etcd.thaw()
            else:
                await cluster.etcd.start()
        record = await until(lambda: cluster.stream(long.stream), 20, "the running stream is journalled")
        assert record.state == "DECODING" and record.launch == a.launch
        (again,) = await cluster.ready("b", above=b.generation)
        assert again.launch != b.launch
        said = await serving(cluster)
        assert said["from_snapshot"] is False and said["store"] == "ok"
        await task
        assert long.error is None and long.broken == [] and len(long.ids) == 400
        fresh_b = await watch(cluster.url, body(tokens=5), group="b")
        assert fresh_b.error is None and len(fresh_b.ids) == 5
        assert int((await kept(cluster, again.launch))["revision"]) > int(file["revision"])  # type: ignore[call-overload]


async def cluster_rank(cluster: Cluster, group: str) -> psutil.Process:
    """A rank by its process tree: the store cannot be asked."""
    state = json.loads((cluster.folder / "node" / "groups" / f"{group}.json").read_bytes())
    return next(psutil.Process(p["pid"]) for p in state["processes"] if "TP1" in p["title"])


async def test_a_worker_that_changed_its_key_since_the_snapshot_is_not_used(tmp_path: Path) -> None:
    async with running(tmp_path, ("a", "b"), sim=FAST, **QUICK) as cluster:
        a, b = await cluster.ready("a", "b")
        await kept(cluster, a.launch, b.launch)
        kill_gateway(cluster)
        (await cluster.rank("b", 1)).kill()
        cluster.admin = ""
        (again,) = await cluster.ready("b", above=b.generation)
        assert again.url == b.url, "the new launch listens where the old one did"
        cluster.etcd.freeze()
        try:
            await cluster.start_gateway()
            assert (await serving(cluster))["groups"] == ["a"]
            refused = await watch(cluster.url, body(tokens=5), group="b")
            assert refused.error is not None and refused.error["type"] == "unavailable" and refused.error["retryable"]
            served = [await watch(cluster.url, body(tokens=5)) for _ in range(6)]
            assert [s for s in served if s.error or len(s.ids) != 5] == []
            assert list(await cluster.get(cluster.admin + "/v1/launches")) == [a.launch]
        finally:
            cluster.etcd.thaw()
        await cluster.ready("a", "b")


async def test_a_snapshot_that_cannot_be_trusted_is_refused_and_said(tmp_path: Path) -> None:
    async with running(tmp_path, ("a",), tp=1, sim=FAST, **QUICK) as cluster:
        (a,) = await cluster.ready("a")
        found = await kept(cluster, a.launch)
        whole = file_of(cluster).read_bytes()
        kill_gateway(cluster)
        cluster.etcd.freeze()

        def write(data: bytes, mode: int = 0o600) -> None:
            file_of(cluster).write_bytes(data)
            os.chmod(file_of(cluster), mode)

        try:
            for why, change, flags in (
                ("damaged", lambda: write(whole[: len(whole) // 2]), []),
                ("damaged", lambda: write(b"\xff\x00 garbage"), []),
                ("mode 0644", lambda: write(whole, 0o644), []),
                ("of cluster 'other'", lambda: write(json.dumps({**found, "cluster": "other"}).encode()), []),
                ("s old", lambda: write(whole), ["--snapshot-max-age", "1"]),
            ):
                change()
                cluster.gateway_flags = flags
                said_before = cluster.log("gateway").count("snapshot.refused")
                await cluster.start_gateway()
                refused = lambda: cluster.log("gateway").count("snapshot.refused") > said_before  # noqa: B023, E731
                await until(refused, 10, f"refused: {why}")
                line = [x for x in cluster.log("gateway").splitlines() if "snapshot.refused" in x][-1]
                assert why in json.loads(line)["why"]
                status, said = await ready(cluster)
                assert status == 503 and said["from_snapshot"] is False and said["groups"] == []
                assert cluster.processes["gateway"].poll() is None, "it must go on, and wait for the store"
                kill_gateway(cluster)
            # an age within the limit serves until the limit is reached, and no longer
            write(whole)
            age = time.time() - float(found["taken_ms"]) / 1000.0  # type: ignore[arg-type]
            cluster.gateway_flags = ["--snapshot-max-age", str(age + 6.0)]
            await cluster.start_gateway()
            await serving(cluster)
            await until(lambda: _not_ready(cluster), 15, "the snapshot is too old to go on")
        finally:
            cluster.etcd.thaw()
        await cluster.ready("a")
        assert (await serving(cluster))["from_snapshot"] is False


async def _not_ready(cluster: Cluster) -> bool:
    return (await ready(cluster))[0] == 503
