"""Drains, undrains and restarts on real processes: what clients see, what the operator is told, what is left behind."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from infctl.domain.intents import IntentKind
from infctl.ports.store import Delete, Put
from infctl.store.codec import decode, encode
from infctl.store.intent_records import Disruptions, Hold, Intent, IntentStatus
from infctl.store.records import NodeSpec, PoolSpec
from infctl.store.stamp import now_ms
from tests.support.cluster import BIN, Cluster, running
from tests.support.command import hear_interrupts
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

SIM = ("--sim-decode-seconds", "0.02", "--sim-load-seconds", "0.1")
QUICK = {"restart": {"firstDelaySeconds": 0.2, "maxDelaySeconds": 0.3, "attempts": 1000}}
ENDLESS = 20_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Two groups, either of which may go."""
    async with running(tmp_path_factory.mktemp("cluster"), tp=1, sim=SIM, **QUICK) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared: Cluster) -> AsyncIterator[Cluster]:
    """The shared cluster as it was at first, whatever the test before left: no intents, no holds, both groups ready."""
    keys = shared.keys
    pool = PoolSpec(name="tiny", model="tiny")
    await shared.store.txn([], [Delete(keys.intents, prefix=True), Put(keys.pool_spec("tiny"), encode(pool))])
    gone = [keys.node_spec("n1"), keys.disruption("tiny"), *(keys.group_hold(g) for g in ("a", "b"))]
    await shared.store.txn([], [Delete(key) for key in gone])
    await until(lambda: serve(shared), 40, "both groups serve")
    yield shared


async def serve(cluster: Cluster) -> bool:
    found = await cluster.ready("a", "b", timeout=40)
    return all(e.state == "ready" for e in found)


async def start(cluster: Cluster, tokens: int, group: str = "a", at: int = 3) -> tuple[Seen, asyncio.Task[Seen]]:
    seen = Seen()
    task = asyncio.create_task(watch(cluster.url, body(tokens=tokens), seen, group=group, timeout=100.0))
    await until(lambda: len(seen.ids) >= at or task.done(), 20, f"{at} tokens")
    return seen, task


async def said(cluster: Cluster, intent: str = "") -> IntentStatus | None:
    """The last word about the only intent, or about this one."""
    for kv in (await cluster.store.range(cluster.keys.intents)).kvs:
        parts = cluster.keys.parts(kv.key)
        if len(parts) == 4 and (not intent or parts[1] == intent):
            return decode(IntentStatus, kv.value)
    return None


async def stage(cluster: Cluster, wanted: str, seconds: float = 10.0) -> IntentStatus:
    async def look() -> IntentStatus | None:
        status = await said(cluster)
        return status if status and any(g.stage == wanted for g in status.groups) else None

    found: IntentStatus = await until(look, seconds, f"a group that is {wanted}")
    return found


async def waits(cluster: Cluster, what: str) -> bool:
    """Some open intent waits for this."""
    for kv in (await cluster.store.range(cluster.keys.intents)).kvs:
        if len(cluster.keys.parts(kv.key)) == 4:
            status = decode(IntentStatus, kv.value)
            if status.state == "running" and any(g.waits_for.startswith(what) for g in status.groups):
                return True
    return False


async def hold(cluster: Cluster, group: str = "a") -> Hold | None:
    kv = await cluster.store.get(cluster.keys.group_hold(group))
    return decode(Hold, kv.value) if kv else None


