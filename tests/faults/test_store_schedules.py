"""Schedules of faults in which the store is the one that fails: etcd freezes, fills up, comes late, or is replaced.

Real processes; each test is named like the schedule in docs/design.md that it carries out.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from infctl.adapters.etcd import EtcdStore
from infctl.adapters.etcd.admin import EtcdAdmin
from infctl.ports.store import Delete
from infctl.store.codec import decode
from infctl.store.intent_records import Hold
from infctl.store.records import Generation
from tests.support import noded as nodes
from tests.support.cluster import Cluster, running
from tests.support.etcd import BINARIES, fill, live_etcd, store_on
from tests.support.late import late_proxy
from tests.support.traffic import traffic
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

STEADY = ("--sim-decode-seconds", "0.05", "--sim-first-token-seconds", "0.004")
QUICK = {"restart": {"firstDelaySeconds": 0.3, "maxDelaySeconds": 0.3, "attempts": 1000}}
FREEZE_S = 60.0
RATE = 50.0


def stream(cluster: Cluster, number: int, tokens: int, group: str) -> tuple[Seen, asyncio.Task[Seen]]:
    """A long stream that begins on `group`; streams of one number ask for the same."""
    seen = Seen()
    request = body(prompt=[11 + number, 12, 13], tokens=tokens)
    return seen, asyncio.create_task(watch(cluster.url, request, seen, group=group, timeout=110))


def alive(pids: set[int]) -> set[int]:
    return {p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE}


async def pids(cluster: Cluster, group: str) -> set[int]:
    return {p.pid for p in await cluster.tree(group)}


async def test_etcd_frozen_for_a_minute_with_live_traffic_no_restart_no_fenced_frame(tmp_path: Path) -> None:
    """Every lease of the daemon runs out; meanwhile it is killed and comes back, a rank dies, and a drain is under way.

    No client notices any of it.
    """
    names = ("a", "b", "c", "d")
    async with running(tmp_path, names, tp=1, sim=STEADY, **QUICK) as cluster:
        before = {e.group: e for e in await cluster.ready(*names)}
        engines = {g: cluster.footprint(g) for g in before}
        rank = await cluster.rank("a", 0)
        async with traffic(cluster.url, RATE) as load:
            tokens = int(FREEZE_S / 0.05)  # so they still run at the thaw
            doomed = [stream(cluster, n, tokens, "a") for n in range(3)]
            safe = [stream(cluster, n, tokens, "b") for n in range(3)]
            drained = stream(cluster, 0, tokens, "c")
            await until(lambda: all(len(s.ids) > 20 for s, _ in [*doomed, *safe, drained]), 20, "all long streams run")
            code, out, err = await cluster.cli("drain", "group/c", "--no-wait", "--yes")
            assert code == 0, out + err
            await until(lambda: _state(cluster, "c", "draining"), 10, "group c is being drained")
            await asyncio.sleep(1.0)  # the gateway has seen it
            dispatched = await _dispatched(cluster, before["c"].launch)
            cluster.etcd.freeze()
            try:
                await asyncio.sleep(FREEZE_S / 6)
                cluster.processes["noded"].kill()
                cluster.processes["noded"].wait(5)
                cluster.start_daemon()
                await until(lambda: cluster.log("noded").count("launch.adopted") == 4, 15, "all are taken over")
                await asyncio.sleep(FREEZE_S / 6)
                rank.kill()
                await until(lambda: not engines["a"].living, 5, "the daemon ended the wounded group by itself")
                await asyncio.sleep(FREEZE_S * 2 / 3)
            finally:
                cluster.etcd.thaw()
            for _, task in [*doomed, *safe, drained]:
                await task
            again = {e.group: e for e in await cluster.ready("a", "b", "d")}

            async def raised() -> bool:
                for group in again:
                    found = await cluster.endpoint(group)
                    if found is None or found.generation <= before[group].generation:
                        return False
                    again[group] = found
                return True

            await until(raised, 20, "the endpoints are back under a higher generation")
            await cluster.ready("a", "b", "d")
            await until(lambda: _held(cluster, "c", "drained"), 30, "the drain came to its end")
            await cluster.nothing_left(engines["c"])
            assert await _dispatched(cluster, before["c"].launch) == dispatched, "what is drained got a new request"
            served = load.served
            await until(lambda: load.served > served + 100, 20, "traffic goes on")
        assert load.failures == [] and load.served == load.sent > FREEZE_S * RATE
        for (moved, _), (stayed, _) in zip(doomed, safe, strict=True):
            for seen in (moved, stayed, drained[0]):
                assert seen.error is None and seen.broken == [] and seen.done and len(seen.ids) == tokens
            assert moved.ids == stayed.ids and moved.text == stayed.text and moved.usage == stayed.usage
        assert again["a"].launch != before["a"].launch
        fresh = await watch(cluster.url, body(tokens=5), group="a")
        assert fresh.error is None and len(fresh.ids) == 5, "the new launch serves"
        for group in ("b", "d"):
            assert again[group].launch == before[group].launch
            assert cluster.footprint(group).idents == engines[group].idents, "a healthy engine was restarted"
        status = await cluster.get(cluster.admin + "/v1/status")
        assert not [name for name in status["counters"] if name.startswith("dropped")], "a frame was fenced"
        told = {f.launch: f.reason for f in await cluster.faults()}
        assert told == {before["a"].launch: "process-exited", before["c"].launch: "drained"}
        for seen in (*(s for s, _ in safe), drained[0]):
            record = await cluster.stream(seen.stream)
            assert record is not None and record.state == "COMPLETED" and record.migrations == 0
        await cluster.nothing_left(engines["a"])
        left = (engines["b"], engines["d"], cluster.footprint("a"))
    assert not [one for one in left if one.living or one.in_shm], "an engine outlived its cluster"


async def _state(cluster: Cluster, group: str, state: str) -> bool:
    found = await cluster.endpoint(group)
    return found is not None and found.state == state


async def _held(cluster: Cluster, group: str, state: str) -> bool:
    found = await cluster.one(cluster.keys.group_hold(group), Hold)
    return found is not None and found.state == state


async def _dispatched(cluster: Cluster, launch: str) -> object:
    launches: dict[str, Any] = await cluster.get(cluster.admin + "/v1/launches")
    return launches[launch]["dispatched"]


async def test_publish_times_out_rank_dies_late_publish_applies_refused(tmp_path: Path) -> None:
    """The write that nobody waits for any more reaches the store after the notice of its launch's end."""
    async with (
        live_etcd(BINARIES[0], tmp_path / "etcd") as etcd,
        store_on(etcd.endpoint) as store,
        late_proxy(etcd.endpoint) as proxy,
    ):
        noded = nodes.Noded(tmp_path / "n1", proxy.endpoint, limits={"leaseTtlSeconds": 20})
        cluster = nodes.Cluster(etcd, store, noded, nodes.model(tmp_path / "model"))
        try:
            noded.start()
            proxy.hold(b'"published_at"')
            await cluster.apply(cluster.spec())
            await asyncio.wait_for(proxy.holding.wait(), 25)
            kv = await store.get(cluster.keys.group_generation("a"))
            assert kv is not None
            first = decode(Generation, kv.value)
            timed_out = '"PublishEndpoint"'
            await until(lambda: timed_out in noded.log.read_text(), 15, "the daemon gives up on its publish")
            assert (await cluster.endpoint()) is None
            os.kill(noded.pid("a", "scheduler_TP1"), signal.SIGKILL)
            proxy.cut()
            notice = await cluster.fault(first.launch, seconds=15.0)
            assert notice.reason == "process-exited"
            await asyncio.sleep(0.5)
            proxy.answer = b""  # what watches told the old connection so far

            await proxy.deliver()
            await until(lambda: b"fault_id" in proxy.answer, 10, "the store ran the late publish and read back why not")
            found = await cluster.endpoint()
            assert found is None or found.launch != first.launch, "a dead launch was published"
            second = await cluster.ready(not_launch=first.launch)
            assert second.generation > first.generation
        finally:
            await noded.close()


