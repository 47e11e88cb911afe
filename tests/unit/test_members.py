"""Which parts of others' launches there are: keys in every order that they are listed and heard of in."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from infctl.domain import member_events as ev
from infctl.domain.causes import Cause
from infctl.store.codec import BadRecord, encode
from infctl.store.records import FaultNotice, GroupSpec, Host, LaunchPlan, LaunchRecord, RankPart
from infctl_daemon.node import hosts
from infctl_daemon.node import launch as launches
from infctl_daemon.node.launch import Launch
from infctl_daemon.node.member_work import MemberWork
from infctl_daemon.node.members import Members
from infctl_daemon.node.turns import Turns
from infctl_daemon.node.world import World
from infctl_daemon.proc.state_file import GroupState, StateFile
from infctl_daemon.runtime.log import get

ONE, TWO = "g-1", "g-2"
SPEC = GroupSpec(
    name="g", pool="p", node="a", hosts=[Host(node="a"), Host(node="b")], model_path="/m", max_running=1,
    max_queued=1, tp=2,
)  # fmt: skip
BROKEN = b"{"


def plan(launch: str = ONE, spec: GroupSpec = SPEC) -> bytes:
    return encode(
        LaunchPlan(
            launch=launch,
            group="g",
            owner=spec.node,
            spec=spec,
            served_model="m",
            revision="r",
            leader="10.0.0.1",
            rendezvous=1,
            url="http://10.0.0.1:1",
        )
    )


def record(launch: str = ONE, ended: str = "") -> bytes:
    return encode(LaunchRecord(launch=launch, group="g", node="a", ended_at="now" if ended else "", ended_why=ended))


def notice(launch: str = ONE, reason: str = "process-exited") -> bytes:
    return encode(FaultNotice(fault_id="f1", group="g", launch=launch, generation=1, reason=reason, at_ms=1.0))


class Node:
    """Node `b`, whose loop of group `g` is this list of events."""

    def __init__(self, recorded: str = "") -> None:
        self.world = World()
        self.heard: list[ev.MemberEvent] = []
        state = SimpleNamespace(read=lambda _: SimpleNamespace(launch=recorded, unfinished=bool(recorded)))
        context: Any = SimpleNamespace(node="b", world=self.world, state=state)
        self.members = Members(context)
        loop: Any = SimpleNamespace(post=self.post, stop=lambda: None, wait_gone=self.gone)
        self.members.loops["g"] = loop

    def post(self, event: ev.MemberEvent) -> None:
        if event.launch:
            self.heard.append(event)

    async def gone(self, deadline: float) -> bool:
        return True

    def plan(self, value: bytes | None, launch: str = ONE) -> None:
        self.members.changed(("groups", "g", "launches", launch, "plan"), value)

    def record(self, value: bytes | None, launch: str = ONE) -> None:
        self.members.changed(("groups", "g", "launches", launch), value)

    def fault(self, value: bytes | None, launch: str = ONE) -> None:
        self.members.changed(("faults", "g", launch), value)

    def owner(self, there: bool, launch: str = ONE) -> None:
        part = RankPart(launch=launch, group="g", node="a", node_rank=0, state="loading") if there else None
        self.members.changed(("groups", "g", "ranks", launch, "a"), encode(part) if part else None)
        self.world.set_part(launch, "a", part)

    @property
    def planned(self) -> list[str]:
        return [event.launch for event in self.heard if isinstance(event, ev.PlanSeen)]


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def begun(node: Node) -> Node:
    node.members.begin()
    return node


def test_nothing_is_begun_before_everything_was_listed(node: Node) -> None:
    node.record(record())
    node.plan(plan())
    assert not node.heard
    node.members.begin()
    assert node.planned == [ONE]


def test_a_plan_for_other_hosts_is_not_ours(begun: Node) -> None:
    others = msgspec.structs.replace(SPEC, hosts=[Host(node="a"), Host(node="c")])
    begun.plan(plan(spec=others))
    assert not begun.heard


def test_a_part_whose_group_goes_on_without_us_is_ended_when_its_record_goes(begun: Node) -> None:
    begun.plan(plan())
    begun.record(None)
    begun.plan(None)
    others = msgspec.structs.replace(SPEC, hosts=[Host(node="a"), Host(node="c")])
    begun.plan(plan(TWO, others), TWO)
    assert ev.LaunchClosed(ONE, "its record is gone from the store") in begun.heard and begun.planned == [ONE]


def test_a_node_that_owns_the_next_launch_ends_its_part_of_the_one_before(begun: Node) -> None:
    begun.plan(plan())
    ours = msgspec.structs.replace(SPEC, node="b", hosts=[Host(node="b"), Host(node="a")])
    begun.record(None)
    begun.plan(None)
    begun.plan(plan(TWO, ours), TWO)
    assert any(isinstance(event, ev.LaunchClosed) and event.launch == ONE for event in begun.heard)
    assert begun.planned == [ONE]


@pytest.mark.parametrize("listed", [True, False])
def test_a_notice_that_is_heard_of_before_the_plan_lets_nothing_begin(node: Node, listed: bool) -> None:
    if not listed:
        node.members.begin()
    node.fault(notice())
    node.record(record())
    node.plan(plan())
    if listed:
        node.members.begin()
    assert not node.planned


@pytest.mark.parametrize("last", [ONE, TWO])
def test_the_notice_of_an_older_launch_does_not_hide_that_of_the_planned_one(node: Node, last: str) -> None:
    """Notices last for minutes, and are listed in the order of their names."""
    node.record(record(TWO, "process-exited"), TWO)
    node.plan(plan(TWO), TWO)
    first = TWO if last == ONE else ONE
    node.fault(notice(first), first)
    node.fault(notice(last), last)
    node.members.begin()
    assert not node.planned


def test_a_notice_that_ends_does_not_make_its_launch_begin(begun: Node) -> None:
    begun.fault(notice())
    begun.plan(plan())
    begun.fault(None)
    begun.plan(plan())  # listed anew
    assert not begun.planned


def test_what_is_over_is_forgotten_with_its_launch(begun: Node) -> None:
    begun.plan(plan())
    begun.record(record(ONE, "drained"))
    begun.fault(notice())
    begun.record(None)
    begun.plan(None)
    begun.fault(None)
    begun.fault(notice(TWO), TWO)
    begun.fault(None, TWO)
    assert not begun.members._over


def test_a_part_of_an_earlier_life_whose_plan_is_gone_is_ended() -> None:
    node = Node(recorded=ONE)
    node.members.begin()
    assert node.heard == [ev.LaunchClosed(ONE, "the store does not have its plan any more")]


def test_a_part_of_an_earlier_life_whose_plan_cannot_be_read_is_left_as_it_is() -> None:
    node = Node(recorded=ONE)
    with pytest.raises(BadRecord):
        node.plan(BROKEN)
    node.members.begin()
    assert not node.heard
    node.plan(None)
    assert [type(event) for event in node.heard] == [ev.LaunchClosed]


def test_a_part_of_an_earlier_life_hears_of_the_notice_that_it_missed() -> None:
    node = Node(recorded=ONE)
    node.record(record(ONE, "drained"))
    node.plan(plan())
    node.members.begin()
    assert node.heard[0] == ev.FaultSeen(ONE, "drained")


@pytest.mark.parametrize("listed", [True, False])
def test_an_owner_whose_key_was_never_there_is_away_and_back_when_it_comes(node: Node, listed: bool) -> None:
    if not listed:
        node.members.begin()
    node.plan(plan())
    if listed:
        node.members.begin()
    assert node.planned == [ONE] and node.heard[1:] == [ev.OwnerAway(ONE, lost=False)]
    node.owner(True)
    assert node.heard[-1] == ev.OwnerBack(ONE)


def test_an_owner_whose_key_is_there_before_its_plan_is_not_away(begun: Node) -> None:
    begun.owner(True)
    begun.plan(plan())
    assert [type(event) for event in begun.heard] == [ev.PlanSeen]
    begun.owner(False)
    assert begun.heard[-1] == ev.OwnerAway(ONE)


async def test_a_daemon_that_ends_its_parts_begins_no_other(begun: Node) -> None:
    await begun.members.stop(1.0)
    begun.plan(plan())
    assert not begun.heard


def test_no_host_counts_as_lost_before_the_store_was_asked() -> None:
    world = World()
    context: Any = SimpleNamespace(world=world)
    launch: Any = SimpleNamespace(name=ONE, spec=SPEC)
    assert hosts.lost(context, launch) == ()
    world.listed = True
    assert hosts.lost(context, launch) == ("b",)


class SlowFile(StateFile):
    """A disk that takes its time over what is begun."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ready = threading.Event()

    def write(self, state: GroupState) -> None:
        if state.stage == "claimed":
            self.ready.wait(10)
        super().write(state)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hands of a part, `heard` from them, and the disk; `started` counts processes."""

    async def prepare(context: Any, launch: Launch) -> Any:
        return SimpleNamespace(argv=["engine", "-m", "engine"], env={})

    async def start(order: Any) -> None:
        found.started += 1
        raise OSError("started though it was over")

    monkeypatch.setattr(launches, "prepare", prepare)
    found = SimpleNamespace(started=0, heard=[], state=SlowFile(tmp_path))
    driver = SimpleNamespace(start=start, name_of=lambda launch: "")
    context: Any = SimpleNamespace(
        node="b", state=found.state, state_dir=tmp_path, run_dir=tmp_path, lease=lambda: 1,
        containers=SimpleNamespace(driver=driver), log=get("test"), turns=Turns(), log_of=lambda *_: get("test"),
    )  # fmt: skip
    read = msgspec.json.decode(plan(), type=LaunchPlan)
    found.work = MemberWork(context, "g", found.heard.append, lambda launch: read)
    return found


async def test_a_part_that_is_over_while_its_start_is_written_down_is_never_started(work: Any) -> None:
    work.work.start(ev.SpawnPart(ONE))
    await asyncio.sleep(0.02)
    work.work.start(ev.KillPart(ONE, Cause.CRASH))
    await asyncio.sleep(0.02)
    work.state.ready.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*work.work._tasks)
    assert work.started == 0
    assert {type(event) for event in work.heard} == {ev.PartRefused, ev.PartGone}


async def test_a_start_that_cannot_be_written_down_can_still_be_ended(
    work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(state: GroupState) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(work.state, "write", full)
    work.work.start(ev.SpawnPart(ONE))
    async with asyncio.timeout(10):
        await asyncio.gather(*work.work._tasks)
        work.work.start(ev.KillPart(ONE, Cause.SPAWN_FAILED))
        await asyncio.gather(*work.work._tasks)
    assert [type(event) for event in work.heard] == [ev.PartRefused, ev.PartGone]
