"""One host's part of a launch that another host owns: one decision at a time."""

from __future__ import annotations

from functools import reduce

import pytest

from infctl.domain import member_events as ev
from infctl.domain.causes import Cause
from infctl.domain.member import UNREACHED, Member, Phase, step

ONE, TWO, THREE = "g-1", "g-2", "g-3"
DEAD = ev.ProcessExited(ONE, 7, "sglang::scheduler_TP1", "SIGKILL")
AWAY = ev.LeaderProbed(ONE, False, "timed out")


IDLE = Member("g")


def after(*events: ev.MemberEvent, member: Member = IDLE) -> Member:
    return reduce(lambda state, event: step(state, event, 0.0)[0], events, member)


def effects(member: Member, event: ev.MemberEvent) -> tuple[ev.MemberEffect, ...]:
    return tuple(e for e in step(member, event, 0.0)[1] if not isinstance(e, ev.Announce))


SPAWNING = after(ev.PlanSeen(ONE, 60.0, 20.0))
LOADING = after(ev.PartSpawned(ONE, 7), member=SPAWNING)
SERVING = after(ev.PartLoaded(ONE, 2), member=LOADING)
LEAVING = after(ev.FaultSeen(ONE, Cause.DRAINED), member=SERVING)
ENDING = after(DEAD, member=SERVING)
ENDED = after(ev.PartGone(ONE), ev.FaultWritten(ONE), member=ENDING)


def test_the_states_of_these_tests_are_those_that_they_are_called() -> None:
    states = (SPAWNING, LOADING, SERVING, LEAVING, ENDING, ENDED)
    assert [s.phase for s in states] == ["spawning", "loading", "serving", "leaving", "ending", "idle"]


def test_a_plan_starts_the_part_and_its_time_to_load() -> None:
    assert effects(IDLE, ev.PlanSeen(ONE, 60.0)) == (ev.SpawnPart(ONE), ev.SetTimer("load", ONE, 60.0))


def test_a_part_that_runs_is_awaited_and_said_to_load() -> None:
    assert effects(SPAWNING, ev.PartSpawned(ONE, 7)) == (ev.AwaitPart(ONE), ev.SayPart(ONE, "loading"))


def test_a_loaded_part_is_said_to_be_loaded() -> None:
    assert effects(LOADING, ev.PartLoaded(ONE, 2)) == (ev.SayPart(ONE, "loaded"),)


@pytest.mark.parametrize("state", [SPAWNING, LOADING, SERVING])
def test_a_death_is_a_kill_and_a_notice_in_one_step(state: Member) -> None:
    kill, notice = effects(state, DEAD)
    assert kill == ev.KillPart(ONE, Cause.CRASH)
    assert notice == ev.WriteFault(ONE, Cause.CRASH, "sglang::scheduler_TP1 (pid 7) ended: SIGKILL")


def test_a_part_that_cannot_be_started_ends_the_launch_with_its_cause() -> None:
    kill, notice = effects(SPAWNING, ev.PartRefused(ONE, "no such file", Cause.MODEL_MISSING))
    assert kill == ev.KillPart(ONE, Cause.MODEL_MISSING)
    assert notice == ev.WriteFault(ONE, Cause.MODEL_MISSING, "no such file")


@pytest.mark.parametrize("state", [SPAWNING, LOADING])
def test_a_part_that_does_not_load_in_time_ends_the_launch(state: Member) -> None:
    kill, notice = effects(state, ev.TimerFired("load", ONE))
    assert kill == ev.KillPart(ONE, Cause.LOAD_TIMEOUT)
    assert notice == ev.WriteFault(ONE, Cause.LOAD_TIMEOUT, "not loaded after 60 s")


@pytest.mark.parametrize("state", [SERVING, LEAVING, ENDING, ENDED])
def test_the_time_to_load_ends_nothing_that_has_loaded(state: Member) -> None:
    assert step(state, ev.TimerFired("load", ONE), 0.0) == (state, ())


