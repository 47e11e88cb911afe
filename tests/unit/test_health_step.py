"""`domain.health.step`, one decision at a time: what evidence takes a launch out of routing, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from infctl.domain import health_events as ev
from infctl.domain.causes import Cause
from infctl.domain.health import Health, HealthPolicy, begin, doubt, findings, policy_of, step
from infctl.domain.health_events import HealthEffect, HealthEvent, Layer, Reason
from infctl.domain.model import Limits

POLICY = HealthPolicy(room=4)


class Course:
    """A launch from its first poll on; `said` are the doubts, trusts and ends in order."""

    def __init__(self, policy: HealthPolicy = POLICY) -> None:
        self.health: Health = begin("a-1", policy)
        self.now = 0.0
        self.stamp = 0.0
        self.said: list[HealthEffect] = []
        self.last: tuple[HealthEffect, ...] = ()
        self.feed(ev.Began())
        self.polls(2)

    def feed(self, *events: HealthEvent) -> None:
        for event in events:
            self.health, self.last = step(self.health, event, self.now)
            self.said += [e for e in self.last if isinstance(e, ev.Doubt | ev.Trust | ev.End)]

    def polls(self, count: int, *, moves: bool = True, **other: object) -> None:
        for _ in range(count):
            self.now += 1.0
            self.stamp += 1.0 if moves else 0.0
            self.feed(ev.Polled((self.stamp,), **other))  # type: ignore[arg-type]

    def canary(self, agreed: int = 8) -> None:
        self.feed(ev.Due(Layer.CANARY), ev.CanaryAnswered(agreed, 8, "" if agreed == 8 else "answered otherwise"))

    def asks(self, layer: Layer) -> bool:
        return any(isinstance(e, ev.Ask) and e.layer is layer for e in self.last)

    @property
    def reasons(self) -> list[str]:
        return [str(e.reason) if isinstance(e, ev.Doubt) else type(e).__name__ for e in self.said]


def test_a_healthy_launch_is_never_spoken_of() -> None:
    course = Course()
    for _ in range(20):
        course.polls(15, running=3)
        course.canary()
        course.feed(ev.Due(Layer.MODEL), ev.ModelSeen())
    assert course.said == []
    assert all(f.holds for f in findings(course.health, course.now))


# several hosts
def test_a_lost_host_alone_takes_out_of_routing_and_kills_nothing_however_long_it_lasts() -> None:
    course = Course()
    course.feed(ev.HostsSeen(("b",)))
    assert course.asks(Layer.CANARY)
    for _ in range(50):
        course.feed(ev.CanaryAnswered(8, 8))
        course.polls(5, running=3)
    assert course.reasons == ["HostLost"]
    course.feed(ev.HostsSeen(()))
    assert course.reasons == ["HostLost", "Trust"]


def test_a_lost_host_and_a_scheduler_that_stands_still_end_it_after_a_last_look() -> None:
    course = Course()
    course.feed(ev.HostsSeen(("b",)))
    course.polls(2, moves=False, running=2)
    assert not course.health.over
    course.polls(1, moves=False, running=2)
    end = course.said[-1]
    assert isinstance(end, ev.End) and end.cause is Cause.HANG and "part of b" in end.evidence


def test_a_lost_host_and_silent_canaries_end_an_idle_launch() -> None:
    course = Course()
    course.feed(ev.HostsSeen(("b",)), ev.CanarySilent("no answer within 4 s"))
    assert not course.health.over
    course.polls(1)
    course.feed(ev.Due(Layer.CANARY), ev.CanarySilent("no answer within 4 s"))
    end = course.said[-1]
    assert isinstance(end, ev.End) and end.cause is Cause.HOST_LOST and "canary" in end.evidence


def test_nothing_ends_for_a_lost_host_while_half_of_the_groups_look_bad() -> None:
    course = Course()
    course.polls(1, hold=True)
    course.feed(ev.HostsSeen(("b",)), ev.CanarySilent("late"), ev.Due(Layer.CANARY), ev.CanarySilent("late"))
    assert course.said == []


# busy or stuck
def test_a_scheduler_that_stands_still_leaves_routing_at_the_stall_time_and_the_canary_is_asked() -> None:
    course = Course()
    course.polls(2, moves=False, running=2)
    assert course.reasons == ["SchedulerStandsStill"]
    assert course.asks(Layer.CANARY)


def test_a_frozen_scheduler_ends_when_the_canary_is_silent_too_and_the_heartbeat_has_had_the_last_word() -> None:
    course = Course()
    course.polls(2, moves=False)
    course.feed(ev.CanarySilent("no answer within 4 s"))
    assert not course.health.over and course.asks(Layer.PROCESS)
    course.polls(1, moves=False)
    end = course.said[-1]
    assert isinstance(end, ev.End) and end.cause is Cause.HANG
    assert "no engine progress for 3.0 s" in end.evidence and "canary: no answer" in end.evidence


def test_a_long_prefill_that_ends_while_the_canary_waits_is_no_failure() -> None:
    course = Course()
    course.polls(5, moves=False, running=1)
    course.feed(ev.CanarySilent("no answer within 4 s"))
    course.polls(1)
    assert course.reasons == ["SchedulerStandsStill", "Trust"]
    assert not course.health.over and course.health.second == ""


def test_one_class_stays_one_class_however_long_it_lasts() -> None:
    """The heartbeat stands still and every canary is right: whatever it is, it serves."""
    course = Course()
    for _ in range(300):
        course.polls(1, moves=False)
        course.feed(ev.CanaryAnswered(8, 8))
    assert course.reasons == ["SchedulerStandsStill"]


def test_a_silent_canary_alone_takes_out_of_routing_and_kills_nothing() -> None:
    course = Course()
    for _ in range(100):
        course.feed(ev.Due(Layer.CANARY), ev.CanarySilent("no answer within 4 s"))
        course.polls(5)
    assert course.reasons == ["CanarySilent"]
    course.canary()
    assert course.reasons == ["CanarySilent", "Trust"]


def test_one_silent_canary_is_not_enough() -> None:
    course = Course()
    course.feed(ev.Due(Layer.CANARY), ev.CanarySilent("no answer within 4 s"))
    assert course.said == []


def test_a_suspicion_alone_is_looked_into_and_changes_nothing() -> None:
    course = Course()
    course.polls(1)
    course.feed(ev.Suspected((ev.Suspicion("g1", "silence"),)))
    assert course.asks(Layer.CANARY)
    course.polls(10)
    assert course.said == []


def test_a_suspicion_confirms_a_stall_without_waiting_for_the_canary() -> None:
    course = Course()
    course.feed(ev.Suspected((ev.Suspicion("g1", "silence"),)))
    course.polls(3, moves=False)
    end = course.said[-1]
    assert isinstance(end, ev.End) and "g1 saw silence" in end.evidence


def test_a_suspicion_that_our_own_question_has_answered_counts_no_more_until_it_is_told_anew() -> None:
    course = Course()
    course.feed(ev.Suspected((ev.Suspicion("g1", "silence", "10:00"),)))
    course.feed(ev.CanaryAnswered(8, 8))
    course.polls(4, moves=False)
    assert not course.health.over, "an old suspicion makes no hang of a stall"
    course.feed(ev.Suspected((ev.Suspicion("g1", "silence", "10:09"),)))
    course.polls(1, moves=False)
    assert isinstance(course.said[-1], ev.End)


def test_an_event_loop_that_does_not_answer_counts_as_no_progress() -> None:
    course = Course()
    for _ in range(2):
        course.now += 1.0
        course.feed(ev.Polled(None, why="/v1/loads: no answer within 0.5 s"))
    course.feed(ev.CanarySilent("no answer"))
    course.now += 1.0
    course.feed(ev.Polled(None, why="/v1/loads: no answer within 0.5 s"))
    assert isinstance(course.said[-1], ev.End)
    live = next(f for f in findings(course.health, course.now) if f.type == "Live")
    assert live.holds is False and live.reason == Reason.LOOP_SILENT


# overload
def test_a_shed_canary_is_no_verdict_in_either_direction() -> None:
    course = Course()
    for _ in range(50):
        course.polls(1, running=4, waiting=4)
        course.feed(ev.Due(Layer.CANARY), ev.CanaryShed())
    assert course.said == []
    course.canary(agreed=0)
    for _ in range(50):
        course.feed(ev.Due(Layer.CANARY), ev.CanaryShed())
    assert course.reasons == ["WrongAnswer"], "being full clears nothing"


@pytest.mark.parametrize(("running", "waiting"), [(2, 1), (4, 0), (4, 9)])
def test_a_canary_that_waits_behind_other_requests_is_no_verdict(running: int, waiting: int) -> None:
    course = Course()
    for _ in range(50):
        course.polls(4, running=running, waiting=waiting)
        course.feed(ev.Due(Layer.CANARY), ev.CanarySilent("no answer within 4 s"))
    assert course.said == []


def test_the_canary_itself_does_not_make_the_engine_full() -> None:
    course = Course()
    for _ in range(3):
        course.feed(ev.Due(Layer.CANARY))
        course.polls(4, running=4, waiting=1)
        course.feed(ev.CanarySilent("no answer within 4 s"))
    assert course.said == [], "four others fill it"
    lone = Course()
    for _ in range(3):
        lone.feed(ev.Due(Layer.CANARY))
        lone.polls(4, running=0, waiting=1)
        lone.feed(ev.CanarySilent("no answer within 4 s"))
    assert lone.reasons == ["CanarySilent"], "alone in the queue and never taken"


# wrong answers
def test_a_wrong_answer_leaves_routing_at_once_and_is_asked_again_soon() -> None:
    course = Course()
    course.canary(agreed=3)
    assert course.reasons == ["WrongAnswer"]
    waits = [e for e in course.last if isinstance(e, ev.Wait)]
    assert waits == [ev.Wait(Layer.CANARY, POLICY.process.interval)]


def test_a_second_wrong_answer_ends_the_launch() -> None:
    course = Course()
    course.canary(agreed=0)
    course.canary(agreed=0)
    end = course.said[-1]
    assert isinstance(end, ev.End) and end.cause is Cause.CANARY_FAILED
    assert "answered otherwise" in end.evidence


def test_a_launch_that_is_right_only_now_and_then_is_not_trusted_and_ends() -> None:
    course = Course()
    course.canary(agreed=0)
    course.canary()
    assert course.reasons == ["WrongAnswer"]
    course.canary(agreed=0)
    assert isinstance(course.said[-1], ev.End)


def test_two_right_answers_clear_a_wrong_one() -> None:
    course = Course()
    for _ in range(10):
        course.canary(agreed=0)
        course.canary()
        course.canary()
    assert course.reasons == ["WrongAnswer", "Trust"] * 10


def test_a_near_answer_of_a_busy_engine_that_promises_nothing_is_no_verdict() -> None:
    """Kernels whose sums depend on the batch may break a near tie; nonsense is wrong from the first token on."""
    course = Course()
    course.polls(1, running=3)
    course.canary(agreed=5)
    assert course.said == []
    course.canary(agreed=0)
    assert course.reasons == ["WrongAnswer"]
    exact = Course(replace(POLICY, exact=True))
    exact.polls(1, running=3)
    exact.canary(agreed=5)
    assert exact.reasons == ["WrongAnswer"]


# what the engine says of itself
@pytest.mark.parametrize("problem", [Reason.NOT_READY, Reason.WRONG_WEIGHTS, Reason.RANKS_MISSING])
def test_what_the_engine_says_of_itself_takes_it_out_of_routing_and_never_kills(problem: Reason) -> None:
    course = Course()
    for _ in range(50):
        course.feed(ev.Due(Layer.MODEL), ev.ModelSeen(problem, "so it says"))
        course.polls(3)
    assert course.reasons == [problem]
    course.polls(3, moves=False)
    assert not course.health.over, "it is no second class of evidence"


def test_one_bad_answer_about_the_model_is_not_enough() -> None:
    course = Course()
    course.feed(ev.Due(Layer.MODEL), ev.ModelSeen(Reason.NOT_READY, "503"))
    assert course.said == []


# holding
def test_nothing_is_withdrawn_and_nothing_ends_while_half_of_the_groups_look_bad() -> None:
    course = Course()
    course.polls(1, moves=False)
    for _ in range(30):
        course.polls(1, moves=False, hold=True)
        course.feed(ev.CanarySilent("no answer"))
        course.canary(agreed=0)
    assert course.said == []
    ready = findings(course.health, course.now)[-1]
    assert (ready.type, ready.holds, ready.reason) == ("Ready", True, Reason.HELD)


def test_what_was_withdrawn_before_the_others_went_bad_comes_back_while_holding() -> None:
    course = Course()
    course.polls(2, moves=False)
    course.polls(1, moves=False, hold=True)
    assert course.reasons == ["SchedulerStandsStill", "Trust"]


def test_a_hang_that_was_held_ends_once_the_others_are_well() -> None:
    course = Course()
    course.polls(3, moves=False, hold=True)
    course.feed(ev.CanarySilent("no answer"))
    course.polls(3, moves=False, hold=True)
    course.polls(1, moves=False)
    assert isinstance(course.said[-1], ev.End)


def test_holding_does_not_ask_faster_than_the_interval() -> None:
    course = Course()
    course.polls(2, moves=False, hold=True)
    course.feed(ev.CanarySilent("no answer"))
    course.polls(5, moves=False, hold=True)
    assert [e.delay for e in course.last if isinstance(e, ev.Wait) and e.layer is Layer.PROCESS] == [1.0]


# asking
def test_a_layer_is_never_asked_twice_at_once() -> None:
    course = Course()
    course.feed(ev.Due(Layer.CANARY))
    assert course.asks(Layer.CANARY)
    course.feed(ev.Due(Layer.CANARY), ev.Suspected((ev.Suspicion("g1", "reset"),)))
    assert not course.asks(Layer.CANARY)


def test_the_intervals_are_spread_by_the_launch_and_stay_within_their_share() -> None:
    delays = set()
    for name in ("a-1", "a-2", "b-1", "c-9"):
        health, effects = step(begin(name, POLICY), ev.Began(), 0.0)
        delays |= {e.delay for e in effects if isinstance(e, ev.Wait) and e.layer is Layer.CANARY}
        assert [e for e in effects if isinstance(e, ev.Ask)] == [ev.Ask(Layer.PROCESS, 0.5)]
        assert health.process.asking
    assert len(delays) == 4
    assert all(13.5 <= delay <= 16.5 for delay in delays)


def test_the_policy_follows_the_timers_of_the_cluster() -> None:
    made = policy_of(Limits(loads_poll=0.4, stall=1.2, probe=0.3), exact=True, room=7)
    assert (made.process.interval, made.process.timeout) == (0.4, 0.3)
    assert (made.canary.timeout, made.stall, made.exact, made.room) == (2.4, 1.2, True, 7)
    assert policy_of(Limits(), exact=False, room=1) == HealthPolicy(), "the defaults are those of the cluster"


def test_a_launch_that_is_over_is_asked_nothing_and_said_once() -> None:
    course = Course()
    course.canary(agreed=0)
    course.canary(agreed=0)
    for event in (
        ev.Due(Layer.CANARY),
        ev.Polled(None),
        ev.CanaryAnswered(0, 8),
        ev.Suspected((ev.Suspicion("g", "x"),)),
    ):
        before = course.health
        course.feed(event)
        assert course.health == before and course.last == ()


def test_every_event_is_known_here() -> None:
    """A new kind of event needs a decision; this list makes that noticed."""
    assert {k.__name__ for k in get_args(HealthEvent)} == {
        "Began", "Due", "Polled", "ModelSeen", "CanaryAnswered", "CanaryShed", "CanarySilent", "Suspected", "Unasked",
        "HostsSeen",
    }  # fmt: skip


def test_the_gravest_doubt_is_named() -> None:
    course = Course()
    course.feed(ev.ModelSeen(Reason.NOT_READY, "503"), ev.ModelSeen(Reason.NOT_READY, "503"))
    course.canary(agreed=0)
    found = doubt(course.health, course.now)
    assert found is not None and found[0] is Reason.WRONG
