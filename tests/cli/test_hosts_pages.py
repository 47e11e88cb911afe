"""Groups over several hosts as people see them: pages at a fixed moment (golden files), tables, documents."""

from __future__ import annotations

import contextlib
import io as std_io
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from infctl.adapters.memory_store import MemoryStore
from infctl.cli.output.page import print_page
from infctl.client.describe import describe
from infctl.client.listing import read_snapshot
from infctl.ports.store import Delete
from infctl.store.codec import Record, encode
from infctl.store.keys import Keys
from infctl.store.records import (
    FaultNotice,
    Generation,
    GroupSpec,
    GroupStatus,
    Host,
    LaunchPlan,
    NodeLease,
    PoolSpec,
    RankPart,
)
from infctl.view.columns import rows
from infctl.view.documents import Doc, documents
from infctl.view.kinds import Kind

GOLDEN = Path(__file__).parent / "golden" / "describe"
NOW = datetime(2026, 1, 2, 3, 5, 30, tzinfo=UTC)
AT = "2026-01-02T03:04:05.678Z"
K = Keys("hosts")
LAUNCH = "g-abcdefgh"
SPEC = GroupSpec(name="g", pool="p", node="a", engine="sim", model_path="/m", tp=6, max_running=4, max_queued=8,
                 hosts=[Host(node=n, gpus=["0", "1"]) for n in ("a", "b", "c")])  # fmt: skip


def part(node: str, state: str = "loaded", ranks: int = 2, message: str = "") -> RankPart:
    return RankPart(launch=LAUNCH, group="g", node=node, node_rank="abc".index(node), state=state, pid=4000 + ranks,
                    ranks=ranks, wanted=2, message=message, at=AT)  # fmt: skip


def cluster() -> dict[str, Record]:
    """A launch that loads on three hosts: done on one, still on the second, the third is not heard."""
    plan = LaunchPlan(launch=LAUNCH, group="g", owner="a", spec=SPEC, served_model="llama", revision="r",
                      leader="10.0.0.1", rendezvous=12260, url="http://10.0.0.1:12000", at=AT)  # fmt: skip
    leases = {
        K.node_lease(n): NodeLease(node=n, boot_id="x", incarnation="i", started_at=AT, engines_at="10.0.0.9")
        for n in ("a", "b", "d")
    }
    return {
        **leases,
        K.pool_spec("p"): PoolSpec(name="p", model="llama"),
        K.group_spec("g"): SPEC,
        K.group_generation("g"): Generation(generation=3, launch=LAUNCH, owner="a", at=AT),
        K.group_status("g"): GroupStatus(group="g", node="a", phase="loading", generation=3, launch=LAUNCH, pid=4002,
                                         processes=4, message="waits for other hosts: b is loading, c has not begun",
                                         updated_at=AT),
        K.launch_plan("g", LAUNCH): plan,
        K.group_rank("g", LAUNCH, "a"): part("a"),
        K.group_rank("g", LAUNCH, "b"): part("b", "loading", 1),
    }  # fmt: skip


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore()
    for key, record in cluster().items():
        await store.put(key, encode(record))
    return store


async def page(store: MemoryStore, kind: Kind, name: str) -> str:
    found = await describe(store, K, {kind: [name]}, NOW)
    out = std_io.StringIO()
    with contextlib.redirect_stdout(out):
        for one in found.pages:
            print_page(one)
    return out.getvalue()


async def group(store: MemoryStore) -> Doc:
    (found,) = documents(await read_snapshot(store, K, [Kind.GROUP]), Kind.GROUP)
    return found


@pytest.mark.parametrize("width", [0, 80], ids=["pipe", "80"])
@pytest.mark.parametrize("kind", [Kind.GROUP, Kind.NODE])
async def test_pages_of_several_hosts(
    store: MemoryStore, kind: Kind, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infctl.cli.io.width", lambda default=0: width)
    text = await page(store, kind, "g" if kind is Kind.GROUP else "b")
    path = GOLDEN / f"hosts-{kind.value}.{width or 'pipe'}.txt"
    if os.environ.get("INFCTL_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    assert not width or max(map(len, text.splitlines())) <= width


async def test_a_document_has_every_host_of_the_launch_that_runs(store: MemoryStore) -> None:
    newer = msgspec.structs.replace(SPEC, tp=2, hosts=[Host(node="a"), Host(node="d")])
    await store.put(K.group_spec("g"), encode(newer))
    found = await group(store)
    assert [h["node"] for h in found["spec"]["hosts"]] == ["a", "d"], "wanted at the next launch"
    said = {h["node"]: (h["nodeRank"], h["heard"], h["state"], h["ranks"]) for h in found["status"]["hosts"]}
    assert said == {"a": (0, True, "loaded", 2), "b": (1, True, "loading", 1), "c": (2, False, None, None)}
    assert "Parts of groups" in await page(store, Kind.NODE, "b"), "until then b has a part"
    assert "Parts of groups" not in await page(store, Kind.NODE, "d")


async def test_wide_tables_say_every_host_in_a_word(store: MemoryStore) -> None:
    columns, cells = rows(Kind.GROUP, [await group(store)], NOW, wide=True)
    assert dict(zip([c.title for c in columns], cells[0], strict=True))["HOSTS"] == ("a loaded, b loading, c not heard")


async def test_a_node_counts_the_groups_that_have_a_part_there(store: MemoryStore) -> None:
    nodes = {d["metadata"]["name"]: d for d in documents(await read_snapshot(store, K, [Kind.NODE]), Kind.NODE)}
    assert {n: d["status"]["groups"] for n, d in nodes.items()} == {"a": ["g"], "b": ["g"], "d": []}


async def test_a_part_that_cannot_be_ended_is_told_with_what_holds_it(store: MemoryStore) -> None:
    await store.put(K.group_rank("g", LAUNCH, "b"), encode(part("b", "stuck", 1, "pid 7 waits in nvidia_ioctl")))
    text = await page(store, Kind.GROUP, "g")
    assert "pid 7 waits in nvidia_ioctl" in text and "Processes on b outlived SIGKILL" in text


async def test_a_host_that_is_heard_and_says_nothing_is_waited_for(store: MemoryStore) -> None:
    await store.put(K.node_lease("c"), encode(NodeLease(node="c", boot_id="x", incarnation="i")))
    text = await page(store, Kind.GROUP, "g")
    assert "It waits for c, whose daemon has not begun its part, or has ended it.\n    $ infctl describe node/c" in text


async def test_the_log_to_read_is_that_of_the_host_whose_part_failed(store: MemoryStore) -> None:
    notice = FaultNotice(fault_id="f", group="g", launch=LAUNCH, generation=3, reason="process-exited", by="node/b",
                         at=AT, at_ms=1.0)  # fmt: skip
    status = GroupStatus(group="g", node="a", phase="backoff", generation=3, launch=LAUNCH, reason="process-exited")
    await store.put(K.group_status("g"), encode(status))
    await store.put(K.fault("g", LAUNCH), encode(notice))
    for node in ("a", "b"):
        await store.txn([], [Delete(K.group_rank("g", LAUNCH, node))])
    text = await page(store, Kind.GROUP, "g")
    assert (
        f"infctl logs group/g --host b --launch {LAUNCH} (logs/{LAUNCH}.log below stateDir of the daemon on b)" in text
    )
    assert "It waits for" not in text, "the parts have ended as they should"
