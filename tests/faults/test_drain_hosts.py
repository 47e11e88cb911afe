"""Drains and cordons of a node that has a part of a group which another node owns: two real daemons, one gateway."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio
import yaml

from infctl.ports.store import Delete, Put
from infctl.store.codec import decode, encode
from infctl.store.intent_records import Hold, Intent, IntentStatus
from infctl.store.records import PoolSpec
from infctl_daemon.proc import kill
from infctl_daemon.proc.state_file import StateFile
from tests.support.cluster import BIN, Cluster, running
from tests.support.containers import remove_cgroups
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

SIM = ["--sim-decode-seconds", "0.02", "--sim-load-seconds", "0.1"]
DRAIN = ("drain", "node/n2", "--yes", "--allow-below-min")


class TwoHosts:
    """`n1` owns the group `g`, `n2` has its second rank and nothing else."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def start_member(self) -> None:
        folder = self.cluster.folder
        command = [str(BIN / "infctl-noded"), "--node", "n2", "--state-dir", str(folder / "node2")]
        command += ["--run-dir", str(folder / "run2"), "--read-api", "127.0.0.1:0", "--stop-groups-on-exit"]
        self.cluster.spawn("noded2", command)

    async def apply(self, name: str = "g") -> None:
        spec = {
            "pool": "tiny", "hosts": [{"node": "n1"}, {"node": "n2"}], "engine": "sim", "tensorParallel": 2,
            "modelPath": str(self.cluster.folder / "model"), "maxRunning": 16, "maxQueued": 16, "engineArgs": SIM,
            "restart": {"firstDelaySeconds": 0.2, "maxDelaySeconds": 0.3, "attempts": 1000},
        }  # fmt: skip
        document = {"apiVersion": "infctl/v1", "kind": "Group", "metadata": {"name": name}, "spec": spec}
        file = self.cluster.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(document))
        code, out, err = await self.cluster.cli("apply", "-f", str(file))
        assert code == 0, out + err

    def processes(self, group: str = "g") -> list[psutil.Process]:
        """Of the group's launch on both hosts, as their daemons recorded them."""
        folder = self.cluster.folder
        files = (StateFile(folder / "node"), StateFile(folder / "node2" / "parts"))
        recorded = [file.read(group).processes for file in files]
        assert all(recorded), "each host has its part"
        return [psutil.Process(p.pid) for processes in recorded for p in processes]

    async def statuses(self) -> dict[str, IntentStatus]:
        """Of the only intent, by executor."""
        keys, found = self.cluster.keys, {}
        for kv in (await self.cluster.store.range(keys.intents)).kvs:
            if len(parts := keys.parts(kv.key)) == 4:
                found[parts[3]] = decode(IntentStatus, kv.value)
        return found

    async def stage(self, wanted: str) -> IntentStatus:
        async def look() -> IntentStatus | None:
            status = (await self.statuses()).get("n1")
            return status if status and any(g.stage == wanted for g in status.groups) else None

        found: IntentStatus = await until(look, 15, f"the group is {wanted}")
        return found

    async def stream(self, tokens: int) -> tuple[Seen, asyncio.Task[Seen]]:
        seen = Seen()
        task = asyncio.create_task(watch(self.cluster.url, body(tokens=tokens), seen, group="g", timeout=60.0))
        await until(lambda: len(seen.ids) >= 3 or task.done(), 20, "3 tokens")
        return seen, task

    async def hold(self) -> Hold | None:
        kv = await self.cluster.store.get(self.cluster.keys.group_hold("g"))
        return decode(Hold, kv.value) if kv else None

    async def nodes(self) -> dict[str, str]:
        """Their phases, as people see them."""
        _, out, _ = await self.cluster.cli("get", "nodes", "--no-headers")
        return {line.split()[0]: line.split()[1] for line in out.splitlines()}

    def close(self) -> None:
        daemon, state = self.cluster.processes["noded2"], StateFile(self.cluster.folder / "node2" / "parts")
        if daemon.poll() is None:
            daemon.terminate()
            daemon.wait(20)
        for group in state.groups():
            if processes := state.leftovers(group):
                kill.kill_recorded(processes[0].ident, frozenset(p.ident for p in processes))
        remove_cgroups(self.cluster.folder / "node2")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TwoHosts]:
    async with running(tmp_path_factory.mktemp("cluster"), []) as cluster:
        hosts = TwoHosts(cluster)
        hosts.start_member()
        try:
            yield hosts
        finally:
            hosts.close()


@pytest_asyncio.fixture(loop_scope="module")
async def hosts(shared: TwoHosts) -> AsyncIterator[TwoHosts]:
    """As at first, whatever the test before left: no intents, no holds, no cordons, the group serves."""
    cluster, keys = shared.cluster, shared.cluster.keys
    pool = PoolSpec(name="tiny", model="tiny")
    await cluster.store.txn([], [Delete(keys.intents, prefix=True), Put(keys.pool_spec("tiny"), encode(pool))])
    gone = [keys.node_spec("n1"), keys.node_spec("n2"), keys.disruption("tiny"), keys.group_hold("g")]
    await cluster.store.txn([], [Delete(key) for key in gone])
    await shared.apply()

    async def serves() -> bool:
        return (await cluster.ready("g", timeout=40))[0].state == "ready"

    await until(serves, 40, "the group serves")
    yield shared


