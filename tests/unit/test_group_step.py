"""`domain.group.step`, one decision at a time: what a state and an event give."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from infctl.domain import group_events as ev
from infctl.domain.causes import Cause
from infctl.domain.group import ALIVE, STORE_RETRY, Group, Phase, RestartPolicy, step

POLICY = RestartPolicy(attempts=3, interval=100.0)


def after(group: Group, *events: ev.GroupEvent, now: float = 0.0) -> Group:
    for event in events:
        group, _ = step(group, event, now)
    return group


IDLE = after(Group("a", POLICY), ev.LeaseHeld(1))
CLAIMING = after(IDLE, ev.SpecApplied("v1"))
SPAWNING = after(CLAIMING, ev.LaunchClaimed("a-1", 4))
LOADING = after(SPAWNING, ev.Spawned("a-1", 100))
CANARY = after(LOADING, ev.EngineLoaded("a-1", 2))
PUBLISHING = after(CANARY, ev.CanaryPassed("a-1"))
READY = after(PUBLISHING, ev.EndpointPublished("a-1", 4))
ENDING = after(READY, ev.ProcessExited("a-1", 101, "scheduler_TP1"), now=10.0)
BACKOFF = after(ENDING, ev.FaultWritten("a-1"), ev.LaunchGone("a-1"), now=10.0)
FAILED = after(
    replace(READY, failures=(7.0, 8.0, 9.0)),
    ev.HangConfirmed("a-1", "silent"),
    ev.FaultWritten("a-1"),
    ev.LaunchGone("a-1"),
    now=10.0,
)
STOPPING = after(READY, ev.SpecDeleted())
DOUBTED = after(READY, ev.HealthDoubted("a-1", "WrongAnswer", "7 for 9"))
WITHDRAWN = after(DOUBTED, ev.EndpointPublished("a-1", 4, "unfit"))
EVERY_STATE = {
    "idle": IDLE,
    "claiming": CLAIMING,
    "spawning": SPAWNING,
    "loading": LOADING,
    "canary": CANARY,
    "publishing": PUBLISHING,
    "ready": READY,
    "ending": ENDING,
    "stopping": STOPPING,
    "backoff": BACKOFF,
    "failed": FAILED,
    "doubted": DOUBTED,
    "withdrawn": WITHDRAWN,
    "fresh": Group("a"),
}
ALIVE_STATES = [SPAWNING, LOADING, CANARY, PUBLISHING, READY]
SOME_EVENTS: tuple[ev.GroupEvent, ...] = tuple(
    event
    for launch in ("a-1", "a-0", "")
    for event in (
        ev.SpecApplied("v1"),
        ev.SpecApplied("v2"),
        ev.SpecDeleted(),
        ev.GroupHeld(),
        ev.LaunchDrained(launch, "drained", 5.0),
        ev.LaunchFound(launch, 4),
        ev.LaunchAdopted(launch, 4, True, 1),
        ev.LaunchAdopted(launch, 4, False, 1),
        ev.LaunchClaimed(launch, 4),
        ev.LaunchClaimed(launch, 5),
        ev.GenerationClaimed(launch, 3),
        ev.GenerationClaimed(launch, 5),
        ev.ClaimRefused(launch, "another writer"),
        ev.ClaimDeferred("waits for pool p"),
        *(ev.StoreFailed(what, launch) for what in ("ClaimLaunch", "ClaimGeneration", "PublishEndpoint", "WriteFault")),
        ev.StoreFailed("RunCanary", launch),
        ev.StoreFailed("nonsense", launch),
        ev.Spawned(launch, 1),
        ev.SpawnFailed(launch, "no file"),
        ev.EngineLoaded(launch, 2),
        ev.CanaryPassed(launch),
        ev.CanaryFailed(launch, "wrong"),
        ev.EndpointPublished(launch, 4),
        ev.ProcessExited(launch, 1, "main"),
        ev.LaunchGone(launch),
        ev.FaultWritten(launch),
        ev.FaultSeen(launch, "operator"),
        ev.HangConfirmed(launch, "silent"),
        ev.HealthDoubted(launch, "SchedulerStandsStill", "its stamp"),
        ev.HealthTrusted(launch),
        ev.LeaseEnded(),
        ev.LeaseHeld(2),
        *(
            ev.TimerFired(n, launch)
            for n in ("relaunch", "claim", "load", "canary", "recheck", "publish", "fault", "x")
        ),
    )
)


def test_the_events_here_are_all_there_are() -> None:
    assert {type(e) for e in SOME_EVENTS} == set(get_args(ev.GroupEvent))


def test_the_states_here_are_the_phases_they_are_named_after() -> None:
    assert {s.phase for s in EVERY_STATE.values()} == set(Phase)


@pytest.mark.parametrize("state", EVERY_STATE.values(), ids=EVERY_STATE.keys())
def test_no_event_raises_in_any_state_and_no_generation_falls(state: Group) -> None:
    for event in SOME_EVENTS:
        moved, effects = step(state, event, 50.0)
        assert moved.generation >= state.generation
        assert all(isinstance(e, get_args(ev.GroupEffect)) for e in effects)


@pytest.mark.parametrize("state", EVERY_STATE.values(), ids=EVERY_STATE.keys())
def test_a_store_that_does_not_answer_moves_nothing_and_kills_nothing(state: Group) -> None:
    for event in SOME_EVENTS:
        if isinstance(event, ev.StoreFailed):
            moved, effects = step(state, event, 50.0)
            assert moved == state
            assert all(isinstance(e, ev.SetTimer) for e in effects)


@pytest.mark.parametrize("state", EVERY_STATE.values(), ids=EVERY_STATE.keys())
def test_an_event_of_another_launch_changes_nothing(state: Group) -> None:
    """Claims and their timers belong to the group: they name no launch, or one that is not there yet."""
    of_the_group = {
        *(ev.TimerFired(name, "a-0") for name in ("relaunch", "claim")),
        ev.StoreFailed("ClaimLaunch", "a-0"),
    }
    claims = ev.LaunchClaimed | ev.LaunchFound | ev.LaunchAdopted | ev.ClaimRefused
    for event in SOME_EVENTS:
        other = getattr(event, "launch", "") == "a-0"
        if other and event not in of_the_group and not isinstance(event, claims):
            assert step(state, event, 50.0) == (state, ()), event


# the straight road
def test_a_group_is_claimed_spawned_loaded_checked_and_published_in_that_order() -> None:
    group, done = Group("a", POLICY), []
    for event in (
        ev.LeaseHeld(1),
        ev.SpecApplied("v1"),
        ev.LaunchClaimed("a-1", 4),
        ev.Spawned("a-1", 9),
        ev.EngineLoaded("a-1", 2),
        ev.CanaryPassed("a-1"),
        ev.EndpointPublished("a-1", 4),
    ):
        group, effects = step(group, event, 0.0)
        done += [e for e in effects if not isinstance(e, ev.SetTimer | ev.Announce)]
    assert group.phase is Phase.READY and group.running == "v1"
    assert done == [
        ev.ClaimLaunch(0),
        ev.SpawnLaunch("a-1"),
        ev.AwaitLoad("a-1"),
        ev.RunCanary("a-1"),
        ev.PublishEndpoint("a-1", 4),
    ]


def test_nothing_is_claimed_without_a_lease_and_the_lease_starts_it() -> None:
    waiting, effects = step(Group("a"), ev.SpecApplied("v1"), 0.0)
    assert (waiting.phase, effects) == (Phase.CLAIMING, ())
    assert step(waiting, ev.LeaseHeld(1), 0.0)[1] == (ev.ClaimLaunch(0),)


@pytest.mark.parametrize("generation", [3, 4])
def test_a_claim_that_does_not_raise_the_generation_is_refused(generation: int) -> None:
    state = replace(CLAIMING, generation=4)
    assert step(state, ev.LaunchClaimed("a-2", generation), 0.0) == (state, ())


def test_a_passed_canary_without_a_lease_waits_for_the_lease_before_it_publishes() -> None:
    waiting, effects = step(after(CANARY, ev.LeaseEnded()), ev.CanaryPassed("a-1"), 0.0)
    assert (waiting.phase, effects) == (Phase.PUBLISHING, ())
    assert step(waiting, ev.LeaseHeld(2), 0.0)[1] == (ev.ClaimGeneration("a-1", 4),)


def test_an_answer_to_an_older_publish_does_not_make_the_group_ready() -> None:
    raised = after(PUBLISHING, ev.GenerationClaimed("a-1", 5))
    assert step(raised, ev.EndpointPublished("a-1", 4), 0.0) == (raised, ())
    assert after(raised, ev.EndpointPublished("a-1", 5)).phase is Phase.READY


# deaths
@pytest.mark.parametrize("state", ALIVE_STATES, ids=lambda s: s.phase)
@pytest.mark.parametrize(
    "event",
    [
        ev.ProcessExited("a-1", 101, "scheduler_TP1", "SIGKILL"),
        ev.HangConfirmed("a-1", "two witnesses"),
        ev.SpawnFailed("a-1", "no file"),
        ev.ClaimRefused("a-1", "another launch"),
        ev.LaunchGone("a-1"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_end_makes_the_kill_and_the_notice_in_one_step(state: Group, event: ev.GroupEvent) -> None:
    ending, effects = step(state, event, 10.0)
    assert ending.phase is Phase.ENDING and ending.fault_pending
    assert isinstance(effects[0], ev.KillLaunch), "the kill is first: a crash after it leaves nothing alive"
    assert isinstance(effects[1], ev.WriteFault)
    assert ending.failures == (10.0,)


@pytest.mark.parametrize("state", ALIVE_STATES, ids=lambda s: s.phase)
def test_a_notice_of_another_member_is_obeyed_and_not_written_again(state: Group) -> None:
    ending, effects = step(state, ev.FaultSeen("a-1", "host lost"), 10.0)
    assert ending.phase is Phase.ENDING and not ending.fault_pending
    assert effects[0] == ev.KillLaunch("a-1", "host lost")
    assert not any(isinstance(e, ev.WriteFault) for e in effects)
    assert after(ending, ev.LaunchGone("a-1"), now=10.0).phase is Phase.BACKOFF


def test_the_processes_that_follow_the_first_death_change_nothing() -> None:
    assert step(ENDING, ev.ProcessExited("a-1", 102, "main"), 10.0) == (ENDING, ())
    assert step(ENDING, ev.CanaryPassed("a-1"), 10.0) == (ENDING, ())
    assert step(ENDING, ev.EndpointPublished("a-1", 4), 10.0) == (ENDING, ())


@pytest.mark.parametrize("first", [ev.FaultWritten("a-1"), ev.LaunchGone("a-1")], ids=lambda e: type(e).__name__)
def test_a_new_launch_waits_for_both_the_notice_and_the_last_process(first: ev.GroupEvent) -> None:
    half = after(ENDING, first, now=10.0)
    assert half.phase is Phase.ENDING
    assert after(half, first, now=10.0).phase is Phase.ENDING
    whole = after(half, ev.FaultWritten("a-1"), ev.LaunchGone("a-1"), now=10.0)
    assert whole.phase is Phase.BACKOFF


def test_a_launch_whose_processes_are_all_gone_needs_no_second_word_of_it() -> None:
    ending = after(READY, ev.LaunchGone("a-1"), now=10.0)
    assert after(ending, ev.FaultWritten("a-1"), now=10.0).phase is Phase.BACKOFF


def test_a_notice_that_could_not_be_written_is_tried_again_with_the_same_words() -> None:
    _, effects = step(ENDING, ev.StoreFailed("WriteFault", "a-1"), 10.0)
    assert effects == (ev.SetTimer("fault", "a-1", STORE_RETRY),)
    _, effects = step(ENDING, ev.TimerFired("fault", "a-1"), 10.5)
    assert effects == (ev.WriteFault("a-1", "process-exited", "scheduler_TP1 (pid 101) ended"),)


def test_a_notice_that_is_refused_because_another_launch_is_registered_does_not_hold_the_group() -> None:
    gone = after(ENDING, ev.LaunchGone("a-1"), now=10.0)
    assert after(gone, ev.ClaimRefused("a-1", "another launch"), now=10.0).phase is Phase.BACKOFF


# timers and retries
@pytest.mark.parametrize(
    ("state", "name", "reason"),
    [
        (SPAWNING, "load", "load-timeout"),
        (LOADING, "load", "load-timeout"),
        (CANARY, "canary", "canary-failed"),
    ],
)
def test_a_launch_that_does_not_come_up_in_time_is_ended(state: Group, name: str, reason: str) -> None:
    ending, effects = step(state, ev.TimerFired(name, "a-1"), 10.0)
    assert ending.phase is Phase.ENDING
    assert effects[0] == ev.KillLaunch("a-1", reason)


@pytest.mark.parametrize("name", ["load", "canary", "recheck", "publish", "fault", "relaunch", "claim"])
def test_a_timer_that_outlived_its_reason_does_nothing(name: str) -> None:
    assert step(READY, ev.TimerFired(name, "a-1"), 10.0) == (READY, ())


def test_a_claim_is_tried_again_after_an_unknown_answer_and_after_a_refusal() -> None:
    for event in (ev.StoreFailed("ClaimLaunch", ""), ev.ClaimRefused("", "raced"), ev.ClaimRefused("a-77", "raced")):
        state, effects = step(CLAIMING, event, 0.0)
        assert effects[0] == ev.SetTimer("claim", "", STORE_RETRY)
        assert step(state, ev.TimerFired("claim", ""), 1.0)[1] == (ev.ClaimLaunch(0),)


def test_a_canary_that_the_store_could_not_judge_is_asked_again() -> None:
    state, effects = step(CANARY, ev.StoreFailed("RunCanary", "a-1"), 1.0)
    assert ev.SetTimer("recheck", "a-1", STORE_RETRY) in effects
    assert step(state, ev.TimerFired("recheck", "a-1"), 2.0)[1] == (ev.RunCanary("a-1"),)


@pytest.mark.parametrize(
    ("failures", "delay"), [(0, 2.0), (1, 2.0), (2, 4.0), (3, 8.0), (5, 32.0), (6, 60.0), (10_000, 60.0)]
)
def test_the_wait_before_a_relaunch_doubles_to_its_most(failures: int, delay: float) -> None:
    assert RestartPolicy().delay(failures) == delay


def test_a_relaunch_claims_above_the_generation_it_had() -> None:
    claiming, effects = step(BACKOFF, ev.TimerFired("relaunch", ""), 12.0)
    assert claiming.phase is Phase.CLAIMING
    assert effects == (ev.ClaimLaunch(4),)


def test_too_many_ends_within_the_interval_give_up_and_a_new_spec_begins_again() -> None:
    assert FAILED.phase is Phase.FAILED
    assert step(FAILED, ev.SpecApplied("v1"), 11.0) == (FAILED, ())
    again, effects = step(FAILED, ev.SpecApplied("v2"), 11.0)
    assert (again.phase, again.failures, effects) == (Phase.CLAIMING, (), (ev.ClaimLaunch(4),))


def test_ends_outside_the_interval_are_forgotten() -> None:
    old = replace(READY, failures=(1.0, 2.0, 3.0))
    ending = after(old, ev.ProcessExited("a-1", 1, "main"), now=200.0)
    assert ending.failures == (200.0,)


# wanted and not wanted
def test_a_new_spec_of_a_running_group_is_noted_and_restarts_nothing() -> None:
    noted, effects = step(READY, ev.SpecApplied("v2"), 1.0)
    assert (noted.phase, noted.wanted, noted.running, effects) == (Phase.READY, "v2", "v1", ())


@pytest.mark.parametrize("state", ALIVE_STATES, ids=lambda s: s.phase)
def test_a_deleted_group_is_stopped_not_killed_and_rests_when_all_is_gone(state: Group) -> None:
    stopping, effects = step(state, ev.SpecDeleted(), 1.0)
    assert effects[0] == ev.StopLaunch("a-1", POLICY.kill_deadline)
    assert ev.WriteFault("a-1", "deleted", "planned") in effects
    assert not any(isinstance(e, ev.KillLaunch) for e in effects)
    written = after(stopping, ev.FaultWritten("a-1"))
    assert written.phase is Phase.ENDING, "its processes still run"
    idle, effects = step(written, ev.LaunchGone("a-1"), 2.0)
    assert (idle.phase, idle.failures) == (Phase.IDLE, ())


def test_a_group_that_is_wanted_again_while_it_stops_starts_after_it_has_stopped() -> None:
    wanted = after(STOPPING, ev.SpecApplied("v2"))
    assert wanted.phase is Phase.ENDING
    backoff = after(wanted, ev.LaunchGone("a-1"), ev.FaultWritten("a-1"))
    assert backoff.phase is Phase.BACKOFF


@pytest.mark.parametrize("state", [CLAIMING, BACKOFF, FAILED], ids=lambda s: s.phase)
def test_a_deleted_group_without_a_launch_rests_at_once(state: Group) -> None:
    idle, effects = step(state, ev.SpecDeleted(), 1.0)
    assert (idle.phase, effects) == (Phase.IDLE, ())
    assert step(idle, ev.TimerFired("relaunch", ""), 5.0) == (idle, ())


def test_a_claim_that_arrives_after_the_deletion_spawns_nothing_and_raises_the_floor() -> None:
    idle, effects = step(after(CLAIMING, ev.SpecDeleted()), ev.LaunchClaimed("a-1", 4), 1.0)
    assert (idle.phase, idle.generation, effects) == (Phase.IDLE, 4, ())


def test_a_second_claim_of_ours_ends_the_launch_that_it_replaced_in_the_store() -> None:
    ending, effects = step(LOADING, ev.LaunchClaimed("a-2", 5), 1.0)
    assert (ending.phase, ending.launch, ending.generation) == (Phase.ENDING, "a-1", 5)
    assert effects[0] == ev.KillLaunch("a-1", "superseded")


def test_a_launch_of_an_earlier_life_is_ended_before_anything_starts_and_is_nobodys_failure() -> None:
    found, effects = step(replace(IDLE, generation=9), ev.LaunchFound("a-7", 8), 1.0)
    assert (found.phase, found.generation, found.failures) == (Phase.ENDING, 9, ())
    assert isinstance(effects[0], ev.KillLaunch) and isinstance(effects[1], ev.WriteFault)
    wanted, effects = step(found, ev.SpecApplied("v1"), 1.0)
    assert (wanted.phase, effects) == (Phase.ENDING, ())


def test_a_launch_that_died_while_no_daemon_was_there_counts_as_a_failure() -> None:
    found, effects = step(IDLE, ev.LaunchFound("a-7", 8, "process-exited", "scheduler_TP1 ended"), 3.0)
    assert (found.phase, found.failures) == (Phase.ENDING, (3.0,))
    assert effects[1] == ev.WriteFault("a-7", "process-exited", "scheduler_TP1 ended")


# a launch that outlived its daemon
FRESH = Group("a", POLICY, generation=4)
ADOPTED = after(FRESH, ev.LaunchAdopted("a-1", 4, True, 7, "v1"))


def test_an_adopted_launch_waits_for_the_lease_and_keeps_its_generation_under_the_same_one() -> None:
    assert (ADOPTED.phase, ADOPTED.gone, ADOPTED.running) == (Phase.PUBLISHING, False, "v1")
    held, effects = step(ADOPTED, ev.LeaseHeld(7), 1.0)
    assert effects == (ev.PublishEndpoint("a-1", 4),)
    assert after(held, ev.EndpointPublished("a-1", 4)).phase is Phase.READY


def test_an_adopted_launch_whose_lease_was_lost_gets_a_new_generation() -> None:
    for lost in (ADOPTED, after(ADOPTED, ev.LeaseHeld(7), ev.LeaseEnded())):
        held, effects = step(lost, ev.LeaseHeld(8), 1.0)
        assert held.launch == "a-1" and effects == (ev.ClaimGeneration("a-1", 4),)


def test_an_adopted_launch_that_still_loads_goes_on_loading() -> None:
    loading, effects = step(FRESH, ev.LaunchAdopted("a-1", 4, False, 7), 1.0)
    assert loading.phase is Phase.LOADING
    assert effects[:2] == (ev.AwaitLoad("a-1"), ev.SetTimer("load", "a-1", POLICY.load_deadline))
    assert after(loading, ev.EngineLoaded("a-1", 2)).phase is Phase.CANARY


def test_a_death_right_after_the_adoption_ends_the_launch_without_lease_or_specification() -> None:
    ending, effects = step(ADOPTED, ev.ProcessExited("a-1", 9, "scheduler_TP0"), 1.0)
    assert ending.phase is Phase.ENDING and isinstance(effects[0], ev.KillLaunch)
    rest = after(ending, ev.FaultWritten("a-1"), ev.LaunchGone("a-1"))
    assert rest.phase is Phase.IDLE and after(rest, ev.LeaseHeld(7), ev.SpecApplied("v1")).phase is Phase.CLAIMING


def test_a_specification_that_changed_meanwhile_restarts_nothing() -> None:
    applied, effects = step(ADOPTED, ev.SpecApplied("v2"), 1.0)
    assert (applied.phase, applied.wanted, applied.running, effects) == (Phase.PUBLISHING, "v2", "v1", ())


# leases
@pytest.mark.parametrize("state", EVERY_STATE.values(), ids=EVERY_STATE.keys())
def test_a_lost_lease_stops_nothing_by_itself(state: Group) -> None:
    assert step(state, ev.LeaseEnded(), 1.0) == (replace(state, leased=False), ())


@pytest.mark.parametrize("state", [PUBLISHING, READY], ids=lambda s: s.phase)
def test_a_lease_that_was_lost_is_followed_by_a_new_generation_of_the_same_launch(state: Group) -> None:
    held, effects = step(after(state, ev.LeaseEnded()), ev.LeaseHeld(2), 1.0)
    assert (held.phase, held.launch, effects) == (Phase.PUBLISHING, "a-1", (ev.ClaimGeneration("a-1", 4),))
    raised, effects = step(held, ev.GenerationClaimed("a-1", 5), 1.0)
    assert effects == (ev.PublishEndpoint("a-1", 5),)
    assert after(raised, ev.EndpointPublished("a-1", 5)).phase is Phase.READY


def test_holding_the_lease_twice_does_nothing_twice() -> None:
    for state in (CLAIMING, PUBLISHING, READY):
        assert step(state, ev.LeaseHeld(1), 1.0) == (state, ())


def test_an_unknown_answer_to_the_new_generation_asks_again_and_never_publishes_the_old_one() -> None:
    held = after(READY, ev.LeaseEnded(), ev.LeaseHeld(2))
    state, effects = step(held, ev.StoreFailed("ClaimGeneration", "a-1"), 1.0)
    assert effects == (ev.SetTimer("publish", "a-1", STORE_RETRY),)
    assert step(state, ev.TimerFired("publish", "a-1"), 2.0)[1] == (ev.ClaimGeneration("a-1", 4),)


def test_an_unknown_answer_to_a_publish_asks_again_while_the_lease_is_held() -> None:
    state, _ = step(PUBLISHING, ev.StoreFailed("PublishEndpoint", "a-1"), 1.0)
    assert step(state, ev.TimerFired("publish", "a-1"), 2.0)[1] == (ev.PublishEndpoint("a-1", 4),)
    unleased = after(state, ev.LeaseEnded())
    assert step(unleased, ev.TimerFired("publish", "a-1"), 2.0) == (unleased, ())


def test_a_ready_group_whose_generation_rose_in_the_store_publishes_again() -> None:
    raised, effects = step(READY, ev.GenerationClaimed("a-1", 6), 1.0)
    assert (raised.phase, effects) == (Phase.PUBLISHING, (ev.PublishEndpoint("a-1", 6),))


def test_a_new_generation_that_is_refused_ends_the_launch() -> None:
    held = after(READY, ev.LeaseEnded(), ev.LeaseHeld(2))
    assert step(held, ev.ClaimRefused("a-1", "a fault notice"), 1.0)[1][0] == ev.KillLaunch("a-1", "refused")


def test_every_phase_with_processes_is_known_as_alive() -> None:
    assert {s.phase for s in ALIVE_STATES} == ALIVE


# doubts
@pytest.mark.parametrize("state", [DOUBTED, WITHDRAWN], ids=["doubted", "withdrawn"])
def test_a_doubt_takes_the_endpoint_out_of_routing_and_ends_nothing(state: Group) -> None:
    _, effects = step(READY, ev.HealthDoubted("a-1", "WrongAnswer", "7 for 9"), 1.0)
    assert effects[0] == ev.PublishEndpoint("a-1", 4, "unfit")
    assert state.phase is Phase.READY and state.launch == "a-1"
    assert not any(isinstance(e, ev.KillLaunch | ev.WriteFault | ev.StopLaunch) for e in effects)


@pytest.mark.parametrize(
    ("reason", "state"),
    [("SchedulerStandsStill", "suspect"), ("EventLoopSilent", "suspect"), ("CanarySilent", "unfit"),
     ("EngineNotReady", "unfit"), ("WrongWeights", "unfit"), ("a later word", "unfit")],
)  # fmt: skip
def test_what_may_only_be_busy_is_suspect_and_everything_else_unfit(reason: str, state: str) -> None:
    _, effects = step(READY, ev.HealthDoubted("a-1", reason, ""), 1.0)
    assert effects[0] == ev.PublishEndpoint("a-1", 4, state)


def test_a_doubt_that_is_over_brings_the_endpoint_back() -> None:
    trusted, effects = step(WITHDRAWN, ev.HealthTrusted("a-1"), 2.0)
    assert effects[0] == ev.PublishEndpoint("a-1", 4, "ready")
    assert step(trusted, ev.EndpointPublished("a-1", 4, "ready"), 2.0)[0].published == "ready"
    assert step(READY, ev.HealthTrusted("a-1"), 2.0) == (READY, ())


def test_a_doubt_that_changed_its_mind_while_it_was_written_is_written_again() -> None:
    trusted = after(DOUBTED, ev.HealthTrusted("a-1"))
    _, effects = step(trusted, ev.EndpointPublished("a-1", 4, "unfit"), 2.0)
    assert ev.PublishEndpoint("a-1", 4, "ready") in effects


def test_a_doubt_before_the_endpoint_is_written_is_in_it_in_the_end() -> None:
    early = after(PUBLISHING, ev.HealthDoubted("a-1", "CanarySilent", "no answer"))
    assert early.phase is Phase.PUBLISHING
    ready, effects = step(early, ev.EndpointPublished("a-1", 4), 2.0)
    assert ready.phase is Phase.READY
    assert ev.PublishEndpoint("a-1", 4, "unfit") in effects


def test_a_doubt_that_the_store_did_not_take_is_told_again() -> None:
    failed, effects = step(DOUBTED, ev.StoreFailed("PublishEndpoint", "a-1"), 2.0)
    assert effects == (ev.SetTimer("publish", "a-1", STORE_RETRY),)
    assert step(failed, ev.TimerFired("publish", "a-1"), 3.0)[1] == (ev.PublishEndpoint("a-1", 4, "unfit"),)


def test_a_doubted_launch_that_lost_its_lease_is_registered_again_as_doubted() -> None:
    again = after(WITHDRAWN, ev.LeaseEnded(), ev.LeaseHeld(2))
    _, effects = step(again, ev.GenerationClaimed("a-1", 5), 2.0)
    assert effects == (ev.PublishEndpoint("a-1", 5, "unfit"),)


def test_a_doubt_does_not_outlive_its_launch() -> None:
    claiming = after(
        WITHDRAWN, ev.ProcessExited("a-1", 1, "main"), ev.FaultWritten("a-1"), ev.LaunchGone("a-1"),
        ev.TimerFired("relaunch", ""),
    )  # fmt: skip
    spawning = after(claiming, ev.LaunchClaimed("a-2", 5))
    assert (spawning.doubt, spawning.published) == ("", "")


# causes and giving up
def test_a_wrong_answer_that_was_confirmed_while_serving_ends_the_launch() -> None:
    for state in (READY, WITHDRAWN):
        ending, effects = step(state, ev.CanaryFailed("a-1", "7 for 9, twice"), 10.0)
        assert effects[0] == ev.KillLaunch("a-1", "canary-failed")
        assert ending.failures == (10.0,)


def test_the_cause_of_an_exit_and_of_a_failed_start_is_the_reason_of_the_notice() -> None:
    _, effects = step(READY, ev.ProcessExited("a-1", 1, "main", "signal 9", Cause.OUT_OF_MEMORY), 10.0)
    assert ev.WriteFault("a-1", "out-of-memory", "main (pid 1) ended: signal 9") in effects
    _, effects = step(SPAWNING, ev.SpawnFailed("a-1", "port 1 is taken", Cause.PORT_TAKEN), 10.0)
    assert ev.WriteFault("a-1", "port-taken", "port 1 is taken") in effects


def test_whoever_gives_up_says_why_and_what_clears_it() -> None:
    assert "4 ends within 100 s" in FAILED.gave_up
    assert "infctl restart group/a" in FAILED.gave_up and "changed specification" in FAILED.gave_up


def test_what_only_a_change_can_help_is_given_up_sooner_than_a_crash() -> None:
    state, tries = BACKOFF, 0
    while state.phase is not Phase.FAILED:
        tries += 1
        state = after(state, ev.TimerFired("relaunch", ""), now=11.0)
        name = f"a-{10 + tries}"
        state = after(
            state, ev.LaunchClaimed(name, 10 + tries), ev.SpawnFailed(name, "no model", Cause.MODEL_MISSING),
            ev.FaultWritten(name), ev.LaunchGone(name), now=11.0,
        )  # fmt: skip
    assert tries == 3, "the first and two more; a crash before them does not count with them"
    assert "does not help" in state.gave_up


def test_a_long_good_life_forgets_the_failures_before_it() -> None:
    lived = replace(READY, failures=(7.0, 8.0, 9.0), ready_at=10.0, policy=replace(POLICY, interval=1e6))
    assert after(lived, ev.ProcessExited("a-1", 1, "main"), now=20.0).failures == (7.0, 8.0, 9.0, 20.0)
    assert after(lived, ev.ProcessExited("a-1", 1, "main"), now=310.0).failures == (310.0,)


@pytest.mark.parametrize("word", ["operator", "drained", "deleted"])
def test_an_end_that_was_ordered_by_another_member_is_no_failure(word: str) -> None:
    assert after(READY, ev.FaultSeen("a-1", word), now=10.0).failures == ()
    assert after(READY, ev.FaultSeen("a-1", "host-lost"), now=10.0).failures == (10.0,)


# drains
def test_a_held_group_serves_on_and_what_dies_then_is_not_started_again() -> None:
    held, effects = step(READY, ev.GroupHeld(), 50.0)
    assert (held.phase, held.wanted, effects) == (Phase.READY, "", ())
    ending, _ = step(held, ev.ProcessExited("a-1", 7, "scheduler"), 51.0)
    fault, _ = step(ending, ev.FaultWritten("a-1"), 51.0)
    gone, effects = step(fault, ev.LaunchGone("a-1"), 52.0)
    assert gone.phase is Phase.IDLE
    assert not any(isinstance(e, ev.SetTimer | ev.ClaimLaunch) for e in effects)
    again, _ = step(gone, ev.SpecApplied("v1"), 60.0)
    assert again.phase is Phase.CLAIMING


def test_a_hold_that_is_taken_back_leaves_no_trace() -> None:
    held, _ = step(READY, ev.GroupHeld(), 50.0)
    assert step(held, ev.SpecApplied(READY.wanted), 51.0) == (READY, ())


def test_a_drained_launch_is_stopped_with_its_grace_and_is_nobodys_failure() -> None:
    held, _ = step(READY, ev.GroupHeld(), 50.0)
    ending, effects = step(held, ev.LaunchDrained("a-1", "drained", 12.5), 51.0)
    assert ending.phase is Phase.ENDING and ending.failures == READY.failures
    assert effects[:2] == (ev.StopLaunch("a-1", 12.5), ev.WriteFault("a-1", "drained", "planned"))
    assert step(READY, ev.LaunchDrained("a-0", "drained", 1.0), 51.0) == (READY, ())


def test_a_hold_takes_a_group_that_waits_or_has_failed_to_rest() -> None:
    for phase in (Phase.BACKOFF, Phase.FAILED, Phase.CLAIMING):
        held, _ = step(replace(READY, phase=phase), ev.GroupHeld(), 50.0)
        assert (held.phase, held.wanted) == (Phase.IDLE, "")