async def test_an_idle_group_is_drained_stays_stopped_and_comes_back_when_it_is_undrained(cluster: Cluster) -> None:
    print_of_a = cluster.footprint("a")
    before = await cluster.endpoint("a")
    assert before is not None

    code, out, err = await cluster.cli("drain", "group/a", "--yes", "-m", "new fan", timeout=40)

    assert (code, out) == (0, "group/a drained\n"), err
    assert "SIGTERM" in err
    await cluster.nothing_left(print_of_a, 0.5)
    held = await hold(cluster)
    assert held is not None and (held.state, held.reason) == ("drained", "new fan")
    kv = await cluster.store.get(cluster.keys.disruption("tiny"))
    assert kv is not None and decode(Disruptions, kv.value).groups == {}

    # neither a changed specification nor a new life of the daemon starts it again
    await cluster.apply_groups(["a", "b"], tp=1, sim=SIM, restart={**QUICK["restart"], "attempts": 999})
    (other,) = await cluster.ready("b")
    cluster.processes["noded"].terminate()
    cluster.processes["noded"].wait(20)
    cluster.start_daemon()
    await cluster.ready("b", above=other.generation)
    assert await cluster.endpoint("a") is None
    code, out, _ = await cluster.cli("get", "groups", "--no-headers")
    assert next(line for line in out.splitlines() if line.startswith("a ")).split()[1] == "Drained"

    assert (await cluster.cli("drain", "group/a", "--yes"))[:2] == (0, f"group/a already drained by {held.actor}\n")
    code, out, err = await cluster.cli("undrain", "group/a")
    assert (code, out) == (0, "group/a undrained\n"), err
    (after,) = await cluster.ready("a", above=before.generation)
    assert after.state == "ready"
    assert await hold(cluster) is None
    assert (await cluster.cli("undrain", "group/a"))[:2] == (0, "group/a is not drained\n")


async def test_streams_of_a_drained_group_finish_there_and_no_new_request_comes(cluster: Cluster) -> None:
    (launch,) = [e.launch for e in await cluster.ready("a")]
    _seen, task = await start(cluster, 250)
    draining = asyncio.create_task(cluster.cli("drain", "group/a", "--yes", timeout=60))
    status = await stage(cluster, "finishing")
    assert status.groups[0].streams == 1
    assert "gw1" in status.groups[0].waits_for
    assert status.groups[0].next == "SIGTERM"

    launches = await cluster.get(cluster.admin + "/v1/launches")
    dispatched = launches[launch]["dispatched"]  # type: ignore[index]
    for _ in range(10):
        other = await watch(cluster.url, body(tokens=3))
        assert other.error is None and other.done
    refused = await watch(cluster.url, body(tokens=3), group="a")
    assert refused.error is not None and refused.error["type"] == "unavailable"
    launches = await cluster.get(cluster.admin + "/v1/launches")
    assert launches[launch]["dispatched"] == dispatched  # type: ignore[index]

    code, out, err = await draining
    assert (code, out) == (0, "group/a drained\n"), err
    whole = await task
    assert whole.done and whole.error is None and len(whole.ids) == 250
    record = await cluster.stream(whole.stream)
    assert record is not None and record.migrations == 0
    assert [f.reason for f in await cluster.faults() if f.launch == launch] == ["drained"]


async def test_an_endless_stream_is_cut_at_the_deadline_with_an_error_that_names_the_drain(tmp_path: Path) -> None:
    async with running(tmp_path, ["a"], tp=1, sim=SIM, **QUICK) as cluster:
        before = cluster.footprint("a")
        _seen, task = await start(cluster, ENDLESS)
        began = time.monotonic()
        arguments = ("drain", "group/a", "--yes", "--deadline", "8s", "--allow-below-min")
        code, out, err = await cluster.cli(*arguments, timeout=60)
        took = time.monotonic() - began

        assert (code, out) == (7, "group/a drained (cut 1 stream)\n"), err
        assert "StreamsCut" in err
        # SIGTERM at half of so short a deadline, then the streams have five seconds to find another group
        assert 4.0 <= took < 25.0
        await cluster.nothing_left(before, 0.5)
        cut = await asyncio.wait_for(task, 60)
        assert not cut.done
        assert cut.error is not None and cut.error["type"] == "unavailable" and cut.error["retryable"]
        assert "drained" in cut.error["message"]