def left(processes: list[psutil.Process]) -> list[int]:
    return [p.pid for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


async def test_a_node_is_drained_of_its_part_and_the_owner_lets_the_streams_finish(hosts: TwoHosts) -> None:
    cluster, keys = hosts.cluster, hosts.cluster.keys
    (before,) = await cluster.ready("g")
    processes = hosts.processes()
    _seen, task = await hosts.stream(400)
    draining = asyncio.create_task(cluster.cli(*DRAIN, "-m", "new fan", timeout=60))

    await hosts.stage("finishing")
    said = await hosts.statuses()
    assert {node: status.state for node, status in said.items()} == {"n1": "running", "n2": "done"}
    held = await hosts.hold()
    assert held is not None and (held.by, held.state, held.reason) == ("node/n2", "draining", "new fan")
    intents = [kv for kv in (await cluster.store.range(keys.intents)).kvs if len(keys.parts(kv.key)) == 2]
    assert [decode(Intent, kv.value).executors for kv in intents] == [["n2", "n1"]]
    assert [kv.lease for kv in intents] == [0], "one of two has closed it: it stays"
    assert await hosts.nodes() == {"n1": "Ready", "n2": "Draining"}

    code, out, err = await draining
    assert (code, out) == (0, "node/n2 drained\n"), err
    assert "group/g of node/n1: ready" in err and "group/g finishing" in err
    assert left(processes) == [], "on neither host"
    whole = await task
    assert whole.done and whole.error is None and len(whole.ids) == 400
    record = await cluster.stream(whole.stream)
    assert record is not None and record.migrations == 0
    assert all(kv.lease for kv in (await cluster.store.range(keys.intents)).kvs), "what all have closed fades"
    assert await hosts.nodes() == {"n1": "Ready", "n2": "Drained"}
    assert (await cluster.status("g")).node == "n1"

    code, out, err = await cluster.cli("undrain", "node/n2")
    assert (code, out) == (0, "node/n2 undrained (node/n1: 1 group starts again)\n"), err
    await cluster.ready("g", above=before.generation)
    assert len({p.pid for p in hosts.processes()} - {p.pid for p in processes}) >= 2
    assert (await hosts.nodes(), await hosts.hold()) == ({"n1": "Ready", "n2": "Ready"}, None)
    assert (await cluster.cli("undrain", "node/n2"))[:2] == (0, "node/n2 is not drained\n")


async def test_a_drain_goes_on_after_the_owners_daemon_was_killed_and_is_no_end_for_the_others(hosts: TwoHosts) -> None:
    cluster = hosts.cluster
    processes = hosts.processes()
    _seen, task = await hosts.stream(500)
    draining = asyncio.create_task(cluster.cli(*DRAIN, timeout=100))
    await hosts.stage("finishing")
    assert (await hosts.statuses())["n2"].state == "done"
    cluster.processes["noded"].kill()
    cluster.processes["noded"].wait(5)
    cluster.start_daemon()
    code, out, err = await draining
    assert code == 0 and out.startswith("node/n2 drained"), err
    assert left(processes) == []
    whole = await asyncio.wait_for(task, 60)
    assert whole.done and len(whole.ids) == 500
    held = await hosts.hold()
    assert held is not None and held.state == "drained"


async def test_a_drain_of_the_members_node_is_taken_back_and_nothing_was_lost(hosts: TwoHosts) -> None:
    cluster = hosts.cluster
    (before,) = await cluster.ready("g")
    _seen, task = await hosts.stream(400)
    draining = asyncio.create_task(cluster.cli(*DRAIN, timeout=60))
    await hosts.stage("finishing")
    code, out, err = await cluster.cli("undrain", "node/n2")
    assert code == 0 and out.startswith("node/n2 undrained"), out + err
    code, out, err = await draining
    assert code == 1 and "undrained" in out and "taken back" in err
    (after,) = await cluster.ready("g")
    assert (after.launch, after.generation, after.state) == (before.launch, before.generation, "ready")
    assert (await hosts.nodes(), await hosts.hold()) == ({"n1": "Ready", "n2": "Ready"}, None)
    whole = await task
    assert whole.done and len(whole.ids) == 400


async def test_a_rule_that_keeps_the_group_is_named_with_the_owner_that_asked_it(hosts: TwoHosts) -> None:
    cluster = hosts.cluster
    pool = PoolSpec(name="tiny", model="tiny", min_ready=1)
    await cluster.store.put(cluster.keys.pool_spec("tiny"), encode(pool))
    (before,) = await cluster.ready("g")
    code, out, err = await cluster.cli("drain", "node/n2", "--yes", "--deadline", "6s", timeout=60)
    assert (code, out) == (6, ""), err
    assert "node/n1: MinReady" in err
    (after,) = await cluster.ready("g")
    assert (after.launch, after.state) == (before.launch, "ready")
    assert await hosts.hold() is None


async def test_on_a_cordoned_member_a_group_is_not_begun_but_one_that_died_starts_again(hosts: TwoHosts) -> None:
    cluster = hosts.cluster
    (before,) = await cluster.ready("g")
    assert (await cluster.cli("cordon", "node/n2", "-m", "fan"))[:2] == (0, "node/n2 cordoned\n")
    await hosts.apply("new")
    hosts.processes()[-1].send_signal(signal.SIGKILL)
    await cluster.ready("g", above=before.generation)
    assert (await cluster.status("new")).message == "waits: node/n2 is cordoned"
    assert await cluster.endpoint("new") is None
    code, _, err = await cluster.cli("restart", "group/g", "--yes", timeout=30)
    assert code == 6 and "node/n2 is cordoned" in err
    assert (await cluster.cli("uncordon", "node/n2"))[:2] == (0, "node/n2 uncordoned\n")
    await cluster.ready("new")
    await cluster.store.txn([], [Delete(cluster.keys.group_spec("new"))])
