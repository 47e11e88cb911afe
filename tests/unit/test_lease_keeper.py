"""The lease keeper against a store that answers on command and a clock that only moves when told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from infctl.adapters.memory_store import MemoryStore
from infctl.domain.errors import InvariantBroken, LeaseLost, StoreError, StoreUnavailable
from infctl.domain.lease import Holding
from infctl.ports.store import Lease
from infctl.store.lease_keeper import RETRY_S, TRY_S, LeaseKeeper

UNAVAILABLE = StoreUnavailable("no answer")
GONE = LeaseLost("gone")


class FakeTime:
    """A clock and the sleeps that hang on it; `advance` runs everything that falls due."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps = 0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        event = asyncio.Event()
        self._sleepers.append((self.now + seconds, event))
        await event.wait()

    async def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            await _settle()
            due = min((at for at, event in self._sleepers if not event.is_set()), default=until + 1)
            if due > until:
                break
            self.now = max(self.now, due)
            for at, event in self._sleepers:
                if at <= self.now:
                    event.set()
            self._sleepers = [(at, event) for at, event in self._sleepers if not event.is_set()]
        self.now = until
        await _settle()


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class FakeStore:
    """Only leases. `answer` is the TTL to give, or the error to raise; each call takes `takes` seconds."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time
        self.answer: float | Exception = 10.0
        self.takes = 0.0
        self.renewals: list[float] = []
        self.revoked: list[int] = []

    async def grant(self, ttl_s: float, *, timeout: float = 5.0) -> Lease:
        await self._answer()
        return Lease(7, ttl_s)

    async def keep_alive(self, lease_id: int, *, timeout: float = 1.5) -> float:
        assert timeout == TRY_S
        self.renewals.append(self.time.now)
        return await self._answer()

    async def revoke(self, lease_id: int, *, timeout: float = 5.0) -> None:
        await self._answer()
        self.revoked.append(lease_id)

    async def _answer(self) -> float:
        if self.takes:
            await self.time.sleep(self.takes)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def store(time: FakeTime) -> FakeStore:
    return FakeStore(time)


@pytest.fixture
async def make(store: Any, time: FakeTime) -> Any:
    made: list[LeaseKeeper] = []

    def keeper(on_change: Callable[[Holding], None] | None = None) -> LeaseKeeper:
        made.append(LeaseKeeper(store, 10, time, on_change=on_change, sleep=time.sleep))
        return made[-1]

    yield keeper
    for each in made:
        await each.stop(revoke=False)


async def test_the_deadline_counts_from_sending_and_not_from_the_answer(
    make: Any, store: FakeStore, time: FakeTime
) -> None:
    keeper = make()
    store.takes = 1.0
    starting = asyncio.create_task(keeper.start())
    await time.advance(1.0)
    assert await starting == 7 == keeper.lease_id
    assert keeper.deadline == 1010.0
    await time.advance(4.5)  # half of the 9 s that remained
    assert store.renewals == [1005.5] and keeper.deadline == 1010.0
    await time.advance(1.0)
    assert keeper.deadline == 1015.5


async def test_it_renews_at_half_of_what_remains(make: Any, store: FakeStore, time: FakeTime) -> None:
    await make().start()
    await time.advance(20.0)
    assert store.renewals == [1005.0, 1010.0, 1015.0, 1020.0]


async def test_a_renewal_that_failed_is_tried_again_quickly(make: Any, store: FakeStore, time: FakeTime) -> None:
    keeper = make()
    await keeper.start()
    store.answer = UNAVAILABLE
    await time.advance(6.0)
    assert store.renewals[:3] == pytest.approx([1005.0, 1005.0 + RETRY_S, 1005.0 + 2 * RETRY_S])
    store.answer = 10.0
    await time.advance(RETRY_S)
    assert keeper.deadline > 1016.0 and keeper.holding is Holding.HELD


async def test_an_unavailable_store_never_loses_the_lease(make: Any, store: FakeStore, time: FakeTime) -> None:
    changes: list[Holding] = []
    keeper = make(changes.append)
    await keeper.start()
    store.answer = UNAVAILABLE
    await time.advance(9.9)
    assert not keeper.uncertain.is_set()
    await time.advance(600.0)
    assert keeper.uncertain.is_set() and not keeper.lost.is_set() and keeper.holding is Holding.UNCERTAIN
    store.answer = 10.0
    await time.advance(1.0)
    assert keeper.holding is Holding.HELD and not keeper.uncertain.is_set()
    assert changes == [Holding.UNCERTAIN, Holding.HELD]


@pytest.mark.parametrize("error", [StoreError("refused"), RuntimeError("a bug"), OSError("socket")])
async def test_no_other_error_loses_it_either(make: Any, store: FakeStore, time: FakeTime, error: Exception) -> None:
    keeper = make()
    await keeper.start()
    store.answer = error
    await time.advance(30.0)
    assert not keeper.lost.is_set()
    store.answer = 10.0
    await time.advance(1.0)
    assert keeper.holding is Holding.HELD


async def test_only_a_definite_answer_loses_it_and_then_it_stays_lost(
    make: Any, store: FakeStore, time: FakeTime
) -> None:
    changes: list[Holding] = []
    keeper = make(changes.append)
    await keeper.start()
    store.answer = GONE
    await time.advance(5.0)
    assert keeper.lost.is_set() and keeper.holding is Holding.LOST and changes == [Holding.LOST]
    store.answer = 10.0
    tries = len(store.renewals)
    await time.advance(60.0)
    assert len(store.renewals) == tries and keeper.holding is Holding.LOST
    await keeper.stop()
    assert store.revoked == []


async def test_the_deadline_is_noticed_while_a_renewal_hangs(make: Any, store: FakeStore, time: FakeTime) -> None:
    keeper = make()
    await keeper.start()
    store.takes = 1e9
    await time.advance(10.1)
    assert keeper.uncertain.is_set() and not keeper.lost.is_set()


async def test_the_deadline_is_noticed_at_its_moment_and_nothing_polls_behind_it(
    make: Any, store: FakeStore, time: FakeTime
) -> None:
    told: list[tuple[float, Holding]] = []
    keeper = make(lambda holding: told.append((time.now, holding)))
    await keeper.start()
    store.takes = 1e9  # the renewal at 1005 hangs
    await time.advance(5.0)
    slept = time.sleeps
    await time.advance(3600.0)
    assert told == [(1010.0, Holding.UNCERTAIN)]
    assert time.sleeps == slept, "nothing is left that wakes up"


async def test_after_every_outage_the_next_deadline_is_noticed_as_well(
    make: Any, store: FakeStore, time: FakeTime
) -> None:
    told: list[tuple[float, Holding]] = []
    keeper = make(lambda holding: told.append((time.now, holding)))
    await keeper.start()
    for _ in range(3):
        store.answer = UNAVAILABLE
        await time.advance(12.0)
        store.answer = 10.0
        await time.advance(RETRY_S)
    assert [holding for _, holding in told] == [Holding.UNCERTAIN, Holding.HELD] * 3
    assert told[0][0] == 1010.0 and keeper.holding is Holding.HELD


async def test_a_holder_that_slept_through_its_deadline_sees_it_before_any_event(make: Any, time: FakeTime) -> None:
    keeper = make()
    await keeper.start()
    time.now += 60  # the process was frozen: no timer has run yet
    assert keeper.holding is Holding.UNCERTAIN and not keeper.uncertain.is_set()


async def test_a_listener_that_fails_does_not_stop_the_renewal(make: Any, store: FakeStore, time: FakeTime) -> None:
    def broken(_: Holding) -> None:
        raise RuntimeError("listener")

    keeper = make(broken)
    await keeper.start()
    store.answer = UNAVAILABLE
    await time.advance(11.0)
    store.answer = 10.0
    await time.advance(11.0)
    assert keeper.holding is Holding.HELD


async def test_stopping_revokes_and_a_store_that_is_away_does_not_matter(
    make: Any, store: FakeStore, time: FakeTime
) -> None:
    first, second = make(), make()
    await first.start()
    await first.stop()
    assert store.revoked == [7]
    await second.start()
    store.answer = UNAVAILABLE
    await second.stop()
    assert store.revoked == [7]


async def test_a_grant_that_fails_may_be_tried_again_but_a_lease_is_granted_once(make: Any, store: FakeStore) -> None:
    keeper = make()
    store.answer = UNAVAILABLE
    with pytest.raises(StoreUnavailable):
        await keeper.start()
    with pytest.raises(InvariantBroken):
        _ = keeper.lease_id
    store.answer = 10.0
    await keeper.start()
    with pytest.raises(InvariantBroken):
        await keeper.start()


async def test_on_a_store_in_memory_it_keeps_its_key_and_hears_of_the_loss() -> None:
    store = MemoryStore()
    async with LeaseKeeper(store, 1) as keeper:
        await store.put("k", b"", lease=keeper.lease_id)
        await asyncio.sleep(1.6)
        assert await store.get("k") is not None
        store.expire(keeper.lease_id)
        async with asyncio.timeout(2):
            await keeper.lost.wait()
    await store.close()
