"""The routing table: what counts as routable, and what news takes an endpoint away at once."""

import asyncio
import contextlib
import hashlib

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from infctl.adapters.memory_store import MemoryStore
from infctl.ports.store import Delete, Relist
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, FaultNotice, Generation, PoolSpec, Secret
from infctl_daemon.engine.sim.model import write_model
from infctl_daemon.gateway import vigil as vigil_module
from infctl_daemon.gateway.fleet import Fleet
from infctl_daemon.gateway.vigil import Doubts, Proof, Vigil
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
        await world.fault()
        await world.store.txn((), [Delete(KEYS.endpoint("a"))])
        await until(lambda: world.fleet.record("a-1") is None, 2, "gone")
        assert world.routable() == [] and world.fleet.api_key("a-1") == ""


async def lose_lease(world):
    """The store drops what hung on the owner's lease; nobody wrote a notice."""
    await world.store.txn((), [Delete(KEYS.endpoint("a")), Delete(KEYS.secret("a"))])
    await until(lambda: "a-1" in world.fleet.doubts, 2, "in doubt")


async def test_an_endpoint_whose_lease_was_lost_stays_until_a_probe_fails(world):
    await world.publish()
    async with running(world):
        await lose_lease(world)
        assert world.routable() == ["a-1"] and world.fleet.api_key("a-1") == "k"
        world.fleet.doubts.probed("a-1", Proof.SILENT)
        assert world.routable() == ["a-1"], "one silence is no answer"
        world.fleet.doubts.probed("a-1", Proof.REFUSED)
        assert world.routable() == []
        world.fleet.doubts.probed("a-1", Proof.LIVES)
        assert world.routable() == ["a-1"]
        world.fleet.doubts.window = -1.0
        assert world.routable() == [], "an answer counts for a moment only"


async def test_the_next_generation_of_the_same_launch_settles_the_doubt_without_a_gap(world):
    await world.publish()
    async with running(world):
        await lose_lease(world)
        raised = encode(Generation(generation=2, launch="a-1"))
        await world.store.put(KEYS.group_generation("a"), raised)
        await asyncio.sleep(0.05)
        assert world.routable() == ["a-1"], "the generation was raised for this very launch"
        await world.publish(generation=2)
        await until(lambda: "a-1" not in world.fleet.doubts, 2, "settled")
        assert world.routable() == ["a-1"]


async def test_a_notice_or_another_launch_ends_what_is_in_doubt(world):
    await world.publish()
    async with running(world):
        await lose_lease(world)
        await world.fault()
        await until(lambda: world.notices == ["a-1"], 2, "told")
        assert world.routable() == [] and world.fleet.record("a-1") is None
    other = World(world.tokenizer)
    await other.publish()
    async with running(other):
        await lose_lease(other)
        registered = encode(Generation(generation=2, launch="a-2"))
        await other.store.put(KEYS.group_generation("a"), registered)
        await until(lambda: other.fleet.record("a-1") is None, 2, "gone")
        assert other.routable() == [] and len(other.fleet.doubts) == 0


class Worker:
    """An engine that answers the probe to whoever has its key."""

    def __init__(self, key):
        self.key = key
        self.asked = 0

    async def loads(self, request):
        self.asked += 1
        return web.Response(status=200 if request.headers["authorization"] == f"Bearer {self.key}" else 401, text="{}")


@contextlib.asynccontextmanager
async def vigil(world, key="k"):
    """The worker's endpoint is published; it is in doubt and watched."""
    worker = Worker(key)
    app = web.Application()
    app.router.add_get("/v1/loads", worker.loads)
    async with TestServer(app) as server, aiohttp.ClientSession() as http, running(world):
        await world.publish(url=str(server.make_url("")).rstrip("/"))
        await until(lambda: world.routable() == ["a-1"], 2, "routable")
        task = asyncio.create_task(Vigil(world.fleet, http, 0.5).run())
        try:
            yield worker
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_the_vigil_asks_nobody_but_those_in_doubt_and_keeps_who_answers(world, monkeypatch):
    monkeypatch.setattr(vigil_module, "EVERY", 0.05)
    monkeypatch.setattr(vigil_module, "WINDOW", 0.3)
    async with vigil(world) as worker:
        await asyncio.sleep(0.2)
        assert worker.asked == 0
        await lose_lease(world)
        await asyncio.sleep(1.0)
        assert worker.asked > 3 and world.routable() == ["a-1"]


async def test_a_worker_with_another_key_gets_nothing_while_in_doubt(world, monkeypatch):
    monkeypatch.setattr(vigil_module, "EVERY", 0.05)
    async with vigil(world, key="of another launch"):
        await lose_lease(world)
        await until(lambda: world.routable() == [], 2, "refused")


async def test_what_does_not_come_back_is_forgotten_but_not_while_the_store_is_away(world, monkeypatch):
    monkeypatch.setattr(vigil_module, "EVERY", 0.05)
    world.fleet._grace = 0.5
    async with vigil(world):
        world.fleet._cut.add(KEYS.endpoints)
        world.fleet.doubts.add("a-1", 0.5, proven=True)
        await asyncio.sleep(1.2)
        assert world.routable() == ["a-1"], "a store that is away cannot have it back"
        world.fleet._cut.clear()
        await until(lambda: world.fleet.record("a-1") is None, 3, "forgotten")


class Four:
    """A routing table of four launches in doubt, of which `silent` do not answer and one refuses."""

    def __init__(self, silent):
        self.doubts = Doubts()
        self.away = False
        self.silent = silent
        for n in range(4):
            self.doubts.add(f"l{n}", 60.0, proven=True)

    def address(self, launch):
        return (launch, "")

    def record(self, launch):
        return None

    def forget(self, launch):
        raise AssertionError("nobody's time is over")

    async def round(self, monkeypatch):
        """Who is routable after a round long after the last good answer, as (launch, routable)."""
        vigil = Vigil(self, None, 0.1)

        async def probe(url, key):
            await asyncio.sleep(0.2)
            return Proof.REFUSED if url == "l3" else Proof.SILENT if url in self.silent else Proof.LIVES

        monkeypatch.setattr(vigil, "_probe", probe)
        self.doubts.window = 0.1  # the last good answers are too old when the round ends
        await vigil._round()
        return [f"l{n}" for n in range(4) if self.doubts.allows(f"l{n}")]


async def test_half_of_the_probes_silent_at_once_say_nothing_about_the_workers(monkeypatch):
    assert await Four({"l0"}).round(monkeypatch) == ["l1", "l2"], "one silent worker is that worker's matter"
    assert await Four({"l0", "l1"}).round(monkeypatch) == ["l0", "l1", "l2"], "a refusal is never held back"


async def test_while_the_watch_is_cut_the_store_counts_as_away(world):
    async with running(world):
        assert not world.fleet.away
        world.store.unavailable = True
        await until(lambda: world.fleet.away, 3, "away")
        world.store.unavailable = False
        await until(lambda: not world.fleet.away, 5, "back")


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
    """Told by a re-list: endpoints go into doubt, facts (faults, generations) stay."""
    await world.publish()
    async with running(world):
        await world.fault("a-9")
        await until(lambda: world.notices == ["a-9"], 2, "told")

        async def once():
            yield Relist((), 99)

        await world.fleet._follow(KEYS.endpoints, once())
        await world.fleet._follow(KEYS.faults, once())
        assert "a-1" in world.fleet.doubts and world.fleet.faulted("a-9") is not None and world.fleet.revision >= 99
