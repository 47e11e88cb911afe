"""The table on disk: what is written, what is refused, and how far a gateway that starts from it believes it."""

import asyncio
import contextlib
import hashlib
import json
import os
import stat

import pytest

from infctl.adapters.memory_store import MemoryStore
from infctl.config.gateway import GatewayConfig
from infctl.store import stamp
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, FaultNotice, Generation, PoolSpec, Secret
from infctl_daemon.engine.sim.model import write_model
from infctl_daemon.gateway import fleet as fleet_module
from infctl_daemon.gateway import snapshot as module
from infctl_daemon.gateway.fleet import Fleet
from infctl_daemon.gateway.readiness import readiness
from infctl_daemon.gateway.snapshot import Refused, Snapshot, SnapshotFile, SnapshotKeeper
from infctl_daemon.gateway.vigil import Proof
from infctl_daemon.gateway.vocabulary import Vocabularies
from tests.support.witness import until

KEYS = Keys()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    path = folder / "tokenizer.json"
    return str(path), hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def file(tmp_path):
    return SnapshotFile(tmp_path / "state" / "gw.snapshot.json", "default", 900.0)


def endpoint(tokenizer, group="a", launch="a-1", generation=1):
    path, digest = tokenizer
    return EndpointRecord(
        group=group, pool="p", node="n", generation=generation, launch=launch, url="http://127.0.0.1:1", model="m",
        revision="r", tokenizer=path, tokenizer_digest=digest, context_length=100, vocab_size=50, max_running=1,
        max_queued=1,
    )  # fmt: skip


def snapshot(tokenizer, **change):
    fields = {
        "cluster": "default",
        "cluster_id": 7,
        "revision": 40,
        "taken_ms": stamp.now_ms() - 5000.0,
        "endpoints": [endpoint(tokenizer, generation=3)],
        "secrets": {"a": Secret(launch="a-1", api_key="k")},
        "generations": {"a": Generation(generation=3, launch="a-1"), "b": Generation(generation=9, launch="b-9")},
        "faults": [FaultNotice(fault_id="f", group="b", launch="b-9", generation=9, reason="x")],
        "pools": {"p": PoolSpec(name="p", model="m")},
    }
    return Snapshot(**{**fields, **change})


def test_what_was_written_is_read_and_is_private(file, tokenizer):
    file.write(snapshot(tokenizer))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert file.read() == snapshot(tokenizer, taken_ms=file.read().taken_ms)
    assert [p.name for p in file.path.parent.iterdir()] == [file.path.name], "no half-written file stays"


def test_the_defaults_of_flags_and_of_the_file_are_the_same():
    config = GatewayConfig()
    assert (config.state_dir, config.snapshot_max_age_seconds) == (module.STATE_DIR, module.MAX_AGE)


def test_no_file_is_no_fault(file):
    assert file.read() is None


