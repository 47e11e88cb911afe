"""What a daemon says of its launch, and what a gateway makes of it: a clear word counts, anything else does not."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from infctl.adapters.memory_store import MemoryStore
from infctl.ports.store import Delete
from infctl.ports.tls import TlsFiles
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, Generation, Secret
from infctl_daemon.engine.sim.model import write_model
from infctl_daemon.gateway import vigil as vigil_module
from infctl_daemon.gateway.fleet import Fleet
from infctl_daemon.gateway.vigil import Vigil
from infctl_daemon.gateway.vocabulary import Vocabularies
from infctl_daemon.gateway.witness import Daemons, Word
from tests.support.certs import HAVE_OPENSSL, Authority
from tests.support.readapi import serving
from tests.support.witness import until

KEYS = Keys()
LAUNCH, KEY = "a-abcdefgh", "k" + "1" * 48
GOOD = {"node": "n", "launch": LAUNCH, "serving": True, "over": False, "lease": "held", "generation": 1}


class Host:
    """An engine and a daemon that answer on one port."""

    def __init__(self) -> None:
        self.said: object = GOOD
        self.status = 200
        self.asked = 0
        self.probed = 0
        self.patience = 0.0

    async def loads(self, request: web.Request) -> web.Response:
        self.probed += 1
        return web.Response(text="{}")

    async def serving(self, request: web.Request) -> web.Response:
        self.asked += 1
        assert request.headers["authorization"] == f"Bearer {KEY}"
        await asyncio.sleep(self.patience)
        text = self.said if isinstance(self.said, str) else json.dumps(self.said)
        return web.Response(status=self.status, text=text, headers={"location": "/health"})

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/loads", self.loads)
        app.router.add_get(f"/v1/groups/a/launches/{LAUNCH}/serving", self.serving)
        return app


def endpoint(url: str, tokenizer: str = "", digest: str = "", read_api: str | None = None) -> EndpointRecord:
    return EndpointRecord(
        group="a", pool="p", node="n", generation=1, launch=LAUNCH, url=url, model="m", revision="r", max_queued=1,
        tokenizer=tokenizer, tokenizer_digest=digest, context_length=100, vocab_size=50, max_running=1,
        read_api=url if read_api is None else read_api,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def hosted() -> AsyncIterator[tuple[Host, str, aiohttp.ClientSession]]:
    host = Host()
    async with TestServer(host.app()) as server, aiohttp.ClientSession() as http:
        yield host, str(server.make_url("")).rstrip("/"), http


@pytest.mark.parametrize(
    ("said", "status", "word"),
    [
        (GOOD, 200, Word.SERVES),
        ({**GOOD, "lease": "lost"}, 200, Word.SERVES),  # the store said so to its daemon, which therefore hears it
        ({**GOOD, "lease": "uncertain"}, 200, Word.CUT_OFF),
        ({**GOOD, "lease": "none"}, 200, Word.CUT_OFF),
        ({**GOOD, "over": True}, 200, Word.OVER),
        ({**GOOD, "over": True, "lease": "uncertain"}, 200, Word.OVER),
        ({**GOOD, "over": True}, 503, Word.NONE),
        ({**GOOD, "over": True}, 302, Word.NONE),
        ({**GOOD, "over": True, "node": "other"}, 200, Word.NONE),
        ({**GOOD, "over": True, "launch": "a-zzzzzzzz"}, 200, Word.NONE),
        ({"over": True}, 200, Word.NONE),
        ("<html>", 200, Word.NONE),
        ('{"over": true' + " " * 100_000, 200, Word.NONE),
        ({"error": {"code": "not_found"}}, 404, Word.NONE),
        ({"error": {"code": "unauthorized"}}, 401, Word.NONE),
    ],
)
async def test_only_a_clear_answer_about_the_right_launch_is_evidence(said: object, status: int, word: Word) -> None:
    async with hosted() as (host, url, http):
        host.said, host.status = said, status
        assert await Daemons(http).ask(endpoint(url), KEY, 1.0) is word
        assert host.asked == 1


async def test_a_daemon_that_is_silent_or_not_there_is_no_evidence() -> None:
    async with hosted() as (host, url, http):
        host.patience = 5.0
        assert await Daemons(http).ask(endpoint(url), KEY, 0.1) is Word.NONE
        assert await Daemons(http).ask(endpoint(url, read_api="http://127.0.0.1:1"), KEY, 1.0) is Word.NONE


async def test_the_key_goes_to_no_loopback_address_that_is_another_hosts() -> None:
    async with hosted() as (host, url, http):
        daemons = Daemons(http)
        for far in ("http://10.0.0.7:12000", "http://gpu-7:12000"):
            assert await daemons.ask(endpoint(far, read_api=url), KEY, 1.0) is Word.NONE
        for no_address in ("", "unix:/x", url.removeprefix("http://")):
            assert await daemons.ask(endpoint(url, read_api=no_address), KEY, 1.0) is Word.NONE
        assert await daemons.ask(endpoint(url), "", 1.0) is Word.NONE
        assert host.asked == 0


@pytest.mark.skipif(not HAVE_OPENSSL, reason="openssl is not installed")
async def test_a_daemon_that_asks_for_certificates_is_shown_those_for_etcd(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    for name in ("node", "gw"):
        authority.issue(name)
    async with serving(tmp_path, tls=authority.files("node")) as daemon, aiohttp.ClientSession() as http:
        record = msgspec.structs.replace(endpoint("http://127.0.0.1:1", read_api=daemon.url), node="n1")
        assert await Daemons(http, authority.files("gw")).ask(record, KEY, 5.0) is Word.SERVES
        async with aiohttp.ClientSession() as other:
            for none in (authority.files(), None, TlsFiles(tmp_path / "gone.pem")):
                assert await Daemons(other, none).ask(record, KEY, 5.0) is Word.NONE


class World:
    """A routing table over a store in memory, one published group, and the vigil."""

    def __init__(self, host: Host, store: MemoryStore, fleet: Fleet, record: EndpointRecord) -> None:
        self.host, self.store, self.fleet, self.record = host, store, fleet, record

    def routable(self) -> list[str]:
        return [e.launch for e in self.fleet.endpoints()]

    async def publish(self, generation: int) -> None:
        record = msgspec.structs.replace(self.record, generation=generation)
        await self.store.put(KEYS.group_generation("a"), encode(Generation(generation=generation, launch=LAUNCH)))
        await self.store.put(KEYS.secret("a"), encode(Secret(launch=LAUNCH, api_key=KEY)))
        await self.store.put(KEYS.endpoint("a"), encode(record))


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(vigil_module, "EVERY", 0.05)
    monkeypatch.setattr(vigil_module, "WINDOW", 0.5)
    write_model(tmp_path)
    path = tmp_path / "tokenizer.json"
    store = MemoryStore()
    fleet = Fleet(store, KEYS, Vocabularies())
    async with hosted() as (host, url, http):
        record = endpoint(url, str(path), hashlib.sha256(path.read_bytes()).hexdigest())
        tasks = [asyncio.create_task(fleet.run()), asyncio.create_task(Vigil(fleet, http, 0.5).run())]
        made = World(host, store, fleet, record)
        try:
            await made.publish(1)
            await until(lambda: made.routable() == [LAUNCH], 3, "routable")
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def lose_lease(world: World) -> None:
    await world.store.txn([], [Delete(KEYS.endpoint("a")), Delete(KEYS.secret("a"))])
    await until(lambda: LAUNCH in world.fleet.doubts, 2, "in doubt")


async def test_while_the_store_is_heard_and_vouches_nobody_is_asked(world: World) -> None:
    await asyncio.sleep(0.3)
    assert (world.host.asked, world.host.probed) == (0, 0)


async def test_a_launch_in_doubt_that_its_daemon_calls_over_gets_nothing_though_its_engine_answers(
    world: World,
) -> None:
    await lose_lease(world)
    await until(lambda: world.host.asked > 2, 3, "the daemon is asked")
    assert world.routable() == [LAUNCH]
    world.host.said = {**GOOD, "over": True}
    await until(lambda: world.routable() == [], 3, "not routable")
    probed = world.host.probed
    await until(lambda: world.host.probed > probed + 3, 3, "the engine goes on answering")
    assert world.routable() == []


async def test_a_launch_whose_daemon_does_not_hear_the_store_that_we_hear_runs_out_of_proof(world: World) -> None:
    world.host.said = {**GOOD, "lease": "uncertain"}
    await lose_lease(world)
    await until(lambda: world.routable() == [], 3, "no longer proven")
    world.host.said = GOOD
    await until(lambda: world.routable() == [LAUNCH], 3, "its daemon hears the store again")


async def test_while_the_store_is_away_for_all_a_daemon_without_it_speaks_against_nobody(world: World) -> None:
    world.host.said = {**GOOD, "lease": "uncertain"}
    world.store.unavailable = True
    await until(lambda: world.fleet.away, 3, "away")
    await until(lambda: world.host.asked > 5, 3, "the daemon is asked")
    assert world.routable() == [LAUNCH] and world.host.probed == 0
    world.fleet.doubts.add(LAUNCH, 60.0, proven=True)
    await until(lambda: world.host.probed > 15, 5, "in doubt for longer than one answer counts")
    assert world.routable() == [LAUNCH]


async def test_while_the_store_is_away_a_launch_that_its_daemon_ended_gets_nothing(world: World) -> None:
    world.store.unavailable = True
    await until(lambda: world.fleet.away, 3, "away")
    world.host.said = {**GOOD, "over": True}
    await until(lambda: world.routable() == [], 3, "not routable")
    asked = world.host.asked
    await asyncio.sleep(0.3)
    assert world.host.asked == asked, "over is for good: it is asked no more"
    world.store.unavailable = False
    await until(lambda: not world.fleet.away, 5, "the store is back")
    await world.publish(2)
    await until(lambda: world.routable() == [LAUNCH], 3, "the store's own word counts more")


async def test_a_daemon_that_is_away_with_the_store_changes_nothing(world: World) -> None:
    world.host.status = 503
    world.store.unavailable = True
    await until(lambda: world.host.asked > 5, 5, "the daemon is asked")
    assert world.routable() == [LAUNCH]