async def test_an_endless_stream_moves_to_another_group_when_its_own_is_stopped(cluster: Cluster) -> None:
    before = cluster.footprint("a")
    seen, task = await start(cluster, ENDLESS)
    code, out, err = await cluster.cli("drain", "group/a", "--yes", "--deadline", "6s", timeout=60)
    assert (code, out) == (0, "group/a drained (1 moved to other groups)\n"), err
    await cluster.nothing_left(before, 0.5)
    record = await cluster.stream(seen.stream)
    assert record is not None and record.group == "b"
    count = len(seen.ids)
    await until(lambda: len(seen.ids) > count + 20, 10, "it goes on")
    assert seen.broken == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_drain_is_taken_back_in_the_middle_and_nothing_was_lost(cluster: Cluster) -> None:
    (before,) = await cluster.ready("a")
    _seen, task = await start(cluster, 300)
    draining = asyncio.create_task(cluster.cli("drain", "group/a", "--yes", timeout=60))
    await stage(cluster, "finishing")
    endpoint = await cluster.endpoint("a")
    assert endpoint is not None and endpoint.state == "draining"
    _, out, _ = await cluster.cli("get", "groups", "--no-headers")
    assert next(line for line in out.splitlines() if line.startswith("a ")).split()[1] == "Draining"

    code, out, err = await cluster.cli("undrain", "group/a")
    assert (code, out) == (0, "group/a undrained\n"), err
    code, out, err = await draining
    assert code == 1 and "undrained" in out and "taken back" in err

    (after,) = await cluster.ready("a")
    assert (after.launch, after.generation, after.state) == (before.launch, before.generation, "ready")
    assert (await watch(cluster.url, body(tokens=3), group="a")).done
    whole = await task
    assert whole.done and len(whole.ids) == 300
    # it is wanted again: a fault is followed by a new launch
    (await cluster.tree("a"))[0].kill()
    await cluster.ready("a", above=before.generation)


async def test_a_drain_waits_for_min_ready_says_so_and_ends_when_the_rule_never_allows_it(cluster: Cluster) -> None:
    pool = PoolSpec(name="tiny", model="tiny", min_ready=2)
    await cluster.store.put(cluster.keys.pool_spec("tiny"), encode(pool))
    (before,) = await cluster.ready("a")
    engine = cluster.footprint("a")
    _seen, task = await start(cluster, 200)
    began = time.monotonic()
    draining = asyncio.create_task(cluster.cli("drain", "group/a", "--yes", "--deadline", "6s", timeout=60))
    await until(lambda: waits(cluster, "MinReady: pool/tiny needs 2 ready, 1 would be left"), 10, "it says what for")
    code, out, err = await draining
    assert (code, out) == (6, ""), err
    assert "MinReady" in err
    assert 2.5 < time.monotonic() - began < 20.0, "no later than its SIGTERM would have been, and a busy machine"
    assert cluster.footprint("a").idents == engine.idents, "no process of it was touched"
    kv = await cluster.store.get(cluster.keys.disruption("tiny"))
    assert kv is None or decode(Disruptions, kv.value).groups == {}, "it stands in nobody's way any more"
    endpoint = await cluster.endpoint("a")
    assert endpoint is not None and (endpoint.launch, endpoint.state) == (before.launch, "ready")
    assert await hold(cluster) is None
    assert (await task).done

    # as soon as the rule allows it the drain goes on, without being asked again
    draining = asyncio.create_task(cluster.cli("drain", "group/a", "--yes", timeout=60))
    await until(lambda: waits(cluster, "MinReady"), 10, "it waits again")
    spec = msgspec.structs.replace(pool, min_ready=1)
    await cluster.store.put(cluster.keys.pool_spec("tiny"), encode(spec))
    code, out, err = await draining
    assert (code, out) == (0, "group/a drained\n"), err
    await cluster.nothing_left(engine, 0.5)


