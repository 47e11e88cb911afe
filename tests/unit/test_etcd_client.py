"""How often the client sends what, against a server that answers on command; no etcd needed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from infctl.adapters.etcd import EtcdStore, TlsFiles
from infctl.adapters.etcd.channel import Member
from infctl.adapters.etcd.convert import key_range
from infctl.adapters.etcd.messages import message
from infctl.domain.errors import ConfigError, StoreUnavailable
from infctl.ports.store import Alive, Compare, Delete, Events, Get, Interrupted, Put
from tests.support.fake_etcd import fake_member

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
async def members(tmp_path: Path) -> Any:
    async with fake_member(tmp_path / "a") as a, fake_member(tmp_path / "b") as b:
        yield a, b


@pytest.fixture
async def store(members: Any) -> Any:
    made = EtcdStore([member.endpoint for member in members])
    yield made
    await made.close()


UNCLEAR = [
    ("UNAVAILABLE", "etcdserver: request timed out"),
    ("UNKNOWN", "context deadline exceeded"),
    ("UNKNOWN", "never seen before"),
    ("DATA_LOSS", "?"),
    ("CANCELLED", "?"),
]


@pytest.mark.parametrize("failure", UNCLEAR)
async def test_a_write_that_ended_unclear_is_sent_once_and_the_next_goes_elsewhere(
    members: Any, store: EtcdStore, failure: tuple[str, str]
) -> None:
    a, b = members
    a.answer = lambda rpc, request: failure
    b.answer = a.answer
    with pytest.raises(StoreUnavailable):
        await store.put("k", b"v")
    assert (a.calls["Put"], sum(b.calls.values())) == (1, 0)
    with pytest.raises(StoreUnavailable):
        await store.txn((), (Put("k", b"v"),))
    assert (sum(a.calls.values()), b.calls["Txn"]) == (1, 1)


async def test_a_write_that_was_certainly_not_sent_goes_to_the_next_member(members: Any, tmp_path: Path) -> None:
    store = EtcdStore([f"unix:{tmp_path}/nobody", members[0].endpoint])
    assert await store.put("k", b"v") == 5
    assert members[0].calls["Put"] == 1
    await store.close()


async def test_a_read_is_asked_again_of_the_next_member_within_its_timeout(members: Any, store: EtcdStore) -> None:
    a, b = members

    async def never() -> Any:
        await asyncio.sleep(30)

    a.answer = lambda rpc, request: never()
    started = time.monotonic()
    assert await store.get("k", timeout=3.0) is None
    assert time.monotonic() - started < 2.5 and (a.calls["Range"], b.calls["Range"]) == (1, 1)
    assert store.endpoint == b.endpoint


async def test_with_every_member_refusing_a_call_ends_after_a_second(tmp_path: Path) -> None:
    store = EtcdStore([f"unix:{tmp_path}/nobody", f"unix:{tmp_path}/nothing"])
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await store.get("k", timeout=30)
    assert time.monotonic() - started < 2.0
    await store.close()


async def test_members_are_kept_until_they_fail(members: Any, store: EtcdStore) -> None:
    a, b = members
    for _ in range(5):
        await store.get("k")
    assert (a.calls["Range"], b.calls["Range"]) == (5, 0)


async def test_calls_and_watches_ask_for_a_leader_and_the_status_does_not(members: Any, store: EtcdStore) -> None:
    watch = store.watch("p/", start_revision=0)
    async with asyncio.timeout(5):
        await anext(watch)
    await store.put("k", b"")
    await store.status()
    assert ("hasleader", "true") in members[0].metadata["Put"]
    assert ("hasleader", "true") in members[0].metadata["Watch"]
    assert ("hasleader", "true") not in members[0].metadata["Status"]
    await watch.aclose()


async def test_a_keep_alive_without_an_answer_ends_in_time_and_leaves_the_member(
    members: Any, store: EtcdStore
) -> None:
    members[0].answer = lambda rpc, request: None
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await store.keep_alive(1, timeout=0.5)
    assert time.monotonic() - started < 1.0 and store.endpoint == members[1].endpoint


async def test_a_watch_hears_that_its_member_answered_nobody_and_moves_on(members: Any, store: EtcdStore) -> None:
    """A member that hangs: the keep-alive finds out first, and the watch does not wait for its own next question."""
    a, b = members
    for member in members:
        member.answer = lambda rpc, request, m=member: (
            message("WatchResponse")(header=m.header(), created=True)
            if rpc == "Watch" and request.HasField("create")
            else m.plain(rpc, request)
        )
    watch = store.watch("p/", start_revision=6)
    async with asyncio.timeout(5):
        assert isinstance(await anext(watch), Alive)

    async def never() -> Any:
        await asyncio.sleep(30)

    a.answer = lambda rpc, request: never()
    hung_at = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await store.keep_alive(1, timeout=0.3)
    assert time.monotonic() - hung_at < 0.8 and store.endpoint == b.endpoint
    async with asyncio.timeout(5):
        assert isinstance(await anext(watch), Interrupted) and isinstance(await anext(watch), Alive)
    assert time.monotonic() - hung_at < 2.5, "its own question would have taken 3.5 s"
    await watch.aclose()


@pytest.mark.parametrize("failure", UNCLEAR)
async def test_a_keep_alive_that_fails_is_not_a_lost_lease(
    members: Any, store: EtcdStore, failure: tuple[str, str]
) -> None:
    members[0].answer = lambda rpc, request: failure
    with pytest.raises(StoreUnavailable):
        await store.keep_alive(1)


async def test_a_refusal_by_role_is_asked_of_nobody_else(members: Any, store: EtcdStore) -> None:
    members[0].answer = lambda rpc, request: ("PERMISSION_DENIED", "etcdserver: permission denied")
    for call in (store.get("k"), store.put("k", b"")):
        with pytest.raises(StoreUnavailable) as caught:
            await call
        assert caught.value.reason == "StorePermissionDenied" and "role" in caught.value.hint
    assert sum(members[1].calls.values()) == 0 and store.endpoint == members[0].endpoint


async def test_a_transaction_that_only_reads_is_asked_again_and_one_that_writes_is_not(
    members: Any, store: EtcdStore
) -> None:
    members[0].answer = lambda rpc, request: ("UNAVAILABLE", "etcdserver: no leader")
    assert (await store.txn((Compare.absent("k"),), (Get("k"),))).revision == 5
    members[1].answer = members[0].answer
    before = members[0].calls["Txn"], members[1].calls["Txn"]
    with pytest.raises(StoreUnavailable):
        await store.txn((Compare.absent("k"),), (Get("k"), Delete("k")))
    assert (members[0].calls["Txn"], members[1].calls["Txn"]) == (before[0], before[1] + 1)


async def test_a_transaction_that_only_compares_carries_a_read(members: Any, store: EtcdStore) -> None:
    """etcd answers one without operations from the member's own state, which may be old."""
    asked: list[Any] = []

    def answer(rpc: str, request: Any) -> Any:
        asked.append(request)
        return members[0].plain(rpc, request)

    members[0].answer = answer
    result = await store.txn((Compare.present("k"),), ())
    assert [len(request.success) for request in asked] == [1] and result.gets == ()