@pytest.mark.parametrize("state", [SPAWNING, LOADING, SERVING, LEAVING])
def test_a_notice_of_another_host_is_a_kill_and_no_second_notice(state: Member) -> None:
    assert effects(state, ev.FaultSeen(ONE, Cause.CRASH)) == (ev.KillPart(ONE, Cause.CRASH),)


@pytest.mark.parametrize("state", [SPAWNING, LOADING, SERVING, LEAVING])
def test_a_record_that_is_gone_is_a_kill_and_no_notice(state: Member) -> None:
    assert effects(state, ev.LaunchClosed(ONE, "gone")) == (ev.KillPart(ONE, Cause.SUPERSEDED),)


def test_a_planned_notice_gives_node_rank_0_its_time() -> None:
    assert LEAVING.phase is Phase.LEAVING
    assert effects(SERVING, ev.FaultSeen(ONE, Cause.DRAINED)) == (ev.SetTimer("leave", ONE, 20.0),)
    assert effects(LEAVING, ev.TimerFired("leave", ONE)) == (ev.KillPart(ONE, Cause.DRAINED),)


def test_a_planned_notice_that_is_heard_of_twice_is_one_notice() -> None:
    """The notice and the ended record are one transaction, and come over two watches."""
    assert step(LEAVING, ev.FaultSeen(ONE, Cause.DRAINED), 0.0) == (LEAVING, ())


def test_when_node_rank_0_has_left_the_part_goes() -> None:
    assert effects(LEAVING, ev.OwnerAway(ONE)) == (ev.KillPart(ONE, Cause.DRAINED),)


def test_where_node_rank_0_is_away_a_planned_notice_waits_for_nothing() -> None:
    away = after(ev.OwnerAway(ONE), member=SERVING)
    assert effects(away, ev.FaultSeen(ONE, Cause.DRAINED)) == (ev.KillPart(ONE, Cause.DRAINED),)


def test_an_owner_that_has_not_been_there_yet_has_not_left_either() -> None:
    """Its key and a planned notice come over two watches."""
    early = after(ev.OwnerAway(ONE, lost=False), member=SERVING)
    assert effects(early, ev.FaultSeen(ONE, Cause.DRAINED)) == (ev.SetTimer("leave", ONE, 20.0),)
    assert step(LEAVING, ev.OwnerAway(ONE, lost=False), 0.0) == (LEAVING, ())
    lost = after(ev.OwnerAway(ONE), member=early)
    assert effects(lost, ev.FaultSeen(ONE, Cause.DRAINED)) == (ev.KillPart(ONE, Cause.DRAINED),)
    assert after(ev.OwnerBack(ONE), member=lost) == SERVING


@pytest.mark.parametrize("event", [DEAD, ev.PartRefused(ONE, "the daemon was stopped", Cause.DAEMON_STOPPED)])
def test_what_ends_while_it_leaves_is_killed_without_another_notice(event: ev.MemberEvent) -> None:
    assert effects(LEAVING, event) == (ev.KillPart(ONE, Cause.DRAINED),)


def test_an_owner_that_the_store_lost_is_asked_for_and_kills_nothing() -> None:
    assert effects(SERVING, ev.OwnerAway(ONE)) == (ev.ProbeLeader(ONE),)
    away = after(ev.OwnerAway(ONE), member=SERVING)
    assert step(away, ev.OwnerAway(ONE), 0.0) == (away, ()), "one row of probes is enough"


def test_an_engine_that_answers_keeps_the_part_for_as_long_as_it_does() -> None:
    away = after(ev.OwnerAway(ONE), member=SERVING)
    for _ in range(2 * UNREACHED):
        assert effects(away, ev.LeaderProbed(ONE, True)) == (ev.SetTimer("probe", ONE, 1.0),)
        away = after(AWAY, ev.LeaderProbed(ONE, True), member=away)
    assert away.phase is Phase.SERVING and effects(away, ev.TimerFired("probe", ONE)) == (ev.ProbeLeader(ONE),)


