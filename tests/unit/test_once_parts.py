"""`--once` on parts of launches that other hosts own: what a daemon would do with each thing found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infctl.store.codec import encode
from infctl.store.records import FaultNotice, GroupSpec, Host, LaunchPlan, LaunchRecord, RankPart
from infctl_daemon.node.once_parts import Parts
from infctl_daemon.proc import procfs
from infctl_daemon.proc.state_file import GroupState, Process, StateFile

SPEC = GroupSpec(name="g", pool="p", node="a", engine="sim", model_path="/m", tp=2, max_running=1, max_queued=1,
                 hosts=[Host(node="a"), Host(node="b")])  # fmt: skip
OLD, NEW = "g-abcdefgh", "g-bcdefgh2"
SELF = procfs.stat(os.getpid())
assert SELF is not None
LIVING, DEAD = Process(SELF.ident.pid, SELF.ident.start), Process(SELF.ident.pid, 1)


def planned(launch: str) -> tuple[tuple[str, ...], bytes]:
    plan = LaunchPlan(launch=launch, group="g", owner="a", spec=SPEC, served_model="m", revision="r", leader="10.0.0.1",
                      rendezvous=12260, url="http://10.0.0.1:12000")  # fmt: skip
    return ("groups", "g", "launches", launch, "plan"), encode(plan)


def owner_there(launch: str) -> tuple[tuple[str, ...], bytes]:
    part = RankPart(launch=launch, group="g", node="a", node_rank=0, state="loaded")
    return ("groups", "g", "ranks", launch, "a"), encode(part)


def over(launch: str) -> tuple[tuple[str, ...], bytes]:
    return ("faults", "g", launch), encode(
        FaultNotice(fault_id="f", group="g", launch=launch, generation=1, reason="hang")
    )


def ended(launch: str) -> tuple[tuple[str, ...], bytes]:
    record = LaunchRecord(launch=launch, group="g", node="a", ended_at="now", ended_why="deleted")
    return ("groups", "g", "launches", launch), encode(record)


@pytest.mark.parametrize(
    ("keys", "left", "todo"),
    [
        ([planned(NEW)], None, f"start its part of {NEW}"),
        ([planned(NEW), over(NEW)], None, ""),
        ([planned(NEW), ended(NEW)], None, ""),
        ([planned(OLD), owner_there(OLD)], LIVING, f"take over its part of {OLD}"),
        ([planned(OLD)], LIVING, f"take over its part of {OLD}, ask the owner's engine whether it is there"),
        ([planned(OLD), owner_there(OLD), over(OLD)], LIVING, f"take over its part of {OLD}, end its part of {OLD}"),
        ([], LIVING, f"take over its part of {OLD}, end its part of {OLD}"),
        ([planned(OLD), owner_there(OLD)], DEAD, f"end its part of {OLD}, write its fault notice"),
        ([planned(NEW)], DEAD, f"end its part of {OLD}, write its fault notice, start its part of {NEW}"),
    ],
    ids=["plan", "fault", "ended", "lives", "owner-away", "lives-over", "no-plan", "died", "died-and-planned"],
)
def test_what_a_daemon_would_do(
    tmp_path: Path, keys: list[tuple[tuple[str, ...], bytes]], left: Process | None, todo: str
) -> None:
    state, parts = StateFile(tmp_path), Parts("b")
    if left:
        state.write(GroupState(group="g", launch=OLD, boot_id=procfs.boot_id(), processes=[left], stage="checked",
                               node_rank=1))  # fmt: skip
    for key in keys:
        parts.take(*key)
    parts.look(state)
    assert [found.todo for found in parts.findings(supervised=False)] == [todo]


def test_a_part_that_has_ended_here_is_not_begun_again_and_a_supervised_one_is_left_alone(tmp_path: Path) -> None:
    state, parts = StateFile(tmp_path), Parts("b")
    parts.take(*planned(OLD))
    state.write(GroupState(group="g", launch=OLD, node_rank=1))
    parts.look(state)
    assert [found.todo for found in parts.findings(supervised=False)] == [""]
    state.write(GroupState(group="g", launch=OLD, boot_id=procfs.boot_id(), processes=[LIVING], stage="checked"))
    parts.look(state)
    assert [found.todo for found in parts.findings(supervised=True)] == [""]


def test_the_owner_and_other_hosts_have_no_part_to_tell_of(tmp_path: Path) -> None:
    for node in ("a", "c"):
        parts = Parts(node)
        parts.take(*planned(NEW))
        parts.look(StateFile(tmp_path))
        assert parts.findings(supervised=False) == []