def rewrite(file, **change):
    data = json.loads(file.path.read_bytes())
    file.path.write_bytes(json.dumps({**data, **change}).encode())


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda f: f.path.write_bytes(f.path.read_bytes()[:100]), "damaged"),
        (lambda f: f.path.write_bytes(b""), "damaged"),
        (lambda f: f.path.write_bytes(b"\xff" * 50), "damaged"),
        (lambda f: f.path.write_bytes(b"[" * 100_000), "damaged"),
        (lambda f: rewrite(f, endpoints=[{"group": 3}]), "damaged"),
        (lambda f: rewrite(f, v=2), "version 2"),
        (lambda f: rewrite(f, cluster="other"), "of cluster 'other'"),
        (lambda f: rewrite(f, taken_ms=stamp.now_ms() + 3_600_000), "future"),
        (lambda f: f.path.chmod(0o640), "mode 0640"),
        (lambda f: f.path.chmod(0o604), "mode 0604"),
        (lambda f: (f.path.unlink(), f.path.mkdir()), "no file of ours"),
        (lambda f: (f.path.unlink(), os.mkfifo(f.path, 0o600)), "no file of ours"),
        (lambda f: (f.path.rename(f.path.with_name("x")), f.path.symlink_to(f.path.with_name("x"))), "opened"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused_with_its_reason(file, tokenizer, harm, why):
    file.write(snapshot(tokenizer))
    harm(file)
    with pytest.raises(Refused, match=why):
        file.read()


class World:
    def __init__(self, file):
        self.store = MemoryStore()
        self.fleet = Fleet(self.store, KEYS, Vocabularies(), grace=0.5, file=file)
        self.replaced: list[str] = []
        self.expected: list[tuple[int, int]] = []
        self.fleet.on_replaced = self.replaced.append
        self.store.expect = lambda *known: self.expected.append(known)

    async def publish(self, tokenizer, launch="a-1", generation=1):
        await self.store.put(KEYS.group_generation("a"), encode(Generation(generation=generation, launch=launch)))
        await self.store.put(KEYS.secret("a"), encode(Secret(launch=launch, api_key="k")))
        await self.store.put(KEYS.endpoint("a"), encode(endpoint(tokenizer, launch=launch, generation=generation)))

    def routable(self):
        return [e.launch for e in self.fleet.endpoints()]

    def ready(self):
        return readiness(self.fleet, asyncio.get_running_loop().time())


@contextlib.asynccontextmanager
async def started(world, *more):
    tasks = [asyncio.create_task(world.fleet.run()), *(asyncio.create_task(one) for one in more)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def away(file, tokenizer, monkeypatch):
    """A world whose store does not answer, with a file of five seconds ago."""
    monkeypatch.setattr(fleet_module, "SNAPSHOT_AFTER", 0.1)
    file.write(snapshot(tokenizer))
    world = World(file)
    world.store.unavailable = True
    return world


async def test_nobody_in_a_snapshot_is_believed_before_a_probe(away, tokenizer):
    _, digest = tokenizer
    async with started(away):
        await until(lambda: away.fleet.source == "snapshot", 2, "served from the file")
        body, status = away.ready()
        assert status == 503 and body["from_snapshot"] and "probe" in body["reason"] and away.routable() == []
        away.fleet.doubts.probed("a-1", Proof.SILENT)
        await until(lambda: away.fleet.tokenizer(digest) is not None, 3, "the tokenizer is loaded")
        assert away.routable() == []
        away.fleet.doubts.probed("a-1", Proof.LIVES)
        assert away.routable() == ["a-1"]
        body, status = away.ready()
        assert status == 200 and body["store"] == "away" and body["snapshot_revision"] == 40
        assert 5000 <= body["snapshot_age_ms"] < 15_000
        assert away.fleet.faulted("b-9") is not None and away.expected == [(7, 40)]


async def test_the_store_s_word_replaces_the_snapshot_and_generations_never_fall(away, tokenizer):
    async with started(away):
        await until(lambda: away.fleet.source == "snapshot", 2, "served from the file")
        away.store.unavailable = False
        await away.publish(tokenizer, launch="a-0", generation=2)
        await until(lambda: away.fleet.source == "store", 5, "the store is read")
        await until(lambda: away.fleet.record("a-0") is not None, 2, "the record is in the table")
        assert away.routable() == [], "the store's generation is below the one that the snapshot knew"
        await away.publish(tokenizer, launch="a-2", generation=4)
        await until(lambda: away.routable() == ["a-2"], 2, "a higher one counts")


async def test_an_endpoint_that_the_store_does_not_list_any_more_stays_in_doubt(away, tokenizer):
    _, digest = tokenizer
    async with started(away):
        await until(lambda: away.fleet.source == "snapshot", 2, "served from the file")
        await until(lambda: away.fleet.tokenizer(digest) is not None, 3, "the tokenizer is loaded")
        away.store.unavailable = False
        await until(lambda: away.fleet.source == "store", 5, "the store is read")
        away.fleet.doubts.probed("a-1", Proof.LIVES)
        assert away.routable() == ["a-1"] and "a-1" in away.fleet.doubts, "its lease ran out, its engine may live"


async def test_a_snapshot_that_is_too_old_is_not_served(file, tokenizer, monkeypatch):
    monkeypatch.setattr(fleet_module, "SNAPSHOT_AFTER", 0.1)
    file.write(snapshot(tokenizer))
    file.max_age = 4.0
    world = World(file)
    world.store.unavailable = True
    async with started(world):
        await asyncio.sleep(0.6)
        assert world.fleet.source == "" and world.ready()[1] == 503 and world.fleet.record("a-1") is None


async def test_a_store_that_answers_is_asked_and_not_the_file(file, tokenizer):
    world = World(file)
    await world.publish(tokenizer, launch="a-0")
    await world.store.put(KEYS.group_generation("b"), encode(Generation(generation=9, launch="b-9")))
    known = {"cluster_id": (await world.store.status()).cluster_id, "revision": world.store.revision}
    file.write(snapshot(tokenizer, **known, generations={"b": Generation(generation=9, launch="b-9")}))
    async with started(world):
        await until(lambda: world.routable() == ["a-0"], 3, "routable at once")
        await asyncio.sleep(0.1)
        assert world.fleet.source == "store" and world.replaced == [] and world.expected == []


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    "change",
    [{"revision": 99}, {"cluster_id": 4711}, {"generations": {"a": Generation(generation=2, launch="a-9")}}],
)
async def test_a_database_that_is_not_the_one_of_the_file_is_said_aloud(file, tokenizer, change, compacted):
    world = World(file)
    await world.publish(tokenizer, launch="a-0")
    if compacted:
        await world.store.compact(world.store.revision)
    known = {"cluster_id": (await world.store.status()).cluster_id, "revision": 2}
    file.write(snapshot(tokenizer, **{**known, **change}))
    async with started(world):
        await until(lambda: world.replaced, 3, "told")
        assert "another database" in world.replaced[0] and world.routable() == ["a-0"]


async def test_the_file_is_written_soon_and_not_for_each_change(file, tokenizer, monkeypatch):
    monkeypatch.setattr(module, "SPACING", 0.2)
    writes: list[Snapshot] = []
    original = file.write
    file.write = lambda made: (writes.append(made), original(made))
    world = World(file)
    async with started(world, SnapshotKeeper(world.fleet, file).run()):
        await until(lambda: world.fleet.source == "store", 2, "read")
        for n in range(1, 50):
            await world.publish(tokenizer, launch=f"a-{n}", generation=n)
            await asyncio.sleep(0.01)
        await until(lambda: file.read() and file.read().generations["a"].launch == "a-49", 3, "on disk")
        assert len(writes) < 10
        kept = file.read()
        assert kept.endpoints[0].launch == "a-49" and kept.secrets["a"].launch == "a-49"
        assert kept.revision == world.fleet.revision and kept.age() < 5


async def test_what_a_killed_write_left_behind_is_removed(file, tokenizer):
    file.write(snapshot(tokenizer))
    left = file.path.with_name(f".{file.path.name}.4711.tmp")
    left.write_bytes(b"half")
    world = World(file)
    async with started(world, SnapshotKeeper(world.fleet, file).run()):
        await until(lambda: not left.exists(), 2, "removed")
    assert file.path.exists()


async def test_an_age_of_zero_writes_and_reads_no_file(file, tokenizer, monkeypatch):
    monkeypatch.setattr(fleet_module, "SNAPSHOT_AFTER", 0.1)
    file.write(snapshot(tokenizer))
    before = file.path.read_bytes()
    file.max_age = 0.0
    world = World(file)
    world.store.unavailable = True
    async with started(world, SnapshotKeeper(world.fleet, file).run()):
        await asyncio.sleep(0.4)
        assert world.fleet.source == ""
        world.store.unavailable = False
        await until(lambda: world.fleet.source == "store", 5, "read")
        await asyncio.sleep(0.3)
    assert file.path.read_bytes() == before


async def test_a_table_that_the_store_did_not_vouch_for_is_never_written(away, file):
    before = file.path.read_bytes()
    async with started(away, SnapshotKeeper(away.fleet, file).run()):
        await until(lambda: away.fleet.source == "snapshot", 2, "served from the file")
        await asyncio.sleep(0.5)
    assert file.path.read_bytes() == before


async def test_a_quiet_cluster_keeps_its_snapshot_young(file, tokenizer, monkeypatch):
    monkeypatch.setattr(module, "SPACING", 0.1)
    monkeypatch.setattr(module, "REFRESH", 0.2)
    world = World(file)
    await world.publish(tokenizer)
    async with started(world, SnapshotKeeper(world.fleet, file).run()):
        await until(lambda: file.read(), 3, "written")
        first = file.read().taken_ms
        for _ in range(8):
            await asyncio.sleep(0.1)
            world.fleet._seen(world.fleet.revision)  # an answer without news
        await until(lambda: file.read().taken_ms > first + 300, 3, "refreshed without a change")


async def test_a_folder_that_cannot_be_written_costs_the_file_only(tmp_path, tokenizer):
    (tmp_path / "state").write_text("a file where the folder should be")
    file = SnapshotFile(tmp_path / "state" / "gw.json", "default", 900.0)
    world = World(None)
    await world.publish(tokenizer)
    keeper = SnapshotKeeper(world.fleet, file)
    async with started(world):
        await until(lambda: world.routable() == ["a-1"], 2, "routable")
        await keeper._write(changed=True)
        assert keeper._failed and world.routable() == ["a-1"]
        os.unlink(tmp_path / "state")
        await keeper._write(changed=True)
        assert not keeper._failed and file.read() is not None
