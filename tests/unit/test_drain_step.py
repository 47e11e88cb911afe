"""A drain decides as it should, step by step; the interleavings are in tests/property."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infctl.domain import drain_events as ev
from infctl.domain.disruption import Rule, judge
from infctl.domain.drain import Drain, Instants, Result, Stage, step
from infctl.domain.drain_progress import progress
from infctl.domain.intents import Begin, Expire, Leave, Resume
from infctl.domain.intents import judge as judge_intent

AT = Instants.of(900.0)
NEW = Drain("a", 0.0, AT)


def run(drain: Drain, *events: ev.DrainEvent, now: float = 1.0) -> tuple[Drain, list[ev.DrainEffect]]:
    done: list[ev.DrainEffect] = []
    for event in events:
        drain, effects = step(drain, event, now)
        done += effects
    return drain, done


def kinds(effects: list[ev.DrainEffect]) -> list[str]:
    return [type(e).__name__ for e in effects if not isinstance(e, ev.SetTimer)]


BEGUN = (ev.Began("a-1", True), ev.Permitted(), ev.Withdrawn(7))


def test_the_instants_keep_their_order_however_short_the_deadline_is() -> None:
    assert Instants.of(900.0) == Instants(120.0, 870.0, 900.0)
    for deadline in (0.1, 1.0, 20.0, 61.0, 130.0, 86400.0):
        at = Instants.of(deadline)
        assert 0 < at.hand_over < at.stop < at.kill == deadline


def test_the_order_is_permission_withdrawal_gateways_engine_then_the_stop() -> None:
    drain, done = run(NEW, *BEGUN)
    assert kinds(done) == ["HoldGroup", "AskPermission", "Withdraw", "CountEngine"]
    assert drain.stage is Stage.SEEING
    drain, done = run(drain, ev.GatewaysTold((ev.GatewayLoad("g1", 7, 1), ev.GatewayLoad("g2", 6))))
    assert drain.stage is Stage.SEEING and progress(drain).waits_for == "gateways to see it: g2"
    drain, done = run(drain, ev.GatewaysTold((ev.GatewayLoad("g1", 8, 1, 30, 0.5), ev.GatewayLoad("g2", 7))))
    assert drain.stage is Stage.FINISHING
    said = progress(drain)
    assert (said.waits_for, said.streams, said.tokens, said.next, said.next_at) == (
        "streams of g1",
        1,
        30,
        "SIGTERM",
        870.0,
    )
    drain, done = run(drain, ev.EngineCounted(0, (1.0,)), ev.EngineCounted(0, (2.0,)))
    assert kinds(done) == [], "a gateway still has a stream"
    drain, done = run(drain, ev.GatewaysTold((ev.GatewayLoad("g1", 9), ev.GatewayLoad("g2", 9))))
    drain, done = run(drain, ev.EngineCounted(0, (3.0,)), ev.EngineCounted(0, (3.0,)))
    assert kinds(done) == [], "the same count read twice is one count"
    drain, done = run(drain, ev.EngineCounted(0, (4.0,)), now=10.0)
    assert done == [ev.StopLaunch("a-1", 30.0)]
    drain, done = run(drain, ev.LaunchEnded("drained: planned"))
    assert kinds(done) == ["GiveBackPermission", "Finish"]
    assert (drain.result, drain.why, drain.cut) == (Result.DRAINED, "", 0)


def test_a_request_between_two_counts_starts_the_settling_anew() -> None:
    drain, _ = run(NEW, *BEGUN, ev.GatewaysTold(()))
    drain, done = run(drain, ev.EngineCounted(0, (1.0,)), ev.EngineCounted(1, (2.0,)), ev.EngineCounted(0, (3.0,)))
    assert "StopLaunch" not in kinds(done)
    drain, done = run(drain, ev.EngineCounted(None), ev.EngineCounted(0, (4.0,)))
    assert "StopLaunch" not in kinds(done), "no answer is no count"
    assert kinds(run(drain, ev.EngineCounted(0, (5.0,)))[1]) == ["StopLaunch"]


def test_every_rank_must_have_written_both_counts() -> None:
    drain, _ = run(NEW, *BEGUN, ev.GatewaysTold(()), ev.EngineCounted(0, (1.0, 1.0)))
    assert kinds(run(drain, ev.EngineCounted(0, (2.0, 1.0)))[1]) == []
    assert kinds(run(drain, ev.EngineCounted(0, (2.0, 2.0)))[1]) == ["StopLaunch"]


@pytest.mark.parametrize("prefix", [BEGUN, (*BEGUN, ev.GatewaysTold((ev.GatewayLoad("g", 9, 3),)))])
def test_at_its_instant_the_stop_comes_whatever_is_waited_for_and_the_kill_is_not_later_than_the_deadline(
    prefix: tuple[ev.DrainEvent, ...],
) -> None:
    drain, _ = run(NEW, *prefix)
    drain, done = run(drain, ev.TimerFired("stop"), now=880.0)
    assert done == [ev.StopLaunch("a-1", 20.0)]
    assert drain.cut == (3 if len(prefix) == 4 else 0)


def test_what_could_not_be_withdrawn_in_time_is_not_stopped() -> None:
    drain, _ = run(NEW, *BEGUN[:2], ev.StoreFailed("Withdraw"))
    drain, done = run(drain, ev.TimerFired("stop"), now=870.0)
    assert kinds(done) == ["Return"]
    drain, done = run(drain, ev.Withdrawn(7), ev.Returned(), now=871.0)
    assert kinds(done) == ["GiveBackPermission", "Finish"]
    assert drain.result is Result.FAILED and "withdrawn" in drain.why


def test_a_rule_that_never_allows_it_ends_the_drain_with_nothing_touched() -> None:
    drain, done = run(NEW, BEGUN[0], ev.Blocked(Rule.MIN_READY, "pool/p needs 2 ready, 1 would be left"))
    assert progress(drain).waits_for == "MinReady: pool/p needs 2 ready, 1 would be left"
    assert kinds(run(drain, ev.RulesChanged())[1]) == ["AskPermission"]
    drain, done = run(drain, ev.TimerFired("stop"), now=870.0)
    assert kinds(done) == ["Finish"]
    assert (drain.result, drain.why) == (Result.FAILED, "MinReady: pool/p needs 2 ready, 1 would be left")
    # an answer that comes later is given back
    assert kinds(run(drain, ev.Permitted())[1]) == ["GiveBackPermission"]


def test_it_can_be_taken_back_until_the_stop_and_not_after() -> None:
    drain, done = run(NEW, *BEGUN, ev.UndrainAsked("amy"))
    assert kinds(done)[-1] == "Return"
    assert kinds(run(drain, ev.TimerFired("stop"), now=870.0)[1]) == [], "nothing is stopped on the way back"
    drain, done = run(drain, ev.StoreFailed("Return"), ev.TimerFired("Return"), ev.Returned())
    assert kinds(done) == ["Return", "GiveBackPermission", "Finish"]
    assert (drain.result, drain.why) == (Result.UNDRAINED, "by amy")
    stopping, _ = run(NEW, *BEGUN, ev.TimerFired("stop"), now=870.0)
    assert run(stopping, ev.UndrainAsked("amy")) == (stopping, [])


def test_what_serves_nobody_is_stopped_at_once_and_what_does_not_run_is_drained_already() -> None:
    assert kinds(run(NEW, ev.Began("a-1", False))[1]) == ["HoldGroup", "StopLaunch"]
    drain, done = run(NEW, ev.Began("", False))
    assert kinds(done) == ["HoldGroup", "Finish"] and drain.result is Result.DRAINED
    ending, done = run(NEW, ev.Began("a-1", False, ending=True))
    assert kinds(done) == ["HoldGroup"]
    assert run(ending, ev.LaunchEnded("crash"))[0].result is Result.DRAINED


def test_a_launch_that_dies_in_the_middle_is_told_as_that() -> None:
    drain, _ = run(NEW, *BEGUN, ev.GatewaysTold((ev.GatewayLoad("g", 9, 3),)), ev.LaunchEnded("process-exited: rank 1"))
    assert (drain.result, drain.cut) == (Result.DRAINED, 3)
    assert drain.why == "its launch ended by itself: process-exited: rank 1"


def test_a_restart_keeps_its_permission_until_the_group_serves_again() -> None:
    drain, done = run(replace(NEW, restart=True), *BEGUN, ev.TimerFired("stop"), now=870.0)
    drain, done = run(drain, ev.LaunchEnded(""))
    assert kinds(done) == ["Relaunch"]
    assert run(drain, ev.GroupReady("a-1"))[0] == drain, "the old launch is not a new one"
    assert run(drain, ev.GroupFailed("no weights"))[0].result is Result.FAILED
    drain, done = run(drain, ev.GroupReady("a-2"))
    assert kinds(done) == ["GiveBackPermission", "Finish"] and drain.result is Result.RESTARTED


def test_a_restart_at_once_asks_nobody() -> None:
    _, done = run(replace(NEW, restart=True, at_once=True), ev.Began("a-1", True))
    assert done == [ev.HoldGroup(), ev.StopLaunch("a-1", 0.0)]


@pytest.mark.parametrize(
    ("ready", "disrupted", "below", "rule"),
    [
        ({"a", "b"}, set(), False, None),
        ({"a"}, set(), False, Rule.MIN_READY),
        ({"a"}, set(), True, None),
        ({"b"}, {"b"}, False, None),
        ({"a", "b", "c"}, {"b"}, False, Rule.BUDGET),
        ({"a", "b", "c"}, {"b"}, True, Rule.BUDGET),
        ({"a", "b", "c"}, {"a"}, False, None),
    ],
)
def test_a_pool_keeps_its_minimum_and_its_budget(
    ready: set[str], disrupted: set[str], below: bool, rule: Rule | None
) -> None:
    found = judge("a", pool="p", min_ready=1, budget=1, ready=ready, disrupted=disrupted, below_min=below)
    assert (found.rule if found else None) == rule


def test_groups_that_others_take_away_count_as_gone_already() -> None:
    found = judge("a", pool="p", min_ready=1, budget=5, ready={"a", "b"}, disrupted={"b"})
    assert found is not None and found.rule is Rule.MIN_READY


DAY = 86_400_000.0


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({}, Begin),
        ({"now_ms": 2 * DAY}, Expire),
        ({"current": 4}, Expire),
        ({"state": "running", "now_ms": 500.0, "deadline_ms": 900.0, "current": 4}, Resume),
        ({"state": "running", "now_ms": 901.0, "deadline_ms": 900.0}, Expire),
        ({"state": "done", "now_ms": 2 * DAY}, Leave),
        ({"state": "expired"}, Leave),
    ],
)
def test_an_intent_is_begun_resumed_left_or_expired(facts: dict[str, object], kind: type) -> None:
    base = {"generation": 3, "current": 3, "not_after_ms": 1000.0, "now_ms": 10.0}
    assert type(judge_intent(**{**base, **facts})) is kind  # type: ignore[arg-type]