async def test_a_frozen_gateway_holds_a_drain_only_as_long_as_its_lease(cluster: Cluster) -> None:
    cluster.processes["gateway"].send_signal(signal.SIGSTOP)
    try:
        draining = asyncio.create_task(cluster.cli("drain", "group/a", "--yes", timeout=60))
        status = await stage(cluster, "seeing")
        assert status.groups[0].waits_for == "gateways to see it: gw1"
        code, out, err = await draining
        assert (code, out) == (0, "group/a drained\n"), err
    finally:
        cluster.processes["gateway"].send_signal(signal.SIGCONT)


async def test_a_drain_goes_on_after_its_daemon_was_killed_in_the_middle(cluster: Cluster) -> None:
    (before,) = await cluster.ready("a")
    print_of_a = cluster.footprint("a")
    _seen, task = await start(cluster, 400)
    draining = asyncio.create_task(cluster.cli("drain", "group/a", "--yes", timeout=90))
    await stage(cluster, "finishing")
    cluster.processes["noded"].kill()
    cluster.processes["noded"].wait(5)
    cluster.start_daemon()
    code, out, err = await draining
    assert code == 0 and out.startswith("group/a drained"), err
    await cluster.nothing_left(print_of_a, 0.5)
    held = await hold(cluster)
    assert held is not None and held.state == "drained"
    whole = await asyncio.wait_for(task, 60)
    assert whole.done and len(whole.ids) == 400
    record = await cluster.stream(whole.stream)
    assert record is not None and (record.launch, record.migrations) == (before.launch, 0), "it finished where it was"
    await asyncio.sleep(1.0)
    assert await cluster.endpoint("a") is None


async def test_an_intent_of_two_days_ago_and_one_for_another_generation_are_expired(cluster: Cluster) -> None:
    (before,) = await cluster.ready("a")
    two_days = now_ms() - 2 * 86_400_000.0
    old = Intent(
        intent="iold", kind=str(IntentKind.DRAIN), target="group/a", generation=before.generation, actor="amy",
        not_after_ms=two_days + 600_000.0,
    )  # fmt: skip
    other = Intent(
        intent="iother", kind=str(IntentKind.RESTART), target="group/a", generation=before.generation + 1, actor="amy",
        not_after_ms=now_ms() + 600_000.0,
    )  # fmt: skip
    for intent in (old, other):
        await cluster.store.txn([], [Put(cluster.keys.intent(intent.intent), encode(intent))])

    async def expired(name: str) -> IntentStatus | None:
        status = await said(cluster, name)
        return status if status is not None and status.state == "expired" else None

    assert "2 d ago" in (await until(lambda: expired("iold"), 10, "the old one expires")).message
    assert "generation" in (await until(lambda: expired("iother"), 10, "the other one expires")).message
    kv = await cluster.store.get(cluster.keys.intent("iold"))
    assert kv is not None and kv.lease, "what is closed fades"
    await asyncio.sleep(0.5)
    after = await cluster.endpoint("a")
    assert after is not None and (after.launch, after.state) == (before.launch, "ready")


async def test_a_node_is_drained_cordoned_and_brought_back_with_its_groups(cluster: Cluster) -> None:
    a, b = await cluster.ready("a", "b")
    arguments = ("drain", "node/n1", "--yes", "--allow-below-min", "-m", "new kernel")
    code, out, err = await cluster.cli(*arguments, timeout=60)
    assert (code, out) == (0, "node/n1 drained\n"), err
    assert [await cluster.endpoint(g) for g in ("a", "b")] == [None, None]
    kv = await cluster.store.get(cluster.keys.node_spec("n1"))
    assert kv is not None
    spec = decode(NodeSpec, kv.value)
    assert spec.cordoned and spec.reason == "new kernel"
    _, out, _ = await cluster.cli("get", "nodes", "--no-headers")
    assert out.split()[1] == "Drained"

    code, out, err = await cluster.cli("undrain", "node/n1")
    assert (code, out) == (0, "node/n1 undrained (2 groups start again)\n"), err
    await cluster.ready("a", above=a.generation)
    await cluster.ready("b", above=b.generation)
    kv = await cluster.store.get(cluster.keys.node_spec("n1"))
    assert kv is not None and not decode(NodeSpec, kv.value).cordoned


