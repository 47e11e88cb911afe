"""`infctl describe`: pages are what they were at a fixed moment (golden files), in a pipe, at 80 and at 120 columns."""

from __future__ import annotations

import contextlib
import io as std_io
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from infctl.adapters.memory_store import MemoryStore
from infctl.cli.output.page import print_page
from infctl.client.describe import describe
from infctl.store.codec import encode
from infctl.view.kinds import Kind
from tests.cli.conftest import K, cluster
from tests.support.command import Run

GOLDEN = Path(__file__).parent / "golden" / "describe"
# one minute and a bit after everything in the golden cluster, seen from two hours east
NOW = datetime(2026, 1, 2, 5, 5, 30, tzinfo=timezone(timedelta(hours=2), "EET"))


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore()
    for key, record in cluster().items():
        await store.put(key, encode(record))
    return store


async def text_of(store: MemoryStore, kind: Kind, names: list[str], now: datetime = NOW) -> str:
    found = await describe(store, K, {kind: names}, now)
    out = std_io.StringIO()
    with contextlib.redirect_stdout(out):
        for page in found.pages:
            print_page(page)
            out.write("\n")
    return out.getvalue()


@pytest.mark.parametrize("width", [0, 80, 120], ids=["pipe", "80", "120"])
@pytest.mark.parametrize("kind", list(Kind))
async def test_pages(store: MemoryStore, kind: Kind, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infctl.cli.io.width", lambda default=0: width)
    text = await text_of(store, kind, [])
    path = GOLDEN / f"{kind.plural}.{width or 'pipe'}.txt"
    if os.environ.get("INFCTL_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
    assert not width or max(map(len, text.splitlines())) <= width


async def test_times_are_local_and_say_their_zone(store: MemoryStore) -> None:
    text = await text_of(store, Kind.GROUP, ["a"])
    assert "Events, oldest first (EET)\n  05:04:05.678  1m24s ago  launch.failed" in text
    utc = await text_of(store, Kind.GROUP, ["a"], datetime(2026, 1, 3, 3, 5, 30, tzinfo=UTC))
    assert "(UTC)\n  2026-01-02 03:04:05  1d0h ago  launch.failed" in utc


async def test_what_is_not_there_names_its_neighbour(store: MemoryStore) -> None:
    found = await describe(store, K, {Kind.GROUP: ["a", "nwe"], Kind.NODE: ["n2", "x"]}, NOW)
    assert [page.address for page in found.pages] == ["group/a", "node/n2"]
    assert found.missing is not None
    assert found.missing.message == "group/nwe not found\nnode/x not found"
    assert found.missing.hint == "did you mean group/new?"


@pytest.mark.parametrize(
    ("words", "heads"),
    [
        (["group/a"], ["group/a  Ready: takes requests"]),
        (["group", "a"], ["group/a  Ready: takes requests"]),
        (["groups"], ["group/a  Ready: takes requests", "group/new  Unknown: no daemon has said anything of it"]),
        (["node/n2", "pool/p"], ["node/n2  NotResponding", "pool/p  Degraded: 1 of 2 groups ready, 2 needed"]),
        (["ep", "a"], ["endpoint/a  Ready: takes new requests"]),
        (["stream/r2"], ["stream/r2  DECODING: tokens are coming"]),
        (["gw/gw"], ["gateway/gw  Silent: has not written for "]),
        (["event/e1"], ["event/e1  launch.failed: rank 1: signal 9"]),
    ],
)
def test_the_command(infctl: Run, words: list[str], heads: list[str]) -> None:
    done = infctl("describe", *words)
    assert (done.returncode, done.stderr) == (0, "")
    told = [line for line in done.stdout.splitlines() if line and line.split("/")[0] in list(Kind)]
    assert len(told) == len(heads)
    for line, head in zip(told, heads, strict=True):
        assert line.startswith(head)
    assert done.stdout.count("\nEvents") == done.stdout.count("\nNext\n") == len(heads)


def test_a_fault_of_the_command_line_is_2_and_of_the_name_5(infctl: Run) -> None:
    assert infctl("describe").returncode == 2
    assert infctl("describe", "grop/a").returncode == 2
    done = infctl("describe", "group/b")
    assert (done.returncode, done.stdout) == (5, "")
    done = infctl("describe", "group/b", "node/n1")
    assert (done.returncode, done.stdout.splitlines()[0]) == (5, "node/n1  Ready: 2 groups placed here")
    assert done.stderr.startswith("error: group/b not found\n")
    done = infctl("describe", "streams", INFCTL_CLUSTER="empty")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no streams in cluster empty (INFCTL_ENDPOINTS)\n")


def test_what_others_wrote_cannot_drive_the_terminal(infctl: Run, endpoint: str) -> None:
    import asyncio

    from infctl.adapters.etcd import EtcdStore
    from infctl.store.keys import Keys
    from infctl.store.records import EventRecord, StreamRecord

    keys = Keys("bad")
    stream = StreamRecord(
        stream="r1", owner="g\x1b[2J", term=1, attempt=1, state="FAILED\x07", error="x: \x1b]0;t\x07\n!"
    )
    event = EventRecord(at="\x1bnow", kind="k\x1b", subject="stream/r1", actor="\x9b", message="m\x1b[31m\r")

    async def write() -> None:
        store = EtcdStore([endpoint])
        await store.put(keys.stream("r1"), encode(stream))
        await store.put(keys.event("e1"), encode(event))
        await store.close()

    asyncio.run(write())
    for words in (["describe", "stream/r1"], ["describe", "event/e1"], ["get", "streams,events", "-o", "wide"]):
        done = infctl(*words, INFCTL_CLUSTER="bad")
        assert (done.returncode, done.stderr) == (0, "")
        assert all(c.isprintable() or c == "\n" for c in done.stdout)
