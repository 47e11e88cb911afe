"""Rank keys over the store in memory: late, unclear and refused writes, other leases, what is withdrawn meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from infctl.adapters.memory_store import MemoryStore
from infctl.ports.store import Compare, Op, Put, TxnResult
from infctl.store.codec import decode, encode
from infctl.store.keys import Keys
from infctl.store.records import FaultNotice, LaunchRecord, RankPart
from infctl_daemon.node import rank_keys
from infctl_daemon.node.rank_keys import RankKeys
from tests.support.noded import until

KEYS = Keys("default")
ONE = "g-aaaaaaaa"
KEY = KEYS.group_rank("g", ONE, "b")


class SlowStore(MemoryStore):
    """Holds every write of a rank key back while `open` is not set; `came` says that one is on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.came = asyncio.Event(), asyncio.Event()
        self.open.set()
        self.writes: list[RankPart] = []

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = (), *, timeout: float = 5.0
    ) -> TxnResult:
        puts = [op for op in then if isinstance(op, Put) and "/ranks/" in op.key]
        if puts:
            self.came.set()
            await self.open.wait()
            self.writes.append(decode(RankPart, puts[0].value))
        return await super().txn(compares, then, orelse, timeout=timeout)


class Host:
    """Node `b` and its keys."""

    def __init__(self, store: SlowStore) -> None:
        self.store = store
        self.lease = 0
        self.keys = RankKeys(store, KEYS, lambda: self.lease)

    async def leased(self) -> None:
        self.lease = (await self.store.grant(60)).id
        self.keys.leased()

    def say(self, state: str, launch: str = ONE) -> None:
        self.keys.say(RankPart(launch=launch, group="g", node="b", node_rank=1, state=state))

    async def there(self) -> RankPart | None:
        kv = await self.store.get(KEY)
        return decode(RankPart, kv.value) if kv else None

    async def says(self, state: str) -> None:
        """Wait until the store does: a state, or "" for no key."""

        async def look() -> bool:
            part = await self.there()
            return (part.state if part else "") == state

        await until(look, 10, f"the key says {state!r}")

    async def wrote(self, times: int) -> None:
        async def look() -> bool:
            return len(self.store.writes) == times

        await until(look, 10, f"{times} writes")

    async def rest(self) -> None:
        """Nothing is left to do."""
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    monkeypatch.setattr(rank_keys, "RETRY", 0.01)
    store = SlowStore()
    await store.put(KEYS.group_launch("g", ONE), encode(LaunchRecord(launch=ONE, group="g", node="a")))
    host = Host(store)
    await host.leased()
    running = asyncio.get_running_loop().create_task(host.keys.run())
    yield host
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.close()


async def test_what_is_said_hangs_on_the_nodes_lease(host: Host) -> None:
    host.say("loading")
    await host.says("loading")
    kv = await host.store.get(KEY)
    assert kv is not None and kv.lease == host.lease


async def test_without_a_lease_nothing_is_written_until_there_is_one(host: Host) -> None:
    host.lease = 0
    host.say("loading")
    await host.rest()
    assert await host.there() is None
    await host.leased()
    await host.says("loading")


async def test_with_another_lease_everything_is_written_again(host: Host) -> None:
    host.say("loaded")
    await host.says("loaded")
    host.store.expire(host.lease)
    await host.says("")
    await host.leased()
    await host.says("loaded")
    kv = await host.store.get(KEY)
    assert kv is not None and kv.lease == host.lease


async def test_a_lease_that_went_before_anybody_said_so_is_waited_out(host: Host) -> None:
    host.store.expire(host.lease)
    host.say("loaded")
    await host.rest()
    assert await host.there() is None
    await host.leased()
    await host.says("loaded")


async def test_what_a_store_that_is_away_did_not_take_is_written_later(host: Host) -> None:
    host.store.unavailable = True
    host.say("loading")
    await asyncio.sleep(0.05)
    host.say("loaded")
    host.store.unavailable = False
    await host.says("loaded")


