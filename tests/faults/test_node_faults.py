"""Faults of engines, of the daemon and of the store, on real processes: what the node daemon makes of each."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from infctl.store.codec import decode
from infctl.store.intent_records import Hold
from infctl.store.records import Drain, FaultNotice, Generation, KnownAnswer, LaunchRecord, Secret, Suspicion
from infctl.store.stamp import now_text
from infctl_daemon.engine import identity
from infctl_daemon.engine.argv import MARK
from infctl_daemon.node.launch import PORT_WAIT
from infctl_daemon.proc import procfs
from tests.support.noded import QUICK, Cluster, node_cluster, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(90)]

SWEPT_S = 3.0  # from the fault until nothing is left of the launch: a moment, and slack for a busy machine


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with node_cluster(tmp_path) as made:
        yield made


async def _nothing_alive(cluster: Cluster, pids: list[int], seconds: float = 10.0) -> None:
    async def gone() -> bool:
        return not [p for p in cluster.noded.alive() if p.pid in pids]

    await until(gone, seconds, f"processes {pids} are gone")


async def _generation(cluster: Cluster) -> Generation:
    kv = await cluster.store.get(cluster.keys.group_generation("a"))
    assert kv is not None
    return decode(Generation, kv.value)


@pytest.mark.parametrize("victim", ["scheduler_TP1", "main", "detokenizer"])
async def test_a_killed_process_withdraws_the_endpoint_and_brings_a_new_launch(cluster: Cluster, victim: str) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    before = cluster.footprint()
    assert len(before.living) >= 4 and len(before.in_shm) == 3

    killed_ms = time.time() * 1000
    os.kill(cluster.noded.pid("a", victim), signal.SIGKILL)
    notice = await cluster.fault(first.launch, seconds=3.0)

    assert notice.reason == "process-exited"
    assert notice.generation == first.generation
    assert notice.at_ms - killed_ms < 500
    after = await cluster.endpoint()
    assert after is None or after.launch != first.launch
    await cluster.nothing_left(before, SWEPT_S)
    second = await cluster.ready(not_launch=first.launch)
    assert second.generation == first.generation + 1
    records = await cluster.store.range(f"{cluster.keys.group('a')}launches/")
    assert [decode(LaunchRecord, kv.value).launch for kv in records.kvs] == [second.launch]


async def test_the_engine_key_is_in_the_store_and_in_a_private_file_only(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    ready = await cluster.ready()
    kv = await cluster.store.get(cluster.keys.secret("a"))
    assert kv is not None
    endpoint = await cluster.store.get(cluster.keys.endpoint("a"))
    assert endpoint is not None
    assert kv.lease == endpoint.lease != 0
    secret = decode(Secret, kv.value)
    assert secret.launch == ready.launch

    main = cluster.noded.pid("a", "main")
    for what in ("cmdline", "environ"):
        assert secret.api_key.encode() not in Path(f"/proc/{main}/{what}").read_bytes()
    files = list((cluster.noded.folder / "run" / "keys").iterdir())
    assert [stat.S_IMODE(f.stat().st_mode) for f in files] == [0o600]
    assert secret.api_key in files[0].read_text()


@pytest.mark.parametrize("victim", ["scheduler_TP1", "main"])
async def test_a_frozen_process_is_a_hang_once_two_classes_of_evidence_agree(cluster: Cluster, victim: str) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    before = cluster.footprint()

    frozen_ms = time.time() * 1000
    os.kill(cluster.noded.pid("a", victim), signal.SIGSTOP)
    notice = await cluster.fault(first.launch, seconds=20.0)

    # stalled for 1.2 s, then a canary of its own that must be silent twice
    assert 1200 < notice.at_ms - frozen_ms < 15_000
    assert notice.reason == "hang"
    assert "no engine progress" in notice.evidence
    assert "canary" in notice.evidence
    await cluster.nothing_left(before, SWEPT_S)
    second = await cluster.ready(not_launch=first.launch)
    assert second.generation == first.generation + 1


async def test_a_suspicion_of_a_gateway_alone_kills_nothing_but_confirms_a_stall_at_once(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    seen = Suspicion(group="a", launch=first.launch, gateway="g1", kind="silence", at=now_text())
    await cluster.put(cluster.keys.suspicion("a", first.launch, "g1"), seen)
    await asyncio.sleep(3.0)
    still = await cluster.endpoint()
    assert still is not None and (still.launch, still.state) == (first.launch, "ready")

    os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGSTOP)
    again = Suspicion(group="a", launch=first.launch, gateway="g1", kind="silence", at=now_text())
    await cluster.put(cluster.keys.suspicion("a", first.launch, "g1"), again)
    notice = await cluster.fault(first.launch, seconds=6.0)
    assert "g1 saw silence" in notice.evidence


async def test_a_lease_really_lost_is_followed_by_a_new_generation_of_the_same_launch(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    kv = await cluster.store.get(cluster.keys.node_lease("n1"))
    assert kv is not None
    await cluster.store.revoke(kv.lease)

    async def raised() -> bool:
        found = await cluster.endpoint()
        return found is not None and found.generation == first.generation + 1

    await until(raised, 15.0, "the same launch under the next generation")
    found = await cluster.endpoint()
    assert found is not None and found.launch == first.launch


async def test_a_rank_that_dies_while_etcd_is_frozen_is_killed_at_once_and_told_later(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    before = cluster.footprint()
    old = [ident.pid for ident in before.idents]
    cluster.etcd.freeze()
    await asyncio.sleep(0.5)

    killed_ms = time.time() * 1000
    os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGKILL)
    await _nothing_alive(cluster, old, seconds=2.0)
    await asyncio.sleep(1.0)
    cluster.etcd.thaw()

    notice = await cluster.fault(first.launch)
    assert notice.reason == "process-exited"
    assert "scheduler_TP1" in notice.evidence
    assert notice.at_ms - killed_ms < 500, "the notice carries the moment of the death, not of the write"
    await cluster.nothing_left(before, SWEPT_S)
    second = await cluster.ready(not_launch=first.launch)
    assert second.generation > first.generation


async def test_a_fault_notice_by_another_member_ends_the_launch(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    old = [p.pid for p in cluster.noded.known("a").processes]
    notice = FaultNotice(
        fault_id="f-test", group="a", launch=first.launch, generation=first.generation, reason="device", by="node/n2"
    )
    await cluster.put(cluster.keys.fault("a", first.launch), notice)
    await _nothing_alive(cluster, old, seconds=5.0)
    second = await cluster.ready(not_launch=first.launch)
    assert second.generation == first.generation + 1


async def test_sigterm_leaves_no_process_no_endpoint_and_no_key_file_behind(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    before = cluster.footprint()
    cluster.noded.signal(signal.SIGTERM)
    assert await cluster.noded.ended() == 0
    await cluster.nothing_left(before, 0.0)
    assert await cluster.store.get(cluster.keys.node_lease("n1")) is None
    assert (await cluster.fault(first.launch)).reason == "daemon-stopped"
    assert not list((cluster.noded.folder / "run" / "keys").iterdir())
    assert cluster.noded.known("a").processes == []


async def test_a_second_sigterm_does_not_wait_for_an_engine_that_ignores_the_first(cluster: Cluster) -> None:
    spec = cluster.spec(engine_args=["--sim-load-seconds", "0.1", "--sim-fault", "ignore_sigterm:on=true"])
    await cluster.apply(spec)
    await cluster.ready()
    before = cluster.footprint()
    cluster.noded.signal(signal.SIGTERM)
    await asyncio.sleep(1.5)
    assert before.living
    cluster.noded.signal(signal.SIGTERM)
    assert await cluster.noded.ended(10.0) == 0
    await cluster.nothing_left(before, 0.0)


async def test_a_group_that_ignores_sigterm_is_killed_whole_when_its_grace_is_over(cluster: Cluster) -> None:
    spec = cluster.spec(engine_args=["--sim-load-seconds", "0.1", "--sim-fault", "ignore_sigterm:on=true"])
    await cluster.apply(msgspec.structs.replace(spec, drain=Drain(hand_over=0.5, deadline=4.0, kill_grace=2.0)))
    await cluster.ready()
    before = cluster.footprint()
    began = time.monotonic()
    await cluster.delete("a")
    await asyncio.sleep(1.5)
    assert len(before.living) >= 4, "SIGTERM went to the main process alone, and its time is not over"
    await cluster.nothing_left(before, 2.0 + SWEPT_S)
    assert time.monotonic() - began >= 2.0


async def test_sigterm_while_etcd_is_away_still_stops_the_engines_and_ends(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    await cluster.ready()
    cluster.etcd.freeze()
    cluster.noded.signal(signal.SIGTERM)
    assert await cluster.noded.ended(25.0) == 0
    assert cluster.noded.alive() == []


async def test_a_deleted_group_is_stopped_and_its_generation_stays(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    before = cluster.footprint()
    await cluster.delete("a")
    await cluster.status(phase="idle")
    await cluster.nothing_left(before, SWEPT_S)
    assert (await _generation(cluster)).generation == first.generation


async def test_the_hold_of_a_group_goes_with_the_group(cluster: Cluster) -> None:
    """Also when the group was deleted while no daemon was there; another node's group keeps its own."""
    keys = cluster.keys

    async def held() -> set[str]:
        return {kv.key for kv in (await cluster.store.range(keys.groups)).kvs if kv.key.endswith("/hold")}

    def hold(group: str) -> Hold:
        return Hold(group=group, intent="i1", by=f"group/{group}", state="drained", actor="amy")

    await cluster.put(keys.group_hold("a"), hold("a"))
    await cluster.apply(cluster.spec())
    assert (await cluster.status()).message == "drained by amy"
    await cluster.delete("a")

    async def nobody() -> bool:
        return not await held()

    await until(nobody, 5.0, "the hold of the deleted group is gone")

    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    await cluster.apply(cluster.spec(name="elsewhere", node="n2"))
    for group in ("ghost", "elsewhere"):
        await cluster.put(keys.group_hold(group), hold(group))
    cluster.noded.start()

    async def one() -> bool:
        return await held() == {keys.group_hold("elsewhere")}

    await until(one, 40.0, "only the group that exists is held")