async def test_nospace_the_dead_endpoint_still_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full database takes no notice: a lone delete and the gateway's own eyes must do, and the repair ends it."""
    monkeypatch.setattr("infctl.adapters.etcd_binary.QUOTA_BYTES", 6 << 20)
    async with running(tmp_path, ("a", "b"), sim=STEADY, **QUICK) as cluster:
        before, other = await cluster.ready("a", "b")
        filled = await fill(cluster.store, "filler/")
        rank = await cluster.rank("a", 1)
        async with traffic(cluster.url, 20.0) as load:
            seen, task = stream(cluster, 1, 100, "a")
            await until(lambda: len(seen.ids) > 20, 20, "the stream runs")
            rank.kill()
            await until(lambda: _gone(cluster, "a"), 10, "the endpoint of the dead launch left the full store")
            await task
            status = await cluster.get(cluster.admin + "/v1/status")
            assert status["routable"] == [other.launch]
            assert await cluster.faults() == [], "there was no room for a notice"

            for n in range(filled):
                await cluster.store.txn((), (Delete(f"filler/{n}"),))
            admin = EtcdAdmin(cluster.store)
            await cluster.store.compact((await cluster.store.status()).revision)
            await admin.defragment()
            for alarm in await admin.alarms():
                await admin.disarm(alarm)
            (again,) = await cluster.ready("a", above=before.generation)
        assert load.failures == [] and load.served == load.sent
        assert seen.error is None and seen.broken == [] and seen.done and len(seen.ids) == 100
        assert again.launch != before.launch
        fresh = await watch(cluster.url, body(tokens=5), group="a")
        assert fresh.error is None and len(fresh.ids) == 5


