"""Intents about a node that several daemons carry out: each its share, and all of it kept until the last is done."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import structlog

from infctl.adapters.memory_store import MemoryStore
from infctl.client.intents import Written, follow
from infctl.domain.intents import IntentKind
from infctl.ports.store import Delete, TxnResult
from infctl.store.codec import decode, encode
from infctl.store.intent_records import Hold, Intent, IntentStatus
from infctl.store.keys import Keys
from infctl.store.records import GroupSpec, Host, NodeSpec
from infctl.store.stamp import now_ms
from infctl_daemon.node.intent_book import Entry
from infctl_daemon.node.intents import Intents
from infctl_daemon.node.leases import RotatingLease
from infctl_daemon.node.world import World

K = Keys()


def intent(name: str = "i1", kind: IntentKind = IntentKind.DRAIN, **fields: Any) -> Intent:
    base = {"target": "node/n2", "executors": ["n2", "n1"], "actor": "amy", "not_after_ms": now_ms() + 60_000.0}
    return Intent(intent=name, kind=str(kind), **{**base, **fields})


class Interleaving(MemoryStore):
    """Whoever writes at the same time gets a turn between a look and the write that stands on it."""

    async def txn(self, *args: Any, **kwargs: Any) -> TxnResult:
        await asyncio.sleep(0)
        return await super().txn(*args, **kwargs)


async def entry(store: MemoryStore, node: str, wanted: Intent) -> Entry:
    kv = await store.get(K.intent(wanted.intent))
    assert kv is not None
    made = Entry(store, K, node, wanted, kv.value, RotatingLease(store, ttl=60.0, rotation=10.0))
    assert await made.look("")
    return made


async def leases(store: MemoryStore) -> set[int]:
    kvs = (await store.range(K.intents)).kvs
    assert len(kvs) == 3
    return {kv.lease for kv in kvs}


async def test_the_intent_and_every_status_stay_until_the_last_executor_has_closed_its_own() -> None:
    store, wanted = MemoryStore(), intent()
    await store.put(K.intent("i1"), encode(wanted))
    first, second = await entry(store, "n2", wanted), await entry(store, "n1", wanted)
    assert await second.write(second.fresh("running"))
    await first.close(first.fresh("done", outcome="cordoned"))
    assert await leases(store) == {0}
    assert await second.write(second.fresh("running", message="on"), []), "the other's last word is not in the way"
    await second.close(second.fresh("done", outcome="drained"))
    assert 0 not in await leases(store)
    assert len(await leases(store)) == 1


async def test_of_two_that_close_at_the_same_moment_one_sees_that_it_is_the_last() -> None:
    store, wanted = Interleaving(), intent()
    await store.put(K.intent("i1"), encode(wanted))
    entries = [await entry(store, node, wanted) for node in ("n1", "n2")]
    await asyncio.gather(*(e.close(e.fresh("done", outcome="drained")) for e in entries))
    assert 0 not in await leases(store)


async def test_an_intent_that_was_deleted_is_not_written_again() -> None:
    store, wanted = MemoryStore(), intent()
    await store.put(K.intent("i1"), encode(wanted))
    one = await entry(store, "n1", wanted)
    await store.txn([], [Delete(K.intents, prefix=True)])
    async with asyncio.timeout(5):
        await one.close(one.fresh("done"))
    assert not (await store.range(K.intents)).kvs


class Daemon:
    """The intents of one node, told of everything that is in the store, with no group that runs."""

    def __init__(self, store: MemoryStore, node: str, groups: dict[str, GroupSpec] | None = None) -> None:
        self.world = World(owners={name: spec.node for name, spec in (groups or {}).items()})
        self.world.specs = {name: (spec, 1) for name, spec in (groups or {}).items() if spec.node == node}
        events = SimpleNamespace(say=lambda *words, **fields: None)
        log = structlog.get_logger()
        context: Any = SimpleNamespace(node=node, store=store, keys=K, world=self.world, log=log, events=events)
        self.intents = Intents(context, lambda group: None, lambda group: None)
        self._store = store

    async def carry_out(self) -> None:
        for kv in (await self._store.range(K.groups)).kvs:
            if kv.key.endswith("/hold"):
                hold = decode(Hold, kv.value)
                self.world.holds[hold.group] = hold
        for kv in (await self._store.range(K.intents)).kvs:
            self.intents.changed(K.parts(kv.key)[1:], kv.value)
        self.intents.begin()
        while tasks := [task for task in self.intents._tasks.values() if not task.done()]:
            await asyncio.wait(tasks)
        await self.intents.close()


async def said(store: MemoryStore, node: str, name: str = "i1") -> IntentStatus | None:
    kv = await store.get(K.intent_status(name, node))
    return decode(IntentStatus, kv.value) if kv else None


async def outcome(store: MemoryStore, node: str, name: str = "i1") -> str:
    status = await said(store, node, name)
    return status.outcome if status else ""


async def test_each_executor_does_its_share_and_nobody_else_does_anything() -> None:
    store = MemoryStore()
    await store.put(K.intent("i1"), encode(intent()))
    await Daemon(store, "n3").carry_out()
    assert len((await store.range(K.intents)).kvs) == 1
    await Daemon(store, "n2").carry_out()
    kv = await store.get(K.node_spec("n2"))
    assert kv is not None and decode(NodeSpec, kv.value).cordoned
    assert [await outcome(store, node) for node in ("n2", "n1")] == ["cordoned", ""]
    before = kv.mod_revision
    await Daemon(store, "n1").carry_out()
    assert await outcome(store, "n1") == "drained", "the other's last word was not ours"
    kv = await store.get(K.node_spec("n2"))
    assert kv is not None and kv.mod_revision == before, "a node is cordoned by its own daemon alone"
    assert await store.get(K.node_spec("n1")) is None
    first = await said(store, "n1")
    await Daemon(store, "n1").carry_out()
    assert await said(store, "n1") == first, "once each"


async def test_a_drain_that_was_taken_back_before_anybody_began_it_is_not_begun() -> None:
    store = MemoryStore()
    await store.put(K.intent("i1"), encode(intent()))
    await store.put(K.intent("i2"), encode(intent("i2", IntentKind.UNDRAIN)))
    await Daemon(store, "n2").carry_out()
    assert (await outcome(store, "n2"), await outcome(store, "n2", "i2")) == ("undrained", "unchanged")
    assert await store.get(K.node_spec("n2")) is None
    # one for another node, or an earlier one, takes nothing back
    await store.put(K.intent("i0"), encode(intent("i0", IntentKind.UNDRAIN)))
    await store.put(K.intent("i4"), encode(intent("i4", target="node/n1", executors=["n1"])))
    await store.put(K.intent("i5"), encode(intent("i5", IntentKind.UNDRAIN)))
    await Daemon(store, "n1").carry_out()
    assert await outcome(store, "n1", "i4") == "drained"


async def test_each_owner_lets_its_own_groups_go_and_the_node_those_that_nobody_is_asked_for() -> None:
    store = MemoryStore()

    def group(name: str, *nodes: str) -> GroupSpec:
        hosts = [Host(node=node) for node in nodes]
        return GroupSpec(name=name, pool="p", node=nodes[0], hosts=hosts, model_path="/m", max_running=1, max_queued=1)

    groups = {g.name: g for g in (group("a", "n1", "n2"), group("b", "n2", "n1"), group("c", "n3", "n2"))}
    for name in (*groups, "gone"):
        hold = Hold(group=name, intent="i1", by="node/n2", state="drained")
        await store.put(K.group_hold(name), encode(hold))
    await store.put(K.group_hold("other"), encode(Hold(group="other", intent="i0", by="group/other", state="drained")))
    for one in (*groups.values(), group("other", "n4")):
        await store.put(K.group_spec(one.name), encode(one))
    undrain = intent("i2", IntentKind.UNDRAIN, executors=["n2", "n1"])  # n3 took `c` after it was written
    await store.put(K.intent("i2"), encode(undrain))
    await store.put(K.node_spec("n2"), encode(NodeSpec(cordoned=True, drain="i1")))

    async def held() -> list[str]:
        """But of a group that was deleted: any daemon may remove that."""
        parts = [K.parts(kv.key) for kv in (await store.range(K.groups)).kvs]
        return sorted(name for _, name, what in parts if what == "hold" and name != "gone")

    await Daemon(store, "n1", groups).carry_out()
    assert await held() == ["b", "c", "other"]
    status = await said(store, "n1", "i2")
    assert status is not None and (status.outcome, status.message) == ("undrained", "1 group starts again")
    await Daemon(store, "n2", groups).carry_out()
    assert await held() == ["other"]
    kv = await store.get(K.node_spec("n2"))
    assert kv is not None and not decode(NodeSpec, kv.value).cordoned


async def test_who_follows_hears_of_every_executor_until_the_last_word_of_all() -> None:
    store, wanted = MemoryStore(), intent()
    revision = await store.put(K.intent("i1"), encode(wanted))

    async def listen() -> list[tuple[str, str]]:
        heard = follow(store, K, Written(wanted, ("n2", "n1"), revision))
        return [(status.executor, status.state) async for status in heard]

    listening = asyncio.create_task(listen())
    for node, state in (("n2", "done"), ("n1", "running"), ("n1", "failed")):
        await asyncio.sleep(0.01)
        assert not listening.done()
        status = IntentStatus(intent="i1", executor=f"node/{node}", state=state)
        await store.put(K.intent_status("i1", node), encode(status))
    async with asyncio.timeout(5):
        assert await listening == [("node/n2", "done"), ("node/n1", "running"), ("node/n1", "failed")]
