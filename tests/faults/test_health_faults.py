"""Health of a launch that serves, on real processes: what takes it out of routing, what ends it, what is no fault."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from infctl.domain.health_events import Reason
from infctl.store.codec import decode
from infctl.store.records import Condition, EndpointRecord, GroupStatus, Restart, Secret
from infctl_daemon.engine.argv import MARK
from infctl_daemon.proc import procfs
from tests.support.net import free_ports
from tests.support.noded import Cluster, node_cluster, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

FAST = ["--sim-load-seconds", "0.1", "--sim-decode-seconds", "0.01"]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with node_cluster(tmp_path, start=False) as made:
        made.noded.limits |= {"loadsPollSeconds": 0.2}  # and with it the canary every three seconds
        made.noded.start()
        yield made


async def ask(cluster: Cluster, path: str, body: Any = None) -> tuple[int, Any]:
    """One call of the engine itself, past every gateway."""
    endpoint = await cluster.endpoint()
    kv = await cluster.store.get(cluster.keys.secret("a"))
    assert endpoint is not None and kv is not None
    headers = {"authorization": f"Bearer {decode(Secret, kv.value).api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.request("POST" if body else "GET", endpoint.url + path, json=body) as answer,
    ):
        raw = await answer.read()
        return answer.status, msgspec.json.decode(raw) if raw else None


def generation(prompt: int, tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": [7] * prompt, "sampling_params": sampling, "stream": False}


async def break_it(port: int, **fault: Any) -> None:
    async with aiohttp.ClientSession() as http, http.post(f"http://127.0.0.1:{port}/fault", json=fault) as answer:
        assert answer.status == 200, await answer.text()


async def endpoint_is(cluster: Cluster, state: str, seconds: float = 30.0) -> EndpointRecord:
    async def look() -> EndpointRecord | None:
        found = await cluster.endpoint()
        return found if found is not None and found.state == state else None

    return await until(look, seconds, f"endpoint is {state}")


async def condition(cluster: Cluster, kind: str, status: str, seconds: float = 15.0) -> Condition:
    async def look() -> Condition | None:
        kv = await cluster.store.get(cluster.keys.group_status("a"))
        conditions = decode(GroupStatus, kv.value).conditions if kv else []
        return next((c for c in conditions if (c.type, c.status) == (kind, status)), None)

    return await until(look, seconds, f"condition {kind} is {status}")


def health_steps(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    """Recorded steps of the health machine whose event or one of whose effects is of this type."""
    lines = [
        msgspec.json.decode(line) for f in cluster.noded.record.glob("*.jsonl") for line in f.read_bytes().splitlines()
    ]
    steps = [line for line in lines if line["machine"] == "health" and "event" in line]
    return [s for s in steps if s["event"]["type"] == kind or any(e["type"] == kind for e in s["effects"])]


async def test_wrong_tokens_while_serving_leave_routing_at_once_and_are_confirmed_before_the_end(
    cluster: Cluster,
) -> None:
    (admin,) = free_ports(1)
    await cluster.apply(cluster.spec(engine_args=[*FAST, "--sim-admin-port", str(admin)]))
    first = await cluster.ready()
    assert (await condition(cluster, "AnswersRight", "True")).since

    await break_it(admin, kind="wrong_token", on=True)
    notice = await cluster.fault(first.launch, seconds=30.0)
    assert notice.reason == "canary-failed"
    assert "2 wrong answers while serving" in notice.evidence
    doubts = health_steps(cluster, "Doubt")
    assert [e["reason"] for s in doubts for e in s["effects"] if e["type"] == "Doubt"] == [Reason.WRONG]
    second = await cluster.ready(not_launch=first.launch)
    assert second.generation == first.generation + 1


async def test_one_class_of_evidence_stops_routing_and_kills_nothing(cluster: Cluster) -> None:
    """A frozen detokenizer: the scheduler moves on, and no answer comes out."""
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    alive = len(cluster.noded.known("a").processes)
    os.kill(cluster.noded.pid("a", "detokenizer"), signal.SIGSTOP)

    unfit = await endpoint_is(cluster, "unfit", seconds=40.0)
    assert (unfit.launch, unfit.generation) == (first.launch, first.generation)
    ready = await condition(cluster, "Ready", "False")
    assert ready.reason == Reason.CANARY_SILENT
    assert (await condition(cluster, "Live", "True")).reason == Reason.ANSWERS, "liveness is another answer"
    shown = await cluster.status(phase="ready", reason=Reason.CANARY_SILENT)
    assert shown.launch == first.launch
    await asyncio.sleep(4.0)
    assert len(cluster.noded.alive()) == alive
    assert await cluster.store.get(cluster.keys.fault("a", first.launch)) is None

    os.kill(cluster.noded.pid("a", "detokenizer"), signal.SIGCONT)
    again = await endpoint_is(cluster, "ready")
    assert (again.launch, again.generation) == (first.launch, first.generation)
    await condition(cluster, "Ready", "True")


async def test_a_long_prefill_is_no_failure(cluster: Cluster) -> None:
    """It stands still for twice the stall time, with a canary waiting behind it."""
    await cluster.apply(cluster.spec(engine_args=[*FAST, "--sim-prefill-rate", "200"]))
    first = await cluster.ready()
    status, answer = await ask(cluster, "/generate", generation(prompt=500, tokens=4))
    assert status == 200 and len(answer["output_ids"]) == 4
    assert health_steps(cluster, "Doubt"), "it was noticed"
    again = await endpoint_is(cluster, "ready")
    assert (again.launch, again.generation) == (first.launch, first.generation)
    assert await cluster.store.get(cluster.keys.fault("a", first.launch)) is None


async def test_a_frozen_rank_is_found_while_health_says_200(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    stream = asyncio.ensure_future(ask(cluster, "/generate", generation(prompt=4, tokens=4000)))
    await asyncio.sleep(0.3)
    health = asyncio.ensure_future(ask(cluster, "/health"))
    await asyncio.sleep(0.4)  # tokens have come out since the call began: that is all it asks for
    os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGSTOP)
    assert not health.done()
    assert (await health)[0] == 200

    notice = await cluster.fault(first.launch, seconds=20.0)
    assert notice.reason == "hang"
    assert "no engine progress" in notice.evidence
    await asyncio.gather(stream, return_exceptions=True)
    await cluster.ready(not_launch=first.launch)


async def test_a_full_engine_sheds_its_canaries_and_is_no_fault(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec(max_running=1, max_queued=1))
    first = await cluster.ready()
    streams = [asyncio.ensure_future(ask(cluster, "/generate", generation(4, 4000))) for _ in range(2)]

    async def shed() -> bool:
        return len(health_steps(cluster, "CanaryShed")) >= 2

    await until(shed, 30.0, "two canaries were shed")
    assert not health_steps(cluster, "Doubt")
    found = await cluster.endpoint()
    assert found is not None and (found.launch, found.state) == (first.launch, "ready")
    await ask(cluster, "/abort_request", {"abort_all": True})
    await asyncio.gather(*streams)


async def test_a_crash_loop_ends_in_failed_and_a_changed_spec_clears_it(cluster: Cluster) -> None:
    few = Restart(first_delay=0.1, max_delay=0.2, attempts=2, load_deadline=30.0, canary_deadline=20.0)
    broken = cluster.spec(restart=few, engine_args=[*FAST, "--sim-fault", "die:rank=0,after=0.5"])
    began = time.monotonic()
    await cluster.apply(broken)
    await cluster.ready()
    first = cluster.footprint()
    failed = await cluster.status(phase="failed", seconds=60.0)
    assert time.monotonic() - began < 50.0, "three starts of half a second, and delays of less"
    assert failed.reason == "process-exited"
    assert "given up after 3 ends within 600 s" in failed.message
    assert "infctl restart group/a" in failed.hint and "changed specification" in failed.hint
    assert {c.type: c.status for c in failed.conditions} == {"Live": "False", "Ready": "False"}
    await asyncio.sleep(1.0)
    await cluster.nothing_left(first)
    assert await nothing_at_all(cluster)

    await cluster.apply(cluster.spec(restart=few))
    ready = await cluster.ready()
    assert ready.generation == failed.generation + 1
    assert (await cluster.status(phase="ready")).hint == ""


async def test_a_missing_model_is_given_up_after_few_tries(cluster: Cluster) -> None:
    began = time.monotonic()
    await cluster.apply(cluster.spec(model_path="/nonexistent/model"))
    failed = await cluster.status(phase="failed", reason="model-missing", seconds=30.0)
    assert failed.generation == 3
    assert "that starting again does not help" in failed.message
    assert "spec.modelPath" in failed.hint and "infctl restart group/a" in failed.hint
    assert time.monotonic() - began < 20.0, "three looks at a folder, and two delays of half a second at most"
    assert await nothing_at_all(cluster)


async def nothing_at_all(cluster: Cluster) -> bool:
    """No launch of the group has a process, a key or a key file now."""
    keys, run = cluster.keys, cluster.noded.folder / "run"
    found = [await cluster.store.get(key) for key in (keys.endpoint("a"), keys.secret("a"))]
    ranks = (await cluster.store.range(f"{keys.group('a')}ranks/")).kvs
    status = await cluster.status()
    return not (any(found) or ranks or list(run.glob("keys/*")) or procfs.marked(MARK, status.launch))


async def test_an_exit_code_0_that_nobody_asked_for_is_a_crash(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    before = cluster.footprint()
    os.kill(cluster.noded.pid("a", "main"), signal.SIGTERM)  # as by a stranger: the engine leaves in good order
    notice = await cluster.fault(first.launch)
    assert notice.reason == "process-exited"
    await cluster.nothing_left(before)
    second = await cluster.ready(not_launch=first.launch)
    assert second.generation == first.generation + 1


async def test_a_rank_that_exits_with_code_0_ends_its_launch_at_once(cluster: Cluster) -> None:
    """The engine's own watchdog takes no notice of such an end."""
    (admin,) = free_ports(1)
    await cluster.apply(cluster.spec(engine_args=[*FAST, "--sim-admin-port", str(admin)]))
    first = await cluster.ready()
    before = cluster.footprint()
    left_ms = time.time() * 1000
    await break_it(admin, kind="leave", rank="1")
    notice = await cluster.fault(first.launch, seconds=5.0)
    assert notice.reason == "process-exited" and notice.at_ms - left_ms < 1000
    assert "scheduler_TP1" in notice.evidence and "exit code 0, which nobody asked for" in notice.evidence
    await cluster.nothing_left(before)
    second = await cluster.ready(not_launch=first.launch)
    assert second.generation == first.generation + 1
