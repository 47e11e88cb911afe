"""Descriptions: each state says what it means, why, and what to do; nothing that is half known breaks a page."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.domain.group import Phase as GroupPhase
from infctl.domain.request import TERMINAL as TERMINAL_PHASES
from infctl.domain.request import Phase as RequestPhase
from infctl.domain.request_events import ErrorType
from infctl.store.records import (
    Condition,
    EndpointRecord,
    EventRecord,
    FaultNotice,
    GatewayRecord,
    Generation,
    GroupSpec,
    GroupStatus,
    Host,
    KnownAnswer,
    LaunchRecord,
    NodeLease,
    NodeSpec,
    NodeStatus,
    PoolSpec,
    StreamRecord,
    Suspicion,
    Voice,
)
from infctl.view.describe import group, look, stream
from infctl.view.describe.kinds import DESCRIBE
from infctl.view.describe.look import MOST_EVENTS, Look, count
from infctl.view.describe.page import Page, Tone
from infctl.view.documents import documents
from infctl.view.kinds import Kind
from infctl.view.snapshot import Snapshot

NOW = datetime(2026, 1, 2, 3, 5, 0, tzinfo=UTC)
AT = "2026-01-02T03:04:00.000Z"
LAUNCH = "a-abcdefgh"


def snapshot() -> Snapshot:
    """One healthy group of a pool that needs one."""
    s = Snapshot(revision=40)
    s.node_leases["n"] = NodeLease(node="n", boot_id="b", incarnation="i", started_at=AT)
    s.node_status["n"] = NodeStatus(node="n", cpus=4, updated_at=AT)
    s.pools["p"] = PoolSpec(name="p", model="m")
    s.groups["a"] = GroupSpec(name="a", pool="p", node="n", model_path="/m", tp=2, max_running=1, max_queued=1)
    s.spec_revisions["a"] = 7
    s.group_status["a"] = GroupStatus(group="a", node="n", phase="ready", launch=LAUNCH, updated_at=AT, spec_revision=7)
    s.generations["a"] = Generation(generation=2, launch=LAUNCH, owner="n", at=AT)
    s.launches[LAUNCH] = LaunchRecord(launch=LAUNCH, group="a", node="n", started_at=AT)
    s.endpoints["a"] = EndpointRecord(
        group="a", pool="p", node="n", generation=2, launch=LAUNCH, url="u", model="m", revision="r", tokenizer="t",
        tokenizer_digest="d", context_length=1, vocab_size=1, max_running=1, max_queued=1, published_at=AT,
    )  # fmt: skip
    s.gateways["g"] = GatewayRecord(gateway="g", incarnation="i", url="u", updated_at="2026-01-02T03:04:59.000Z")
    s.streams["r"] = StreamRecord(stream="r", owner="g", term=1, attempt=1, state="DECODING", model="m", group="a",
                                  launch=LAUNCH, started_at=AT, deadline_at="2026-01-02T03:10:00.000Z")  # fmt: skip
    return s


def page(s: Snapshot, kind: Kind, name: str) -> Page:
    return DESCRIBE[kind](Look(s, NOW), name)


def told(found: Page) -> str:
    """Everything that a page says, in one text."""
    parts = [found.state, found.why, *(f"{a}: {b}" for a, b in found.facts), *(e.text for e in found.events)]
    parts += [" ".join(row) for table in found.tables for row in (table.heads, *table.rows)]
    return "\n".join([*parts, *(f"{step.text} $ {step.command}" for step in found.next)])


def test_a_healthy_cluster_needs_nothing() -> None:
    for kind, name in (
        (Kind.NODE, "n"), (Kind.GROUP, "a"), (Kind.ENDPOINT, "a"), (Kind.GATEWAY, "g"), (Kind.STREAM, "r"),
    ):  # fmt: skip
        found = page(snapshot(), kind, name)
        assert (found.tone, found.next) == (Tone.GOOD, []), kind
    pool = page(snapshot(), Kind.POOL, "p")
    assert [step.text[:17] for step in pool.next] == ["There is no spare"]


def test_the_words_are_those_of_the_machines() -> None:
    assert set(group.MEANS) == {*(str(p) for p in GroupPhase), "draining", "drained"}
    assert set(stream.MEANS) == {str(p) for p in RequestPhase}
    assert {str(p) for p in TERMINAL_PHASES} == look.TERMINAL
    assert set(stream.ENDS) <= {str(e) for e in ErrorType}


@pytest.mark.parametrize("phase", [p for p in GroupPhase if p is not GroupPhase.READY])
def test_every_phase_of_a_group_says_what_it_means_and_never_that_all_is_well(phase: GroupPhase) -> None:
    s = snapshot()
    status = msgspec.structs.replace(s.group_status["a"], phase=str(phase), reason="process-exited", message="signal 9")
    s.group_status["a"] = status
    del s.endpoints["a"]
    found = page(s, Kind.GROUP, "a")
    assert found.state == str(phase).capitalize()
    assert found.tone is not Tone.GOOD
    assert found.why == f"{group.MEANS[str(phase)]}; process-exited: signal 9"
    assert found.next


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"phase": "failed", "reason": "canary-failed"}, "It starts again only after its specification changes"),
        ({"phase": "failed", "reason": "canary-failed"}, "same engine? $ infctl describe pool/p"),
        ({"phase": "backoff"}, "It starts again by itself"),
        ({"phase": "backoff"}, f"logs/{LAUNCH}.log below stateDir of the daemon on n"),
        ({"phase": "loading"}, "On its way: loading for 1m00s, at most 15m00s. $ infctl get events --for group/a"),
        ({"phase": "canary"}, "On its way: canary for 1m00s, at most 1m00s."),
    ],
)  # fmt: skip
def test_a_group_that_does_not_serve_says_what_to_do(change: dict[str, str], words: str) -> None:
    s = snapshot()
    s.group_status["a"] = msgspec.structs.replace(s.group_status["a"], **change)
    del s.endpoints["a"]
    assert words in told(page(s, Kind.GROUP, "a"))


def test_a_doubted_group_says_what_becomes_of_requests_and_why() -> None:
    s = snapshot()
    doubt = Condition(type="Ready", status="False", reason="WrongAnswer", message="7 for 9", since=AT)
    s.group_status["a"] = msgspec.structs.replace(
        s.group_status["a"], reason="WrongAnswer", message="7 for 9", conditions=[doubt]
    )
    s.endpoints["a"] = msgspec.structs.replace(s.endpoints["a"], state="unfit")
    found = page(s, Kind.GROUP, "a")
    assert (found.state, found.tone) == ("Unfit", Tone.WARN)
    assert "it gets no new ones; WrongAnswer: 7 for 9" in found.why
    assert "kills nothing" in told(found)
    endpoint = page(s, Kind.ENDPOINT, "a")
    assert (endpoint.state, endpoint.tone) == ("Unfit", Tone.WARN)
    assert endpoint.why.startswith("takes no new requests")
    s.endpoints["a"] = msgspec.structs.replace(s.endpoints["a"], state="suspect")
    assert page(s, Kind.ENDPOINT, "a").why.startswith("takes new requests only where no ready group can")


def test_the_hint_of_a_status_is_a_sentence_of_the_page() -> None:
    s = snapshot()
    hint = "`infctl restart group/a` or a changed specification starts it again"
    s.group_status["a"] = msgspec.structs.replace(s.group_status["a"], phase="failed", hint=hint)
    assert f"{hint}." in told(page(s, Kind.GROUP, "a"))


def test_a_node_that_is_not_heard_makes_everything_on_it_uncertain() -> None:
    s = snapshot()
    del s.node_leases["n"]
    node, found, pool = page(s, Kind.NODE, "n"), page(s, Kind.GROUP, "a"), page(s, Kind.POOL, "p")
    assert "its lease ends. $ infctl describe node/n" in told(page(s, Kind.ENDPOINT, "a"))
    assert (node.state, node.tone) == ("NotResponding", Tone.BAD)
    assert "systemctl status infctl-noded" in told(node)
    assert (found.state, found.tone) == ("Ready", Tone.BAD)
    assert found.why == "when node/n was last heard; that is over"
    assert "$ infctl describe node/n" in told(found)
    assert "a Ready? node not heard" in told(pool)
    del s.endpoints["a"]
    assert [x.command for x in page(s, Kind.POOL, "p").next] == ["infctl describe node/n"]


def test_ready_without_an_endpoint_is_not_well() -> None:
    s = snapshot()
    del s.endpoints["a"]
    found = page(s, Kind.GROUP, "a")
    assert (found.tone, found.why) == (Tone.BAD, "but its endpoint is not in etcd, so no request reaches it")
    assert page(s, Kind.POOL, "p").state == "NotReady"
    assert "pool/p has fewer ready groups than it needs" in told(found)


def test_what_gateways_ignore_says_by_which_rule() -> None:
    s = snapshot()
    s.generations["a"] = Generation(generation=3, launch="a-newer", owner="n", at=AT)
    found = page(s, Kind.ENDPOINT, "a")
    assert (found.tone, found.why) == (Tone.BAD, "but it is of generation 2 and 3 is registered; gateways ignore it")
    s = snapshot()
    s.faults[("a", LAUNCH)] = FaultNotice(fault_id="f", group="a", launch=LAUNCH, generation=2, reason="hang", at=AT)
    assert f"but launch {LAUNCH} is over: hang; gateways ignore it" in told(page(s, Kind.ENDPOINT, "a"))
    s = snapshot()
    s.endpoints["a"] = msgspec.structs.replace(s.endpoints["a"], state="draining")
    assert page(s, Kind.ENDPOINT, "a").tone is Tone.WARN


def test_a_suspicion_is_told_on_every_page_it_touches() -> None:
    s = snapshot()
    s.suspicions[("a", LAUNCH, "g")] = Suspicion(group="a", launch=LAUNCH, gateway="g", kind="eof", why="cut", at=AT)
    assert "is the way between them whole?" in told(page(s, Kind.GROUP, "a"))
    assert "g eof 1m00s ago cut" in told(page(s, Kind.ENDPOINT, "a"))
    assert f"It lost {LAUNCH} on the data path. $ infctl describe group/a" in told(page(s, Kind.GATEWAY, "g"))
    s.generations["a"] = Generation(generation=3, launch="a-newer", owner="n", at=AT)
    assert page(s, Kind.GATEWAY, "g").next == []


def test_gateways_that_are_silent_or_behind() -> None:
    s = snapshot()
    s.gateways["g"] = msgspec.structs.replace(s.gateways["g"], updated_at=AT, stats={"admin": "http://x"})
    found = page(s, Kind.GATEWAY, "g")
    assert (found.state, found.tone) == ("Silent", Tone.WARN)
    assert "$ curl http://x/v1/status" in told(found)
    s = snapshot()
    s.gateways["g"] = msgspec.structs.replace(s.gateways["g"], snapshot_age_ms=61_000.0)
    assert "but its picture of the cluster is 1m01s old" in told(page(s, Kind.GATEWAY, "g"))


@pytest.mark.parametrize("error", list(stream.ENDS))
def test_a_stream_that_failed_says_what_its_error_means(error: str) -> None:
    s = snapshot()
    s.streams["r"] = msgspec.structs.replace(s.streams["r"], state="FAILED", error=f"{error}: because", updated_at=AT)
    found = page(s, Kind.STREAM, "r")
    assert (found.tone, found.why) == (Tone.BAD, f"{error}: because")
    assert stream.ENDS[error] in told(found)
    assert "ended 1m00s ago" in told(found)
    assert "$ infctl describe group/a" in told(found)


def test_a_stream_without_its_gateway_or_a_worker() -> None:
    s = snapshot()
    s.gateways.clear()
    s.streams["r"] = msgspec.structs.replace(s.streams["r"], state="MIGRATING")
    text = told(page(s, Kind.STREAM, "r"))
    assert "Owner: gateway/g, which is not heard" in text
    assert "nobody else takes the stream over" in text
    assert "It needs a ready group of pool/p. $ infctl describe pool/p" in text
    assert "deadline in 5m00s" in text


def test_a_stream_shows_the_fault_that_moved_it() -> None:
    s = snapshot()
    s.streams["r"] = msgspec.structs.replace(s.streams["r"], migrations=1)
    s.events["e2"] = EventRecord(at=AT, kind="stream.migrating", subject="stream/r", actor="gateway/g", fault_id="f")
    s.events["e1"] = EventRecord(
        at=AT,
        kind="fault.written",
        subject="group/b",
        actor="node/n",
        reason="process-exited",
        fault_id="f",
        message="x",
    )
    s.events["e3"] = EventRecord(at=AT, kind="fault.written", subject="group/c", actor="node/n", fault_id="other")
    assert [(e.kind, e.text) for e in page(s, Kind.STREAM, "r").events] == [
        ("fault.written", "group/b: process-exited: x (node/n)"),
        ("stream.migrating", "(gateway/g)"),
    ]


def test_a_stream_that_left_before_the_notice_shows_it_all_the_same() -> None:
    s = snapshot()
    for n, (kind, subject, launch) in enumerate((
        ("launch.claimed", "group/b", "b-old"), ("worker.suspected", "group/b", "b-old"),
        ("stream.migrating", "stream/r", "b-old"), ("fault.written", "group/b", "b-old"),
        ("fault.written", "group/b", "b-older"), ("stream.resumed", "stream/r", LAUNCH),
        ("worker.suspected", "group/a", LAUNCH),
    )):  # fmt: skip
        s.events[f"e{n}"] = EventRecord(at=AT, kind=kind, subject=subject, actor="node/n", fields={"launch": launch})
    assert [e.kind for e in page(s, Kind.STREAM, "r").events] == [
        "worker.suspected", "stream.migrating", "fault.written", "stream.resumed",
    ]  # fmt: skip


def test_only_the_last_events_are_shown_oldest_first() -> None:
    s = snapshot()
    for i in reversed(range(MOST_EVENTS + 5)):
        s.events[f"e{i:02}"] = EventRecord(
            at=f"2026-01-02T03:00:{i:02}.000Z", kind="k", subject="group/a", actor="node/n"
        )
    found = page(s, Kind.GROUP, "a")
    assert [e.at for e in found.events] == [f"03:00:{i:02}.000" for i in range(5, MOST_EVENTS + 5)]
    assert found.earlier == 5


def test_several_revisions_and_tokenizers_are_told() -> None:
    s = snapshot()
    s.groups["b"] = msgspec.structs.replace(s.groups["a"], name="b")
    s.endpoints["b"] = msgspec.structs.replace(s.endpoints["a"], group="b", revision="r2", tokenizer_digest="d2")
    text = told(page(s, Kind.POOL, "p"))
    assert "a stream moves only to a group of its own revision" in text
    assert "a stream moves only where the tokenizer is the same" in text


def test_commands_can_be_pasted_whatever_the_names_are() -> None:
    s = snapshot()
    name = "x; rm -rf ~"
    s.groups[name] = msgspec.structs.replace(s.groups["a"], name=name)
    assert [step.command for step in page(s, Kind.POOL, "p").next if step.command] == [
        f"infctl describe 'group/{name}'"
    ]


def test_a_pool_says_whose_word_its_known_answer_is_and_who_said_otherwise() -> None:
    s = snapshot()
    s.answers["p"] = KnownAnswer(revision="r", input_ids=[1], output_ids=[2], recorded_by="node/n")

    def standing() -> str:
        page = DESCRIBE[Kind.POOL](Look(s, NOW), "p")
        return next(text for label, text in page.facts if label == "Known answer").split(", of revision")[0]

    assert standing() == "provisional"
    a, b = (Voice(group=g, output_ids=[2]) for g in "ab")
    s.answers["p"] = msgspec.structs.replace(s.answers["p"], voices=[a])
    assert standing() == "provisional, given only by a"
    s.answers["p"] = msgspec.structs.replace(s.answers["p"], voices=[b, a], confirmed=True)
    assert standing() == "agreed by b and a"
    s.answers["p"] = msgspec.structs.replace(s.answers["p"], by_operator=True, refused=[a])
    assert standing() == "given by the operator"
    page = DESCRIBE[Kind.POOL](Look(s, NOW), "p")
    assert any(step.text.startswith("a answered otherwise.") for step in page.next)


def test_a_group_says_its_sizes_role_and_gpus() -> None:
    s = snapshot()
    hosts = [Host(node="n", gpus=["0", "1"]), Host(node="m", gpus=["2", "3"])]
    s.groups["a"] = msgspec.structs.replace(s.groups["a"], pp=2, ep=2, role="decode", hosts=hosts)
    facts = dict(DESCRIBE[Kind.GROUP](Look(s, NOW), "a").facts)
    assert "TP 2 PP 2 EP 2 decode" in facts["Engine"]
    assert facts["Ranks"].startswith("4 wanted")
    (table,) = (table for table in page(s, Kind.GROUP, "a").tables if table.title == "Hosts")
    assert [(row[0], row[5]) for row in table.rows] == [("n", "0, 1"), ("m", "2, 3")]
    one = replace(s, groups={"a": msgspec.structs.replace(s.groups["a"], hosts=hosts[:1])})
    assert dict(page(one, Kind.GROUP, "a").facts)["GPUs"] == "n: 0, 1"
    s.node_specs["m"] = NodeSpec()
    beside = DESCRIBE[Kind.NODE](Look(s, NOW), "m")
    assert any(row[0] == "a" for table in beside.tables for row in table.rows)


def test_counts() -> None:
    assert [count(n, "stream") for n in range(3)] == ["no streams", "1 stream", "2 streams"]
    assert count(2, "process", "processes") == "2 processes"


PARTS = ("node_leases", "node_status", "node_specs", "pools", "answers", "groups", "spec_revisions", "group_status",
         "generations", "launches", "endpoints", "faults", "suspicions", "streams", "gateways", "events")  # fmt: skip


@given(st.sets(st.sampled_from(PARTS)), st.sampled_from(list(GroupPhase)), st.sampled_from(list(RequestPhase)))
def test_no_page_breaks_when_half_of_it_is_not_known(missing: set[str], phase: GroupPhase, state: RequestPhase) -> None:
    s = snapshot()
    s.node_specs["n"] = NodeSpec(cordoned=True, reason="fan", actor="amy")
    s.answers["p"] = KnownAnswer(revision="r", input_ids=[1], output_ids=[2])
    s.faults[("a", "a-old")] = FaultNotice(fault_id="f", group="a", launch="a-old", generation=1, reason="hang")
    s.suspicions[("a", LAUNCH, "g")] = Suspicion(group="a", launch=LAUNCH, gateway="g", kind="eof")
    s.events["e"] = EventRecord(at="then", kind="k", subject="s", actor="", fields={"a": [1, None]})
    s.group_status["a"] = msgspec.structs.replace(s.group_status["a"], phase=str(phase), updated_at="")
    s.streams["r"] = msgspec.structs.replace(s.streams["r"], state=str(state), deadline_at="", started_at="")
    s = replace(s, **{name: {} for name in missing})
    for kind in Kind:
        for document in documents(s, kind):
            found = DESCRIBE[kind](Look(s, NOW), document["metadata"]["name"])
            assert found.address.startswith(f"{kind}/")
            assert found.tone is not Tone.BAD or found.why
