"""Permission to disrupt a pool: two drainers never both take the last spare group, dead holders do not count."""

from __future__ import annotations

import asyncio
from typing import Any

from infctl.adapters.memory_store import MemoryStore
from infctl.domain.disruption import Rule
from infctl.ports.store import Delete, TxnResult
from infctl.store.codec import decode, encode
from infctl.store.intent_records import Disruption, Disruptions
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, NodeLease, PoolSpec
from infctl_daemon.node.permission import Permissions

K = Keys()


def endpoint(group: str, state: str = "ready") -> EndpointRecord:
    return EndpointRecord(
        group=group, pool="p", node="n1", generation=1, launch=f"{group}-1", url="", model="m", revision="r",
        tokenizer="", tokenizer_digest="", context_length=1, vocab_size=1, max_running=1, max_queued=1, state=state,
    )  # fmt: skip


class Interleaving(MemoryStore):
    """Whoever asks at the same time gets a turn between a look and the write that stands on it."""

    async def txn(self, *args: Any, **kwargs: Any) -> TxnResult:
        await asyncio.sleep(0)
        return await super().txn(*args, **kwargs)


async def pool_of(*groups: str, nodes: tuple[str, ...] = ("n1", "n2")) -> MemoryStore:
    store = Interleaving()
    for group in groups:
        await store.put(K.endpoint(group), encode(endpoint(group)))
    for node in nodes:
        await store.put(K.node_lease(node), encode(NodeLease(node=node, boot_id="b", incarnation="i")))
    return store


async def entered(store: MemoryStore) -> set[str]:
    kv = await store.get(K.disruption("p"))
    return set(decode(Disruptions, kv.value).groups) if kv else set()


async def test_of_two_drainers_at_once_one_has_to_wait() -> None:
    store = await pool_of("a", "b")
    pool = PoolSpec(name="p", model="m", min_ready=1, disruptions=2)
    asked = [("a", Permissions(store, K, "n1")), ("b", Permissions(store, K, "n2"))]
    answers = await asyncio.gather(*(p.ask(g, pool, f"i-{g}", below_min=False) for g, p in asked))
    assert [x.rule for x in answers if x is not None] == [Rule.MIN_READY]
    assert len(await entered(store)) == 1
    winner = next(i for i, x in enumerate(answers) if x is None)
    loser = 1 - winner
    await asked[winner][1].give_back(asked[winner][0], "p", f"i-{asked[winner][0]}")
    assert await asked[loser][1].ask(asked[loser][0], pool, "i-2", below_min=False) is None


async def test_the_budget_counts_living_holders_only() -> None:
    store = await pool_of("a", "b", "c", "d", nodes=("n1", "n2"))
    pool = PoolSpec(name="p", model="m", min_ready=1)
    held = {"b": Disruption(node="n2", intent="i1"), "c": Disruption(node="gone", intent="i0")}
    await store.put(K.disruption("p"), encode(Disruptions(pool="p", groups=held)))
    mine = Permissions(store, K, "n1")
    wait = await mine.ask("a", pool, "i2", below_min=False)
    assert wait is not None and wait.rule is Rule.BUDGET and "group/b" in wait.why and "group/c" not in wait.why
    kv = await store.get(K.node_lease("n2"))
    assert kv is not None
    await store.txn([], [Delete(K.node_lease("n2"))])
    assert await mine.ask("a", pool, "i2", below_min=False) is None
    assert await entered(store) == {"a"}


async def test_a_group_that_does_not_serve_needs_no_permission_and_enters_nothing() -> None:
    store = await pool_of("b")
    await store.put(K.endpoint("a"), encode(endpoint("a", "draining")))
    pool = PoolSpec(name="p", model="m", min_ready=1)
    assert await Permissions(store, K, "n1").ask("a", pool, "i", below_min=False) is None
    assert await entered(store) == set()


async def test_an_entry_is_given_back_by_its_own_intent_only_and_old_ones_are_swept() -> None:
    store = await pool_of("a", "b", "c")
    pool = PoolSpec(name="p", model="m", min_ready=1, disruptions=5)
    mine, other = Permissions(store, K, "n1"), Permissions(store, K, "n2")
    assert await mine.ask("a", pool, "i1", below_min=False) is None
    assert await other.ask("b", pool, "i2", below_min=False) is None
    await mine.give_back("a", "p", "another")
    assert await entered(store) == {"a", "b"}
    await mine.forget_all_but({"i1"})
    assert await entered(store) == {"a", "b"}
    await mine.forget_all_but(set())
    assert await entered(store) == {"b"}, "another node's entry is its own affair"
