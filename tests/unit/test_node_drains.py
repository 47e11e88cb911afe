"""What a drain of a node is about, in the eyes of people: whose groups, who does it, how far it is, how it ended."""

from __future__ import annotations

from typing import Any

import pytest

from infctl.adapters.memory_store import MemoryStore
from infctl.cli.follow import show_plan
from infctl.client.drain_plan import make_plan
from infctl.client.outcome import ended
from infctl.store.codec import encode
from infctl.store.intent_records import DrainProgress, Hold, Intent, IntentStatus
from infctl.store.keys import Keys
from infctl.store.records import GroupSpec, GroupStatus, Host, NodeLease, NodeSpec, NodeStatus, RankPart
from infctl.view.drains import executors, groups_on, intent_rows, node_phase, open_intents
from infctl.view.snapshot import Snapshot

K = Keys()


def group(name: str, *nodes: str) -> GroupSpec:
    hosts = [Host(node=node) for node in nodes] if len(nodes) > 1 else []
    return GroupSpec(
        name=name, pool="p", node=nodes[0], hosts=hosts, model_path="/m", tp=len(nodes), max_running=1, max_queued=1
    )


GROUPS = [group("x", "a", "b"), group("y", "b"), group("z", "c", "a"), group("w", "c", "b")]


async def test_the_plan_of_a_node_names_groups_of_other_owners_and_daemons_that_are_not_heard(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = MemoryStore()
    for spec in GROUPS:
        await store.put(K.group_spec(spec.name), encode(spec))
    await store.put(K.node_status("b"), encode(NodeStatus(node="b")))
    await store.put(K.node_lease("a"), encode(NodeLease(node="a", boot_id="", incarnation="")))
    plan = await make_plan(store, K, "node/b")
    assert [(g.name, g.node) for g in plan.groups] == [("w", "c"), ("x", "a"), ("y", "b")]
    assert (plan.executors, plan.unheard) == (("b", "a", "c"), ("b", "c"))
    show_plan(plan, "drain")
    err = capsys.readouterr().err
    assert "drain node/b: 3 groups" in err
    assert "group/x of node/a: unknown" in err
    for node in ("b", "c"):
        assert f"warning: the daemon of node/{node} is not heard" in err
    assert "node/a is not heard" not in err and "then its share is not done" in err

    alone = await make_plan(store, K, "group/y")
    assert (alone.executors, alone.unheard) == (("b",), ("b",))
    show_plan(alone, "drain")
    err = capsys.readouterr().err
    assert "  group/y: unknown" in err and "then nothing is done" in err


def snapshot(**phases: str) -> Snapshot:
    s = Snapshot(groups={spec.name: spec for spec in GROUPS})
    s.node_specs["b"] = NodeSpec(cordoned=True, drain="i1")
    for name, phase in phases.items():
        s.group_status[name] = GroupStatus(group=name, node=s.groups[name].node, phase=phase)
    return s


@pytest.mark.parametrize(
    ("phases", "phase"),
    [
        ({"x": "ready", "y": "idle", "w": "idle"}, "Draining"),
        ({"x": "idle", "y": "idle", "w": "ending"}, "Draining"),
        ({"x": "idle", "y": "idle", "w": "failed", "z": "ready"}, "Drained"),
        ({"x": "idle", "y": "idle"}, "Draining"),  # nobody has said anything of w
    ],
)
def test_a_node_is_drained_when_nothing_of_any_owner_runs_there(phases: dict[str, str], phase: str) -> None:
    assert node_phase(snapshot(**phases), "b") == phase


def test_a_part_that_runs_on_the_node_counts_until_it_is_gone_wherever_its_group_is_wanted_by_now() -> None:
    s = snapshot(x="idle", y="idle", w="idle", z="ready")
    part = RankPart(launch="z-1", group="z", node="b", node_rank=1, state="loaded")
    s.parts["z-1"] = {"b": part, "c": part}
    s.parts["deleted-1"] = {"b": RankPart(launch="deleted-1", group="deleted", node="b", node_rank=1, state="loaded")}
    assert groups_on(s, "b") == ["w", "x", "y", "z"]
    assert node_phase(s, "b") == "Draining"
    del s.parts["z-1"]["b"]
    assert node_phase(s, "b") == "Drained"


def test_owners_of_what_the_nodes_drain_holds_are_asked_too_wherever_it_is_wanted_by_now() -> None:
    s = snapshot()
    s.groups["moved"] = group("moved", "d")
    s.holds["moved"] = Hold(group="moved", intent="i1", by="node/b", state="drained")
    s.holds["deleted"] = Hold(group="deleted", intent="i1", by="node/b", state="drained")
    assert executors(s, "b") == ["b", "a", "c", "d"]
    assert executors(s, "d") == ["d"]


def test_an_intent_is_open_until_all_of_its_executors_have_closed_it_and_shows_who_has_not_begun() -> None:
    s = snapshot()
    s.intents["i1"] = Intent(intent="i1", kind="drain", target="node/b", actor="amy", executors=["b", "a", "c"])
    s.intent_status["i1", "b"] = IntentStatus(intent="i1", executor="node/b", state="done")
    line = DrainProgress(group="x", stage="finishing", streams=2)
    s.intent_status["i1", "a"] = IntentStatus(intent="i1", executor="node/a", state="running", groups=[line])
    assert [row[4:7] for row in intent_rows(s, "node/b")] == [
        ("x finishing", "2", "-"),
        ("not taken up", "-", "node/c"),
    ]
    for node in ("a", "c"):
        assert open_intents(s, "node/b")
        s.intent_status["i1", node] = IntentStatus(intent="i1", executor=f"node/{node}", state="failed")
    assert not open_intents(s, "node/b")
    s.intents["i2"] = Intent(intent="i2", kind="drain", target="group/y")
    assert open_intents(s, "group/y")
    s.intent_status["i2", "b"] = IntentStatus(intent="i2", executor="node/b", state="done")
    assert not open_intents(s, "group/y")


def status(node: str, outcome: str, message: str = "", **fields: Any) -> IntentStatus:
    state = {"refused": "failed", "failed": "failed", "expired": "expired"}.get(outcome, "done")
    return IntentStatus(intent="i", executor=f"node/{node}", state=state, outcome=outcome, message=message, **fields)


@pytest.mark.parametrize(
    ("said", "outcome", "message"),
    [
        ([status("a", "drained", "cut 1 stream", cut=1)], "drained", "cut 1 stream"),
        ([status("b", "cordoned"), status("a", "drained")], "drained", ""),
        ([status("b", "unchanged", "is not drained"), status("a", "unchanged", "is not drained")], "unchanged",
         "is not drained"),
        ([status("b", "unchanged", "is not drained"), status("a", "undrained", "1 group starts again")], "undrained",
         "node/a: 1 group starts again"),
        ([status("b", "drained", "cut 1 stream", cut=1), status("a", "failed", "MinReady: no")], "failed",
         "node/b: cut 1 stream; node/a: MinReady: no"),
        ([status("b", "expired", "too late"), status("a", "failed", "MinReady: no")], "expired",
         "node/b: too late; node/a: MinReady: no"),
        ([status("b", "refused", "busy"), status("a", "failed", "a bug")], "failed", "node/b: busy; node/a: a bug"),
    ],
)  # fmt: skip
def test_the_worst_of_several_ends_decides(said: list[IntentStatus], outcome: str, message: str) -> None:
    for statuses in (said, said[::-1]):
        found = ended(statuses)
        assert found.outcome == outcome
        assert set(found.message.split("; ")) == set(message.split("; "))
        assert found.cut == sum(s.cut for s in said)


def test_a_rule_is_why_only_where_it_was_the_worst() -> None:
    guarded, bug = status("a", "failed", "MinReady: no"), status("b", "failed", "a bug")
    assert ended([status("b", "drained"), guarded]).guarded
    assert not ended([guarded, bug]).guarded