async def test_closing_ends_a_call_under_way(members: Any, store: EtcdStore) -> None:
    async def never() -> Any:
        await asyncio.sleep(30)

    members[0].answer = lambda rpc, request: never()
    call = asyncio.create_task(store.put("k", b"", timeout=10))
    await asyncio.sleep(0.1)
    await store.close()
    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(2):
            await call


async def test_events_sent_twice_are_delivered_once_and_the_asked_for_header_is_no_resume_point(
    members: Any, store: EtcdStore
) -> None:
    """What 3.4.23 does: a progress answer ahead of the backlog, and duplicates; then the stream breaks."""
    starts: list[int] = []
    event, kv = message("Event"), message("KeyValue")

    def answer(rpc: str, request: Any) -> Any:
        header = message("Header")(cluster_id=77, revision=100)
        if rpc == "Range":  # of the history before the next revision, when the stream is opened again
            return message("RangeResponse")(header=header, kvs=[kv(key=b"p/k", mod_revision=7)])
        if request.HasField("create"):
            starts.append(request.create.start_revision)
            return message("WatchResponse")(header=header, created=True)
        if len(starts) == 1 and not answer.sent:  # type: ignore[attr-defined]
            answer.sent = True  # type: ignore[attr-defined]
            return message("WatchResponse")(header=header, watch_id=-1)
        if len(starts) == 1:
            starts.append(0)
            return message("WatchResponse")(
                header=header, events=[event(kv=kv(key=b"p/k", mod_revision=n)) for n in (6, 7)]
            )
        if starts[-1] == 0:
            return ("UNAVAILABLE", "gone")
        return message("WatchResponse")(
            header=header, events=[event(kv=kv(key=b"p/k", mod_revision=n)) for n in (7, 8)]
        )

    answer.sent = False  # type: ignore[attr-defined]
    for member in members:
        member.revision, member.answer = 100, answer
    watch = store.watch("p/", start_revision=6)
    got: list[int] = []
    interrupted = 0
    async with asyncio.timeout(10):
        while got[-1:] != [8]:
            item = await anext(watch)
            got += [e.mod_revision for e in item.events] if isinstance(item, Events) else []
            interrupted += isinstance(item, Interrupted)
    assert got == [6, 7, 8] and interrupted == 1 and starts == [6, 0, 8]
    await watch.aclose()


@pytest.mark.parametrize("endpoint", ["", "http://", "ftp://x:1", "host-without-port", "https://h"])
def test_an_endpoint_that_is_none_is_named(endpoint: str) -> None:
    with pytest.raises(ConfigError):
        EtcdStore([endpoint])
    with pytest.raises(ConfigError):
        EtcdStore([])


@pytest.mark.parametrize(
    ("endpoint", "tls", "target", "secure"),
    [
        ("h:1", None, "h:1", False),
        ("http://h:1/", None, "h:1", False),
        ("https://h:1", None, "h:1", True),
        ("h:1", TlsFiles(), "h:1", True),
        ("http://h:1", TlsFiles(), "h:1", False),
        ("unix:/run/x", TlsFiles(), "unix:/run/x", False),
    ],
)
def test_the_scheme_or_the_files_decide_on_tls(endpoint: str, tls: TlsFiles | None, target: str, secure: bool) -> None:
    member = Member(endpoint, tls)
    assert (member.target, member.tls is not None) == (target, secure)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a/", (b"a/", b"a0")),
        ("", (b"\0", b"\0")),
        ("a\x7f", (b"a\x7f", b"a\x80")),
        ("é", (b"\xc3\xa9", b"\xc3\xaa")),
    ],
)
def test_a_prefix_becomes_the_range_up_to_its_successor(key: str, expected: tuple[bytes, bytes]) -> None:
    assert key_range(key, prefix=True) == expected


def test_an_empty_range_end_is_never_on_the_wire() -> None:
    """etcd would take it for `every key from here on`."""
    assert message("RangeRequest")(key=b"k", range_end=b"").SerializeToString() == b"\x0a\x01k"
    assert message("Compare")(key=b"k", mod_revision=0).SerializeToString() == b"\x1a\x01k\x30\x00"