async def _gone(cluster: Cluster, group: str) -> bool:
    return await cluster.endpoint(group) is None


def _shouts(cluster: Cluster, process: str) -> bool:
    return any("revision" in x and '"level": "error"' in x for x in cluster.log(process).splitlines())


async def _told(cluster: Cluster) -> dict[str, str] | None:
    told = {e.actor: e.message for e in await cluster.events("store.replaced")}
    return told if len(told) == 2 else None


async def test_database_restored_from_a_backup_hold_and_shout(tmp_path: Path) -> None:
    """An older state of the same cluster, which soon grows past what we knew: nobody believes it, nothing restarts."""
    async with running(tmp_path, ("a", "b"), sim=STEADY, **QUICK) as cluster:
        data = tmp_path / "etcd" / "data"
        before, old_b = await cluster.ready("a", "b")
        cluster.etcd.freeze()
        shutil.copytree(data, tmp_path / "backup")
        cluster.etcd.thaw()
        (await cluster.rank("b", 1)).kill()
        (new_b,) = await cluster.ready("b", above=old_b.generation)
        engines = {g: await pids(cluster, g) for g in ("a", "b")}
        known = (await cluster.store.status()).revision
        async with traffic(cluster.url, 20.0) as load:
            seen, task = stream(cluster, 1, 300, "a")
            await until(lambda: len(seen.ids) > 20, 20, "the stream runs")
            cluster.etcd.kill()
            shutil.rmtree(data)
            shutil.copytree(tmp_path / "backup", data)
            await cluster.etcd.start()
            await until(lambda: _shouts(cluster, "noded") and _shouts(cluster, "gateway"), 15, "both say so")
            async with store_on(cluster.etcd.endpoint) as other:
                at = (await other.status()).revision
                assert at < known, "the backup is older"
                for n in range(known - at + 50):
                    at = await other.put(f"new/{n}", b"")
                # longer than every lease of theirs: an owner that believed this store would have lost its launch
                await asyncio.sleep(12.0)
                expired = {cluster.keys.endpoint(g) for g in engines} | {cluster.keys.node_lease("n1")}
                ours = [kv for kv in (await other.range(cluster.keys.root)).kvs if kv.mod_revision > at]
                assert [kv.key for kv in ours if kv.key not in expired] == [], "somebody wrote into the other database"
            for group, expected in engines.items():
                assert alive(expected) == expected, f"{group} was restarted"
            said = await cluster.get(cluster.url + "/ready")
            assert said["store"] == "replaced" and "revision" in str(said["store_replaced"]) and said["ready"] is True
            status = await cluster.get(cluster.admin + "/v1/status")
            assert status["routable"] == sorted([before.launch, new_b.launch]), "the table is the one from before"
            await task
        assert load.failures == [] and load.served == load.sent
        assert seen.error is None and seen.broken == [] and seen.done and len(seen.ids) == 300
        left = set().union(*engines.values())

        # somebody looked at it, wants it, and starts the processes again
        for name in ("noded", "gateway"):
            cluster.processes[name].terminate()
            cluster.processes[name].wait(30)
        await cluster.store.close()
        cluster.store = EtcdStore([cluster.etcd.endpoint])
        cluster.start_daemon()
        await cluster.start_gateway()
        again, again_b = await cluster.ready("a", "b")
        assert again_b.generation > new_b.generation, "the daemon's own file knows more than the backup"
        assert again.generation > before.generation
        assert (await cluster.get(cluster.url + "/ready"))["store"] == "ok"
        told = await until(lambda: _told(cluster), 10, "events of both tell of it")
        assert f"group b had generation {new_b.generation} and has {old_b.generation}" in told["gateway/gw1"]
        assert f"the store knows {old_b.generation}: was it restored?" in told["node/n1"]
    assert alive(left) == set()
