"""The routing table: what counts as routable, and what news takes an endpoint away at once."""

import asyncio
import contextlib
import hashlib

import pytest

from infctl.adapters.memory_store import MemoryStore
from infctl.ports.store import Delete, Relist
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, FaultNotice, Generation, PoolSpec, Secret
from infctl_daemon.engine.sim.model import write_model
from infctl_daemon.gateway.fleet import Fleet
from infctl_daemon.gateway.vocabulary import Vocabularies
from tests.support.witness import until

KEYS = Keys()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    path = folder / "tokenizer.json"
    return str(path), hashlib.sha256(path.read_bytes()).hexdigest()


class World:
    def __init__(self, tokenizer):
        self.store = MemoryStore()
        self.fleet = Fleet(self.store, KEYS, Vocabularies())
        self.tokenizer = tokenizer
        self.notices: list[str] = []
        self.fleet.on_fault = lambda notice: self.notices.append(notice.launch)

    def endpoint(self, launch="a-1", generation=1, **change):
        path, digest = self.tokenizer
        fields = {
            "group": "a",
            "pool": "p",
            "node": "n",
            "generation": generation,
            "launch": launch,
            "url": "http://127.0.0.1:1",
            "model": "m",
            "revision": "r",
            "tokenizer": path,
            "tokenizer_digest": digest,
            "context_length": 100,
            "vocab_size": 50,
            "max_running": 1,
            "max_queued": 1,
        }
        return EndpointRecord(**{**fields, **change})

    async def publish(self, launch="a-1", generation=1, secret=True, **change):
        await self.store.put(KEYS.group_generation("a"), encode(Generation(generation=generation, launch=launch)))
        if secret:
            await self.store.put(KEYS.secret("a"), encode(Secret(launch=launch, api_key="k")))
        await self.store.put(KEYS.endpoint("a"), encode(self.endpoint(launch, generation, **change)))

    async def fault(self, launch="a-1"):
        notice = FaultNotice(fault_id="f", group="a", launch=launch, generation=1, reason="x")
        await self.store.put(KEYS.fault("a", launch), encode(notice))

    def routable(self):
        return [e.launch for e in self.fleet.endpoints()]


@contextlib.asynccontextmanager
async def running(world):
    task = asyncio.create_task(world.fleet.run())
    try:
        await asyncio.wait_for(world.fleet.ready.wait(), 2)
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def world(tokenizer):
    return World(tokenizer)


async def test_what_was_there_before_is_listed(world):
    await world.publish()
    async with running(world):
        assert world.routable() == ["a-1"] and world.fleet.api_key("a-1") == "k"


async def test_news_comes_by_watch(world):
    async with running(world):
        assert world.routable() == []
        await world.publish()
        await until(lambda: world.routable() == ["a-1"], 2, "routable")
        await world.store.txn((), [Delete(KEYS.endpoint("a"))])
        await until(lambda: world.routable() == [], 2, "gone")


async def test_a_fault_notice_takes_the_launch_away_even_if_the_endpoint_stays(world):
    await world.publish()
    async with running(world):
        await world.fault()
        await until(lambda: world.notices == ["a-1"], 2, "told")
        assert world.routable() == []
        await world.publish()  # a late write of the same launch
        await asyncio.sleep(0.05)
        assert world.routable() == [] and world.notices == ["a-1"]
        await world.publish(launch="a-2", generation=2)
        await until(lambda: world.routable() == ["a-2"], 2, "the next launch")


async def test_an_endpoint_below_the_durable_generation_does_not_count(world):
    await world.publish(generation=3)
    async with running(world):
        assert world.routable() == ["a-1"]
        await world.store.put(KEYS.group_generation("a"), encode(Generation(generation=4, launch="a-2")))
        await until(lambda: world.routable() == [], 2, "old")
        await world.store.put(KEYS.group_generation("a"), encode(Generation(generation=2, launch="a-0")))
        await asyncio.sleep(0.05)
        assert world.routable() == [], "a generation never falls"


async def test_without_its_key_an_endpoint_is_not_routable(world):
    await world.publish(secret=False)
    async with running(world):
        assert world.routable() == []
        await world.store.put(KEYS.secret("a"), encode(Secret(launch="a-0", api_key="old")))
        await asyncio.sleep(0.05)
        assert world.routable() == [], "the key of another launch opens nothing"
        await world.store.put(KEYS.secret("a"), encode(Secret(launch="a-1", api_key="k")))
        await until(lambda: world.routable() == ["a-1"], 2, "complete")


@pytest.mark.parametrize("change", [{"tokenizer_digest": "0" * 64}, {"tokenizer": "/nonexistent"}])
async def test_a_tokenizer_that_does_not_fit_is_not_routable(world, change):
    await world.publish(**change)
    async with running(world):
        assert world.routable() == []
        assert world.fleet.serves("m"), "the model is known all the same"


async def test_quarantine_holds_until_release_and_falls_with_the_launch(world):
    await world.publish()
    async with running(world):
        assert world.fleet.quarantine("a-1", "eof") is True
        assert world.fleet.quarantine("a-1", "again") is False
        assert world.routable() == []
        world.fleet.release("a-1")
        assert world.routable() == ["a-1"]


async def test_garbage_in_the_store_is_passed_over(world):
    await world.publish()
    await world.store.put(KEYS.endpoint("b"), b"\xff not json")
    await world.store.put(KEYS.fault("b", "b-1"), b"{}")
    async with running(world):
        assert world.routable() == ["a-1"]


async def test_a_pool_without_a_group_is_a_known_model(world):
    await world.store.put(KEYS.pool_spec("p"), encode(PoolSpec(name="p", model="big")))
    async with running(world):
        assert world.fleet.models() == ["big"] and world.fleet.example("big") is None


async def test_a_store_that_is_away_changes_nothing(world):
    await world.publish()
    async with running(world):
        world.store.unavailable = True
        await asyncio.sleep(0.1)
        assert world.routable() == ["a-1"]
        world.store.unavailable = False


async def test_a_compacted_watch_forgets_what_is_gone(world):
    """Told by a re-list: endpoints go, facts (faults, generations) stay."""
    await world.publish()
    async with running(world):
        await world.fault("a-9")
        await until(lambda: world.notices == ["a-9"], 2, "told")

        async def once():
            yield Relist((), 99)

        await world.fleet._follow(KEYS.endpoints, once())
        await world.fleet._follow(KEYS.faults, once())
        assert world.routable() == [] and world.fleet.faulted("a-9") is not None and world.fleet.revision >= 99