def test_lost_by_the_store_and_not_reached_three_times_ends_the_launch() -> None:
    away = after(ev.OwnerAway(ONE), *[AWAY] * (UNREACHED - 1), member=SERVING)
    assert away.phase is Phase.SERVING
    kill, notice = effects(away, AWAY)
    assert kill == ev.KillPart(ONE, Cause.HOST_LOST)
    assert isinstance(notice, ev.WriteFault) and "timed out" in notice.evidence


@pytest.mark.parametrize("state", [SPAWNING, LOADING])
def test_an_engine_that_has_not_loaded_is_not_asked_for(state: Member) -> None:
    """It listens when it has: that nobody answers before says nothing."""
    away = after(ev.OwnerAway(ONE), member=state)
    assert effects(state, ev.OwnerAway(ONE)) == () and away.phase is state.phase
    assert after(*[AWAY] * UNREACHED, member=away) == away


def test_with_the_owner_away_a_part_that_has_loaded_asks_for_it() -> None:
    away = after(ev.OwnerAway(ONE), member=LOADING)
    assert effects(away, ev.PartLoaded(ONE, 2)) == (ev.SayPart(ONE, "loaded"), ev.ProbeLeader(ONE))


def test_an_owner_that_is_back_ends_the_asking_and_the_count() -> None:
    back = after(ev.OwnerAway(ONE), AWAY, AWAY, ev.OwnerBack(ONE), member=SERVING)
    assert back == SERVING
    assert effects(back, ev.TimerFired("probe", ONE)) == ()
    assert step(back, AWAY, 0.0) == (back, ())


def test_a_store_that_does_not_answer_kills_nothing_and_is_asked_again() -> None:
    for state in (SPAWNING, LOADING, SERVING, LEAVING):
        assert step(state, ev.StoreFailed(ONE), 0.0) == (state, ())
    assert step(ENDING, ev.StoreFailed(ONE), 0.0) == (ENDING, (ev.SetTimer("fault", ONE, 0.5),))
    assert effects(ENDING, ev.TimerFired("fault", ONE))[0] == ev.WriteFault(
        ONE, Cause.CRASH, "sglang::scheduler_TP1 (pid 7) ended: SIGKILL"
    )


@pytest.mark.parametrize("first", [ev.PartGone(ONE), ev.FaultWritten(ONE), ev.FaultSeen(ONE, Cause.CRASH)])
def test_the_next_launch_waits_until_all_is_gone_and_told(first: ev.MemberEvent) -> None:
    one = after(first, member=ENDING)
    assert one.phase is Phase.ENDING
    second = ev.FaultWritten(ONE) if isinstance(first, ev.PartGone) else ev.PartGone(ONE)
    assert after(second, member=one).phase is Phase.IDLE
    assert effects(one, second) == (ev.SayPart(ONE, ""),)


def test_another_launch_ends_the_one_that_runs_and_begins_after_it() -> None:
    assert effects(SERVING, ev.PlanSeen(TWO)) == (ev.KillPart(ONE, Cause.SUPERSEDED),)
    waiting = after(ev.PlanSeen(TWO, 60.0), member=SERVING)
    gone = effects(waiting, ev.PartGone(ONE))
    assert gone == (ev.SayPart(ONE, ""), ev.SpawnPart(TWO), ev.SetTimer("load", TWO, 60.0))


def test_another_launch_makes_the_notice_of_the_old_one_needless() -> None:
    gone = after(ev.PartGone(ONE), member=ENDING)
    assert effects(gone, ev.PlanSeen(TWO, 60.0))[:2] == (ev.SayPart(ONE, ""), ev.SpawnPart(TWO))


def test_only_the_newest_plan_that_waits_is_begun() -> None:
    waiting = after(ev.PlanSeen(TWO), ev.PlanSeen(THREE), member=SERVING)
    assert ev.SpawnPart(THREE) in effects(waiting, ev.PartGone(ONE))


