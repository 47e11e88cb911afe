"""`domain.request.step`, one decision at a time: what a state and an event give."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from infctl.domain import request_events as ev
from infctl.domain.ids import Epoch
from infctl.domain.request import ABORT_WAIT, REPRIEVE, RETRY_MOST, TERMINAL, Phase, Request, step
from infctl.domain.request_events import Break, ErrorType

E1, E2, E3 = Epoch(1, 1), Epoch(1, 2), Epoch(1, 3)
NEW = Request("r", deadline=600.0, grace=15.0)


def after(request: Request, *events: ev.RequestEvent, now: float = 0.0) -> Request:
    for event in events:
        request, _ = step(request, event, now)
    return request


ADMITTED = after(NEW, ev.Started())
PREFILLING = after(ADMITTED, ev.WorkerChosen(E1, "a-1", 0))
TRANSFERRING = after(ADMITTED, ev.WorkerChosen(E1, "a-1", 0, split=True))
DECODING = after(PREFILLING, ev.TokensArrived(E1, "a-1", 0, 5))
MIGRATING = after(DECODING, ev.LaunchLost("a-1", Break.FAULT, "rank 1 died"))
WAITING = after(MIGRATING, ev.NoWorker(E2, ErrorType.UNAVAILABLE, "none"))
CANCELLING = after(DECODING, ev.CancelRequested("client"))
COMPLETED = after(DECODING, ev.AttemptFinished(E1, "a-1", "stop", 5))
CANCELLED = after(CANCELLING, ev.AbortSettled(E2))
FAILED = after(DECODING, ev.TimerFired("deadline", E1))
TAKEN = after(DECODING, ev.TermSeen(2))
EVERY_STATE = {
    "new": NEW,
    "admitted": ADMITTED,
    "prefilling": PREFILLING,
    "transferring": TRANSFERRING,
    "decoding": DECODING,
    "detached": after(DECODING, ev.ReaderLeft()),
    "migrating": MIGRATING,
    "waiting": WAITING,
    "cancelling": CANCELLING,
    "completed": COMPLETED,
    "cancelled": CANCELLED,
    "failed": FAILED,
    "taken": TAKEN,
}
SOME_EVENTS: tuple[ev.RequestEvent, ...] = (
    ev.Started(),
    ev.WorkerChosen(E1, "a-1", 0),
    ev.WorkerChosen(E2, "b-1", 5),
    ev.NothingLeft(E2, "length"),
    ev.NoWorker(E1, ErrorType.OVERLOADED, "full"),
    ev.NoWorker(E2, ErrorType.OVERLOADED, "full"),
    ev.TransferDone(E1, "a-1"),
    ev.TokensArrived(E1, "a-1", 0, 1),
    ev.TokensArrived(E1, "a-1", 9, 1),
    ev.TokensArrived(E1, "", 0, 1),
    ev.TokensArrived(E1, "a-1", -3, 0),
    ev.AttemptFinished(E1, "a-1", "stop", 5),
    ev.AttemptFinished(E1, "a-1", "stop", 99),
    ev.AttemptBroken(E1, "a-1", Break.EOF, "closed"),
    ev.AttemptBroken(E1, "a-1", Break.ERROR_FRAME, "bad"),
    ev.LaunchLost("a-1", Break.FROZEN, "silent"),
    ev.LaunchLost("", Break.FAULT, "nobody"),
    ev.ReaderLeft(),
    ev.ReaderJoined(),
    ev.CancelRequested("operator"),
    ev.AbortSettled(E1),
    ev.AbortSettled(E2),
    ev.TermSeen(0),
    ev.TermSeen(1),
    ev.TermSeen(7),
    *(ev.TimerFired(name, e) for name in ("deadline", "grace", "retry", "abort", "nonsense") for e in (E1, E2)),
)


def test_the_events_here_are_all_there_are() -> None:
    assert {type(e) for e in SOME_EVENTS} == set(get_args(ev.RequestEvent))


def test_the_states_here_are_the_phases_they_are_named_after() -> None:
    assert {s.phase for s in EVERY_STATE.values()} == set(Phase)
    assert WAITING.waiting and EVERY_STATE["detached"].detached and not TAKEN.owned


@pytest.mark.parametrize("state", EVERY_STATE.values(), ids=EVERY_STATE.keys())
def test_no_event_raises_in_any_state_and_no_epoch_falls(state: Request) -> None:
    for event in SOME_EVENTS:
        moved, effects = step(state, event, 50.0)
        assert moved.epoch >= state.epoch
        assert isinstance(effects, tuple)
        for effect in effects:
            assert isinstance(effect, get_args(ev.RequestEffect))


@pytest.mark.parametrize("state", [COMPLETED, CANCELLED, FAILED, TAKEN], ids=lambda s: s.phase)
def test_a_terminal_state_never_leaves_and_says_nothing(state: Request) -> None:
    assert state.phase in TERMINAL
    for event in SOME_EVENTS:
        moved, effects = step(state, event, 1e9)
        assert moved == state
        assert all(isinstance(e, ev.Drop | ev.AbortAttempt) for e in effects)


# the straight road
def test_a_start_sets_the_deadline_and_dispatches_the_first_attempt_once() -> None:
    started, effects = step(replace(NEW, deadline=40.0), ev.Started(), 10.0)
    assert effects == (ev.SetTimer("deadline", E1, 30.0), ev.Dispatch(E1, 0, (), recovering=False))
    assert step(started, ev.Started(), 11.0) == (started, ())


def test_a_stream_taken_over_goes_on_where_it_was_committed() -> None:
    heir = replace(NEW, epoch=Epoch(4, 0), committed=17)
    _, effects = step(heir, ev.Started(), 0.0)
    assert ev.Dispatch(Epoch(4, 1), 17, (), recovering=False) in effects


def test_a_deadline_in_the_past_does_not_make_a_negative_timer() -> None:
    _, effects = step(replace(NEW, deadline=1.0), ev.Started(), 10.0)
    assert effects[0] == ev.SetTimer("deadline", E1, 0.0)


def test_a_split_worker_transfers_before_it_decodes() -> None:
    assert TRANSFERRING.phase is Phase.TRANSFERRING
    assert after(TRANSFERRING, ev.TransferDone(E1, "a-1")).phase is Phase.PREFILLING
    assert after(TRANSFERRING, ev.TransferDone(E1, "a-2")).phase is Phase.TRANSFERRING


def test_the_first_tokens_are_delivered_and_recorded_the_next_only_delivered() -> None:
    decoding, effects = step(PREFILLING, ev.TokensArrived(E1, "a-1", 0, 2), 1.0)
    assert effects == (ev.Deliver(0, 2), ev.Record())
    assert step(decoding, ev.TokensArrived(E1, "a-1", 2, 1), 1.0)[1] == (ev.Deliver(0, 1),)


@pytest.mark.parametrize(
    ("start", "count", "committed", "effects"),
    [
        (5, 3, 8, (ev.Deliver(0, 3),)),
        (3, 4, 7, (ev.Deliver(2, 2),)),
        (3, 2, 5, (ev.Drop("known", 2),)),
        (0, 5, 5, (ev.Drop("known", 5),)),
        (5, 0, 5, ()),
        (0, 6, 6, (ev.Deliver(5, 1),)),
    ],
)
def test_only_tokens_that_are_not_committed_yet_are_delivered(
    start: int, count: int, committed: int, effects: tuple[ev.RequestEffect, ...]
) -> None:
    moved, done = step(DECODING, ev.TokensArrived(E1, "a-1", start, count), 1.0)
    assert (moved.committed, done) == (committed, effects)


@pytest.mark.parametrize(
    "event",
    [
        ev.TokensArrived(Epoch(1, 0), "a-1", 5, 1),
        ev.TokensArrived(E2, "a-1", 5, 1),
        ev.TokensArrived(Epoch(0, 1), "a-1", 5, 1),
        ev.TokensArrived(E1, "a-0", 5, 1),
        ev.TokensArrived(E1, "", 5, 1),
    ],
)
def test_a_frame_of_another_epoch_or_launch_is_dropped_and_counted(event: ev.TokensArrived) -> None:
    assert step(DECODING, event, 1.0) == (DECODING, (ev.Drop("stale", 1),))


def test_an_end_at_the_committed_token_completes_once() -> None:
    done, effects = step(DECODING, ev.AttemptFinished(E1, "a-1", "length", 5), 1.0)
    assert done.phase is Phase.COMPLETED
    assert effects == (ev.Finish("length"), ev.Record())
    assert step(done, ev.AttemptFinished(E1, "a-1", "length", 5), 1.0) == (done, ())


@pytest.mark.parametrize("total", [4, 6])
def test_an_end_at_another_token_than_the_committed_one_is_a_gap_not_an_end(total: int) -> None:
    moved, effects = step(DECODING, ev.AttemptFinished(E1, "a-1", "stop", total), 1.0)
    assert moved.phase is Phase.MIGRATING
    assert effects[0] == ev.Dispatch(E2, 5, ("a-1",), recovering=True)


def test_a_plan_with_nothing_left_completes_without_a_worker() -> None:
    done, effects = step(MIGRATING, ev.NothingLeft(E2, "stop"), 1.0)
    assert done.phase is Phase.COMPLETED
    assert effects == (ev.Finish("stop"), ev.Record())


# moving
@pytest.mark.parametrize("kind", sorted(set(Break) - {Break.ERROR_FRAME}))
def test_a_broken_attempt_moves_with_a_higher_attempt_and_avoids_the_launch(kind: Break) -> None:
    moved, effects = step(DECODING, ev.AttemptBroken(E1, "a-1", kind, "why"), 3.0)
    assert (moved.phase, moved.epoch, moved.launch, moved.migrations) == (Phase.MIGRATING, E2, "", 1)
    assert effects[0] == ev.Dispatch(E2, 5, ("a-1",), recovering=True)
    assert effects[1] == ev.AbortAttempt(E1, "a-1")
    assert moved.searching_since == 3.0


def test_a_lost_launch_moves_its_streams_and_no_others() -> None:
    assert step(DECODING, ev.LaunchLost("b-1", Break.FAULT, "other"), 1.0) == (DECODING, ())
    assert MIGRATING.phase is Phase.MIGRATING


def test_a_frame_beyond_the_next_token_moves_the_stream_instead_of_skipping() -> None:
    moved, effects = step(DECODING, ev.TokensArrived(E1, "a-1", 6, 1), 1.0)
    assert moved.committed == 5
    assert effects[0] == ev.Dispatch(E2, 5, ("a-1",), recovering=True)
    assert not any(isinstance(e, ev.Deliver) for e in effects)


def test_an_error_of_the_request_itself_fails_it_and_moves_nothing() -> None:
    failed, effects = step(PREFILLING, ev.AttemptBroken(E1, "a-1", Break.ERROR_FRAME, "too long"), 1.0)
    assert failed.phase is Phase.FAILED
    assert ev.Fail(ErrorType.INVALID_REQUEST, "too long") in effects


def test_a_stream_that_cannot_be_replayed_moves_before_its_first_token_and_fails_after_it() -> None:
    early = replace(PREFILLING, replayable=False)
    assert after(early, ev.LaunchLost("a-1", Break.FAULT, "x")).phase is Phase.MIGRATING
    failed, effects = step(replace(DECODING, replayable=False), ev.LaunchLost("a-1", Break.FAULT, "x"), 1.0)
    assert failed.phase is Phase.FAILED
    assert effects[0] == ev.AbortAttempt(E1, "a-1")
    assert isinstance(effects[1], ev.Fail) and effects[1].error is ErrorType.NOT_RECOVERABLE


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_request_moves_as_often_as_its_limit_says(limit: int) -> None:
    state = replace(PREFILLING, migration_limit=limit)
    for n in range(limit):
        state = after(state, ev.LaunchLost(state.launch, Break.FAULT, "x"))
        assert state.phase is Phase.MIGRATING
        state = after(state, ev.WorkerChosen(state.epoch, f"b-{n}", 0))
    failed, effects = step(state, ev.LaunchLost(state.launch, Break.FAULT, "x"), 0.0)
    assert failed.phase is Phase.FAILED and failed.migrations == limit
    assert isinstance(effects[1], ev.Fail) and effects[1].error is ErrorType.UNAVAILABLE


def test_a_token_forgets_the_launches_that_failed_before_it() -> None:
    moved = after(MIGRATING, ev.WorkerChosen(E2, "b-1", 5), ev.TokensArrived(E2, "b-1", 5, 1))
    assert moved.excluded == ()
    again, effects = step(moved, ev.LaunchLost("b-1", Break.FAULT, "x"), 0.0)
    assert effects[0] == ev.Dispatch(E3, 6, ("b-1",), recovering=True)
    assert again.excluded == ("b-1",)


def test_launches_that_fail_without_a_token_between_are_avoided_together() -> None:
    moved = after(MIGRATING, ev.WorkerChosen(E2, "b-1", 5))
    _, effects = step(moved, ev.AttemptBroken(E2, "b-1", Break.REFUSED, "x"), 0.0)
    assert effects[0] == ev.Dispatch(E3, 5, ("a-1", "b-1"), recovering=True)


def test_a_worker_that_was_lost_between_choice_and_notice_is_left_at_once() -> None:
    told = after(MIGRATING, ev.LaunchLost("b-1", Break.FAULT, "died"))
    moved, effects = step(told, ev.WorkerChosen(E2, "b-1", 5), 2.0)
    assert (moved.phase, moved.epoch) == (Phase.MIGRATING, E3)
    assert effects[:2] == (ev.Dispatch(E3, 5, ("a-1", "b-1"), recovering=True), ev.AbortAttempt(E2, "b-1"))


# searching
def test_a_new_request_without_a_worker_fails_at_once_and_says_why() -> None:
    failed, effects = step(ADMITTED, ev.NoWorker(E1, ErrorType.OVERLOADED, "full"), 1.0)
    assert failed.phase is Phase.FAILED
    assert effects[0] == ev.Fail(ErrorType.OVERLOADED, "full")


def test_a_request_that_its_engine_shed_before_the_first_token_is_refused_at_once_where_nobody_else_has_room() -> None:
    shed = after(PREFILLING, ev.AttemptBroken(E1, "a-1", Break.OVERLOADED, "queue full"))
    assert shed.phase is Phase.MIGRATING
    failed, effects = step(shed, ev.NoWorker(E2, ErrorType.UNAVAILABLE, "none"), 1.0)
    assert failed.phase is Phase.FAILED
    assert ev.Fail(ErrorType.OVERLOADED, "every ready group is full") in effects
    moved = after(shed, ev.WorkerChosen(E2, "b-1", 0), ev.AttemptBroken(E2, "b-1", Break.EOF, "gone"))
    assert after(moved, ev.NoWorker(E3, ErrorType.UNAVAILABLE, "none")).phase is Phase.MIGRATING


def test_a_stream_that_has_spoken_waits_for_room() -> None:
    spoken = after(DECODING, ev.AttemptBroken(E1, "a-1", Break.OVERLOADED, "queue full"))
    assert after(spoken, ev.NoWorker(E2, ErrorType.OVERLOADED, "full")).phase is Phase.MIGRATING


def test_a_moving_request_waits_a_little_longer_each_time_it_finds_no_worker() -> None:
    state, delays = MIGRATING, []
    for _ in range(8):
        state, effects = step(state, ev.NoWorker(E2, ErrorType.UNAVAILABLE, "none"), 1.0)
        assert isinstance(effects[0], ev.SetTimer) and effects[0].name == "retry"
        delays.append(effects[0].delay)
        state = after(state, ev.TimerFired("retry", E2), now=1.0)
    assert delays == sorted(delays) and delays[0] < 0.1 and delays[-1] == RETRY_MOST


def test_a_moving_request_gives_up_when_its_patience_is_over() -> None:
    state = replace(MIGRATING, searching_since=10.0, patience=30.0)
    assert after(state, ev.NoWorker(E2, ErrorType.UNAVAILABLE, "none"), now=39.9).phase is Phase.MIGRATING
    failed, effects = step(state, ev.NoWorker(E2, ErrorType.UNAVAILABLE, "none"), 40.0)
    assert failed.phase is Phase.FAILED
    assert isinstance(effects[0], ev.Fail) and effects[0].error is ErrorType.UNAVAILABLE


def test_the_same_refusal_twice_sets_one_timer_and_one_retry_follows() -> None:
    assert step(WAITING, ev.NoWorker(E2, ErrorType.UNAVAILABLE, "none"), 1.0) == (WAITING, ())
    retried, effects = step(WAITING, ev.TimerFired("retry", E2), 1.0)
    assert len(effects) == 1 and isinstance(effects[0], ev.Dispatch)
    assert step(retried, ev.TimerFired("retry", E2), 1.0) == (retried, ())


@pytest.mark.parametrize(
    ("retries", "waited", "exclude"),
    [
        (1, 0.1, ("a-1", "b-1")),
        (2, 0.2, ("b-1",)),
        (9, REPRIEVE - 0.1, ("b-1",)),
        (9, REPRIEVE, ()),
    ],
)
def test_launches_that_failed_are_asked_again_the_last_one_last(
    retries: int, waited: float, exclude: tuple[str, ...]
) -> None:
    state = replace(WAITING, excluded=("a-1", "b-1"), retries=retries, searching_since=20.0)
    moved, effects = step(state, ev.TimerFired("retry", E2), 20.0 + waited)
    assert effects == (ev.Dispatch(E2, 5, exclude, recovering=True),)
    assert moved.excluded == exclude


def test_a_retry_of_an_earlier_attempt_does_nothing() -> None:
    assert step(WAITING, ev.TimerFired("retry", E1), 1.0) == (WAITING, ())


@pytest.mark.parametrize("state", [CANCELLING, COMPLETED, CANCELLED, FAILED, TAKEN, WAITING, DECODING], ids=str)
def test_a_worker_that_nobody_waits_for_is_told_to_stop(state: Request) -> None:
    epoch = Epoch(1, 9)
    assert step(state, ev.WorkerChosen(epoch, "b-1", 5), 1.0) == (state, (ev.AbortAttempt(epoch, "b-1"),))


def test_hearing_twice_of_the_live_worker_does_not_stop_it() -> None:
    assert step(PREFILLING, ev.WorkerChosen(E1, "a-1", 0), 1.0) == (PREFILLING, ())


# cancelling
@pytest.mark.parametrize(
    "state", [ADMITTED, PREFILLING, TRANSFERRING, DECODING, MIGRATING, WAITING], ids=lambda s: s.phase
)
def test_a_cancel_ends_every_running_state_and_raises_the_attempt(state: Request) -> None:
    cancelling, effects = step(state, ev.CancelRequested("operator"), 1.0)
    assert cancelling.phase is Phase.CANCELLING
    assert cancelling.epoch.attempt == state.epoch.attempt + 1
    assert (ev.AbortAttempt(state.epoch, state.launch) in effects) == bool(state.launch)
    assert ev.Fail(ErrorType.CANCELLED, "cancelled by operator") in effects
    assert ev.SetTimer("abort", cancelling.epoch, ABORT_WAIT) in effects


def test_a_cancel_beats_a_migration_in_flight() -> None:
    cancelling = after(MIGRATING, ev.CancelRequested("client"))
    moved, effects = step(cancelling, ev.WorkerChosen(E2, "b-1", 5), 1.0)
    assert moved.phase is Phase.CANCELLING
    assert effects == (ev.AbortAttempt(E2, "b-1"),)
    assert step(moved, ev.TokensArrived(E2, "b-1", 5, 1), 1.0)[1] == (ev.Drop("stale", 1),)


def test_a_second_cancel_says_nothing_new() -> None:
    assert step(CANCELLING, ev.CancelRequested("operator"), 1.0) == (CANCELLING, ())


@pytest.mark.parametrize(
    "event",
    [ev.AbortSettled(E2), ev.TimerFired("abort", E2), ev.TimerFired("deadline", E1)],
    ids=lambda e: type(e).__name__,
)
def test_a_cancelled_request_ends_cancelled_whatever_comes_first(event: ev.RequestEvent) -> None:
    ended, effects = step(CANCELLING, event, 1e6)
    assert ended.phase is Phase.CANCELLED
    assert effects == (ev.Record(),), "the client was told already"


@pytest.mark.parametrize("event", [ev.AbortSettled(E1), ev.TimerFired("abort", E1)], ids=lambda e: type(e).__name__)
def test_news_of_an_earlier_abort_do_not_end_a_cancel(event: ev.RequestEvent) -> None:
    assert step(CANCELLING, event, 1.0) == (CANCELLING, ())


def test_a_cancel_before_the_start_is_not_undone_by_the_start() -> None:
    cancelling = after(NEW, ev.CancelRequested("client"))
    assert step(cancelling, ev.Started(), 1.0) == (cancelling, ())


# readers
def test_a_stream_without_grace_is_cancelled_when_its_last_reader_leaves() -> None:
    state = replace(DECODING, grace=0.0, readers=2)
    state = after(state, ev.ReaderLeft())
    assert state.phase is Phase.DECODING
    assert after(state, ev.ReaderLeft()).phase is Phase.CANCELLING


def test_a_detached_stream_goes_on_and_is_cancelled_when_the_grace_is_over() -> None:
    detached, effects = step(DECODING, ev.ReaderLeft(), 10.0)
    assert detached.detached and detached.phase is Phase.DECODING
    assert effects == (ev.SetTimer("grace", E1, 15.0), ev.Record())
    assert step(detached, ev.TokensArrived(E1, "a-1", 5, 1), 11.0)[1] == (ev.Deliver(0, 1),)
    assert after(detached, ev.TimerFired("grace", E1), now=25.0).phase is Phase.CANCELLING


def test_the_grace_survives_a_migration() -> None:
    detached = after(DECODING, ev.ReaderLeft(), now=10.0)
    moved = after(detached, ev.LaunchLost("a-1", Break.FAULT, "x"), now=11.0)
    assert moved.detached
    assert after(moved, ev.TimerFired("grace", E1), now=25.0).phase is Phase.CANCELLING


def test_a_client_that_comes_back_within_the_grace_keeps_its_stream() -> None:
    detached = after(DECODING, ev.ReaderLeft(), now=10.0)
    joined, effects = step(detached, ev.ReaderJoined(), 12.0)
    assert not joined.detached and effects == (ev.Record(),)
    assert step(joined, ev.TimerFired("grace", E1), 25.0) == (joined, ())


def test_the_timer_of_an_earlier_detach_does_not_shorten_the_grace_of_a_later_one() -> None:
    first = after(DECODING, ev.ReaderLeft(), now=10.0)
    second = after(after(first, ev.ReaderJoined(), now=20.0), ev.ReaderLeft(), now=24.0)
    state, effects = step(second, ev.TimerFired("grace", E1), 25.0)
    assert state == second
    assert effects == (ev.SetTimer("grace", E1, 14.0),)
    assert after(state, ev.TimerFired("grace", E1), now=39.0).phase is Phase.CANCELLING


def test_leaving_twice_neither_counts_below_zero_nor_prolongs_the_grace() -> None:
    detached = after(DECODING, ev.ReaderLeft(), now=10.0)
    assert step(detached, ev.ReaderLeft(), 20.0) == (detached, ())


def test_a_reader_that_joins_an_attached_stream_is_only_counted() -> None:
    joined, effects = step(DECODING, ev.ReaderJoined(), 1.0)
    assert (joined.readers, effects) == (2, ())


# terms and deadlines
@pytest.mark.parametrize("state", [ADMITTED, DECODING, MIGRATING, WAITING, CANCELLING], ids=lambda s: s.phase)
def test_a_higher_term_silences_the_old_owner(state: Request) -> None:
    taken, effects = step(state, ev.TermSeen(2), 1.0)
    assert (taken.phase, taken.owned, taken.epoch) == (Phase.FAILED, False, Epoch(2, 0))
    assert ev.Silence() in effects
    assert (ev.AbortAttempt(state.epoch, state.launch) in effects) == bool(state.launch)
    assert not any(isinstance(e, ev.Fail | ev.Finish | ev.Record) for e in effects), "the record is another's now"


@pytest.mark.parametrize("term", [0, 1])
def test_our_own_or_a_lower_term_changes_nothing(term: int) -> None:
    assert step(DECODING, ev.TermSeen(term), 1.0) == (DECODING, ())


@pytest.mark.parametrize("state", [ADMITTED, PREFILLING, DECODING, MIGRATING, WAITING], ids=lambda s: s.phase)
def test_nothing_outlives_the_deadline(state: Request) -> None:
    failed, effects = step(state, ev.TimerFired("deadline", E1), 600.0)
    assert failed.phase is Phase.FAILED
    assert any(isinstance(e, ev.Fail) and e.error is ErrorType.DEADLINE for e in effects)
    assert (ev.AbortAttempt(state.epoch, state.launch) in effects) == bool(state.launch)