async def test_a_write_without_an_answer_is_tried_again(host: Host) -> None:
    host.store.unclear_writes = 1
    host.say("loading")
    await host.wrote(2)
    assert await host.there() is not None


async def test_the_same_word_is_written_once(host: Host) -> None:
    host.say("loaded")
    await host.says("loaded")
    host.say("loaded")
    await host.rest()
    assert len(host.store.writes) == 1


@pytest.mark.parametrize("over", ["gone", "fault"])
async def test_a_launch_that_is_over_gets_no_key_and_is_not_asked_for_for_ever(host: Host, over: str) -> None:
    if over == "gone":
        host.say("loading", "g-bbbbbbbb")
    else:
        notice = FaultNotice(fault_id="f1", group="g", launch=ONE, generation=1, reason="drained", at_ms=1.0)
        await host.store.put(KEYS.fault("g", ONE), encode(notice))
        host.say("loading")
    await asyncio.sleep(0.05)
    assert len(host.store.writes) == 1
    assert not (await host.store.range(f"{KEYS.group('g')}ranks/")).kvs


async def test_what_is_withdrawn_leaves_no_key(host: Host) -> None:
    host.say("loaded")
    await host.says("loaded")
    host.keys.withdraw("g", ONE, "b")
    await host.says("")


async def test_a_withdrawal_wins_over_a_write_that_is_on_its_way(host: Host) -> None:
    host.store.open.clear()
    host.say("loaded")
    await host.store.came.wait()
    host.keys.withdraw("g", ONE, "b")
    host.store.open.set()
    await host.wrote(1)  # it could not be held back any more
    await host.says("")
    await host.rest()
    assert await host.there() is None


async def test_what_is_said_after_a_withdrawal_is_written_though_it_is_the_same_word(host: Host) -> None:
    """A write that came back after its withdrawal must not count as there."""
    host.store.open.clear()
    host.say("loaded")
    await host.store.came.wait()
    host.keys.withdraw("g", ONE, "b")
    host.store.open.set()
    await host.wrote(1)
    await host.says("")
    host.say("loaded")
    await host.says("loaded")


async def test_what_is_withdrawn_before_its_turn_is_never_written(host: Host) -> None:
    """Two keys wait; while the first is on its way the second one's launch ends."""
    two = "g-bbbbbbbb"
    await host.store.put(KEYS.group_launch("g", two), encode(LaunchRecord(launch=two, group="g", node="a")))
    host.store.open.clear()
    host.say("loaded")
    host.say("loading", two)
    await host.store.came.wait()
    host.keys.withdraw("g", two, "b")
    host.store.open.set()
    await host.says("loaded")
    await host.rest()
    assert [part.launch for part in host.store.writes] == [ONE]


async def test_only_the_newest_word_that_waits_is_written(host: Host) -> None:
    two = "g-bbbbbbbb"
    await host.store.put(KEYS.group_launch("g", two), encode(LaunchRecord(launch=two, group="g", node="a")))
    host.store.open.clear()
    host.say("loaded", two)
    host.say("loading")
    await host.store.came.wait()
    host.say("loaded")
    host.store.open.set()
    await host.says("loaded")
    assert [(part.launch, part.state) for part in host.store.writes] == [(two, "loaded"), (ONE, "loaded")]


async def test_a_withdrawal_that_the_store_did_not_take_is_tried_again(host: Host) -> None:
    host.say("loaded")
    await host.says("loaded")
    host.store.unavailable = True
    host.keys.withdraw("g", ONE, "b")
    await asyncio.sleep(0.05)
    host.store.unavailable = False
    await host.says("")


async def test_the_moment_is_that_of_the_write_and_no_part_of_the_word(host: Host) -> None:
    host.say("loaded")
    await host.says("loaded")
    part = await host.there()
    assert part is not None and part.at
    assert msgspec.structs.replace(part, at="") == RankPart(
        launch=ONE, group="g", node="b", node_rank=1, state="loaded"
    )