async def test_a_taken_port_is_said_before_anything_is_loaded(cluster: Cluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        began = time.monotonic()
        few = msgspec.structs.replace(QUICK, attempts=1)
        await cluster.apply(cluster.spec(port=taken.getsockname()[1], restart=few))
        found = await cluster.status(reason="port-taken", seconds=30.0)
        assert time.monotonic() - began < PORT_WAIT + 25.0, "once the kernel had its time, before a model is loaded"
        assert "is taken by another process" in found.message
        failed = await cluster.status(phase="failed", seconds=30.0)
        assert failed.processes == 0 and procfs.marked(MARK, failed.launch) == []
        assert await cluster.endpoint() is None and await cluster.store.get(cluster.keys.secret("a")) is None
        assert not list((cluster.noded.folder / "run").glob("keys/*"))


async def test_a_missing_model_and_a_refused_argument_are_said_in_the_status(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec(name="b", model_path="/nonexistent/model"))
    await cluster.apply(cluster.spec(name="c", engine_args=["--incremental-streaming-output"]))
    missing = await cluster.status("b", reason="model-missing")
    assert "/nonexistent/model does not exist" in missing.message
    refused = await cluster.status("c", reason="arguments-refused")
    assert "breaks recovery" in refused.message


async def test_a_wrong_canary_answer_keeps_the_endpoint_unpublished(cluster: Cluster) -> None:
    model = identity.identify(str(cluster.model_path))
    prompt = identity.encode(model.tokenizer, "The quick brown fox jumps over")
    known = KnownAnswer(revision=model.revision, input_ids=prompt, output_ids=[1] * 8)
    await cluster.put(cluster.keys.pool_answer("p"), known)
    await cluster.apply(cluster.spec())
    found = await cluster.status(reason="canary-failed")
    assert "known answer" in found.message
    assert await cluster.endpoint() is None


async def test_a_daemon_without_a_store_waits_and_begins_when_it_is_there(tmp_path: Path) -> None:
    async with node_cluster(tmp_path, start=False) as cluster:
        cluster.etcd.freeze()
        cluster.noded.start()
        await asyncio.sleep(2.0)
        assert cluster.noded.process is not None and cluster.noded.process.poll() is None
        cluster.etcd.thaw()
        await cluster.apply(cluster.spec(tp=1))
        await cluster.ready()