async def test_a_cordoned_node_starts_no_new_group_but_one_that_died_again(cluster: Cluster) -> None:
    (before,) = await cluster.ready("a")
    assert (await cluster.cli("cordon", "node/n1", "-m", "fan"))[:2] == (0, "node/n1 cordoned\n")
    assert (await cluster.cli("cordon", "node/n1"))[:2] == (0, "node/n1 already cordoned\n")
    await cluster.apply_groups(["c"], tp=1, sim=SIM, **QUICK)
    (await cluster.tree("a"))[0].kill()
    await cluster.ready("a", above=before.generation)
    assert (await cluster.status("c")).message == "waits: node/n1 is cordoned"
    assert await cluster.endpoint("c") is None
    code, _, err = await cluster.cli("restart", "group/a", "--yes", timeout=30)
    assert code == 6 and "cordoned" in err
    assert (await cluster.cli("uncordon", "node/n1"))[:2] == (0, "node/n1 uncordoned\n")
    await cluster.ready("c")
    await cluster.store.txn([], [Delete(cluster.keys.group_spec("c"))])


async def test_a_restart_drains_and_launches_anew_and_now_kills(cluster: Cluster) -> None:
    (first,) = await cluster.ready("a")
    _seen, task = await start(cluster, 150)
    code, out, err = await cluster.cli("restart", "group/a", "--yes", timeout=60)
    assert code == 0 and out.startswith("group/a restarted"), err
    whole = await task
    assert whole.done and len(whole.ids) == 150
    record = await cluster.stream(whole.stream)
    assert record is not None and record.migrations == 0
    (second,) = await cluster.ready("a", above=first.generation)
    assert second.launch in out and second.state == "ready"

    _seen, task = await start(cluster, 200)
    began = time.monotonic()
    code, out, err = await cluster.cli("restart", "group/a", "--now", "--yes", timeout=60)
    assert code == 0 and "1 moved to other groups" in out, out + err
    assert time.monotonic() - began < 20
    await cluster.ready("a", above=second.generation)
    whole = await task
    assert whole.done and len(whole.ids) == 200 and whole.broken == []


async def test_a_restart_clears_failed(tmp_path: Path) -> None:
    few = {"restart": {"firstDelaySeconds": 0.1, "maxDelaySeconds": 0.1, "attempts": 1}}
    async with running(tmp_path, ["a"], tp=1, sim=SIM, **few) as cluster:
        for _ in range(2):
            (endpoint,) = await cluster.ready("a")
            (await cluster.tree("a"))[0].kill()
            await until(lambda e=endpoint: changed(cluster, e.launch), 20, "the endpoint goes")
        await until(lambda: phase(cluster, "failed"), 20, "given up")
        code, out, err = await cluster.cli("restart", "group/a", "--yes", timeout=60)
        assert code == 0 and out.startswith("group/a restarted"), err
        await cluster.ready("a")


async def changed(cluster: Cluster, launch: str) -> bool:
    found = await cluster.endpoint("a")
    return found is None or found.launch != launch


async def phase(cluster: Cluster, wanted: str) -> bool:
    return (await cluster.status("a")).phase == wanted


async def test_ctrl_c_detaches_and_the_drain_goes_on(cluster: Cluster) -> None:
    _seen, task = await start(cluster, 200)
    process = await asyncio.create_subprocess_exec(
        "infctl", "drain", "group/a", "--yes", env={**cluster.env, "PATH": f"{BIN}:{cluster.env['PATH']}"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, preexec_fn=hear_interrupts,
    )  # fmt: skip
    await stage(cluster, "finishing")
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 130
    assert b"the drain goes on" in err and b"infctl undrain group/a" in err
    assert (await task).done

    async def drained() -> bool:
        held = await hold(cluster)
        return held is not None and held.state == "drained"

    await until(drained, 30, "it is drained all the same")