@pytest.mark.parametrize("end", [ev.LaunchClosed(TWO, "gone"), ev.FaultSeen(TWO, Cause.CRASH)])
def test_a_launch_that_is_over_before_its_turn_is_not_begun(end: ev.MemberEvent) -> None:
    waiting = after(ev.PlanSeen(TWO), end, member=SERVING)
    assert effects(waiting, ev.PartGone(ONE)) == (ev.SayPart(ONE, ""),)


@pytest.mark.parametrize("state", [IDLE, SERVING, ENDING, ENDED])
def test_a_launch_whose_end_is_heard_of_before_its_plan_is_not_begun(state: Member) -> None:
    over = after(ev.FaultSeen(TWO, Cause.CRASH), ev.LaunchClosed("g-0", "gone"), member=state)
    assert step(over, ev.PlanSeen(TWO), 0.0) == (over, ())


def test_a_launch_is_begun_once() -> None:
    for state in (SPAWNING, SERVING, LEAVING, ENDING, ENDED):
        assert step(state, ev.PlanSeen(ONE), 0.0) == (state, ())
    later = after(ev.PlanSeen(TWO), member=ENDED)
    assert step(later, ev.PlanSeen(ONE), 0.0) == (later, ()), "also when another one was begun since"


def test_what_was_known_of_an_owner_is_not_held_against_the_next_launch() -> None:
    ended = after(ev.OwnerAway(ONE), AWAY, DEAD, ev.PartGone(ONE), ev.FaultWritten(ONE), member=SERVING)
    fresh = after(ev.PlanSeen(TWO), member=ended)
    assert not fresh.owner_away and fresh.unreached == 0


@pytest.mark.parametrize("loaded", [True, False])
def test_an_adopted_part_goes_on_where_it_was(loaded: bool) -> None:
    adopted = ev.PartAdopted(ONE, loaded, 60.0, 20.0)
    assert after(adopted) == (SERVING if loaded else LOADING)
    wanted = (ev.SayPart(ONE, "loaded"),)
    waits = (ev.SayPart(ONE, "loading"), ev.AwaitPart(ONE), ev.SetTimer("load", ONE, 60.0))
    assert effects(IDLE, adopted) == (wanted if loaded else waits)


def test_a_part_of_an_earlier_life_that_cannot_go_on_is_ended_and_told() -> None:
    kill, notice = effects(IDLE, ev.PartFound(ONE, Cause.CRASH, "ended while no daemon was here"))
    assert kill == ev.KillPart(ONE, Cause.CRASH)
    assert notice == ev.WriteFault(ONE, Cause.CRASH, "ended while no daemon was here")


def test_processes_that_are_all_gone_unseen_are_a_death_that_waits_for_the_cleaning_up() -> None:
    kill, notice = effects(SERVING, ev.PartGone(ONE))
    assert isinstance(kill, ev.KillPart) and isinstance(notice, ev.WriteFault)
    told = after(ev.PartGone(ONE), ev.FaultWritten(ONE), member=SERVING)
    assert told.phase is Phase.ENDING, "the kill cleans up, and says when it has"
    assert after(ev.PartGone(ONE), member=told).phase is Phase.IDLE


def test_events_of_another_launch_do_nothing() -> None:
    for state in (SPAWNING, LOADING, SERVING, LEAVING, ENDING):
        for event in (
            ev.ProcessExited(TWO, 9, "scheduler"),
            ev.PartSpawned(TWO, 9),
            ev.PartLoaded(TWO, 2),
            ev.PartRefused(TWO, "late"),
            ev.PartGone(TWO),
            ev.FaultWritten(TWO),
            ev.StoreFailed(TWO),
            ev.OwnerAway(TWO),
            ev.LeaderProbed(TWO, False),
            ev.TimerFired("load", TWO),
            ev.TimerFired("leave", TWO),
        ):
            assert step(state, event, 0.0) == (state, ()), event
