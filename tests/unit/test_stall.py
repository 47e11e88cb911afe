"""A worker is frozen on two witnesses only: silent streams and a heartbeat that stands still."""

from __future__ import annotations

import pytest

from infctl.domain.stall import StallVerdict, WorkerPulse

STALL = 2.0
BUSY = WorkerPulse(last_token=0.0).streams_now(3, 0.0).token(10.0).beat(55.0, 10.0)[0]


def test_a_worker_without_streams_is_never_asked() -> None:
    assert WorkerPulse(last_token=0.0).check(1e9, STALL) is StallVerdict.FINE


@pytest.mark.parametrize(
    ("now", "verdict"), [(11.0, StallVerdict.FINE), (11.99, StallVerdict.FINE), (12.0, StallVerdict.ASK)]
)
def test_silence_for_the_stall_time_asks_for_the_heartbeat(now: float, verdict: StallVerdict) -> None:
    assert BUSY.check(now, STALL) is verdict


def test_silence_alone_never_freezes() -> None:
    assert BUSY.check(1e6, STALL) is StallVerdict.ASK


@pytest.mark.parametrize("value", [55.0, None], ids=["stands still", "does not answer"])
def test_silence_and_a_heartbeat_that_does_not_move_is_frozen(value: float | None) -> None:
    assert BUSY.asked(12.0).beat(value, 12.5)[1] is StallVerdict.FROZEN


def test_a_heartbeat_that_moves_clears_a_silent_worker() -> None:
    pulse, verdict = BUSY.asked(12.0).beat(56.0, 12.5)
    assert verdict is StallVerdict.FINE
    assert (pulse.heartbeat, pulse.heartbeat_at, pulse.asked_at) == (56.0, 12.5, None)
    assert pulse.check(12.6, STALL) is StallVerdict.ASK, "still silent: the next probe decides anew"


def test_a_first_heartbeat_is_compared_with_nothing() -> None:
    fresh = WorkerPulse(last_token=0.0).streams_now(1, 0.0).asked(2.0)
    assert fresh.beat(55.0, 2.5)[1] is StallVerdict.FINE


def test_a_token_during_the_probe_clears_the_worker() -> None:
    assert BUSY.asked(12.0).token(12.2).beat(None, 12.5)[1] is StallVerdict.FINE


def test_a_probe_that_nobody_asked_for_freezes_nothing() -> None:
    assert BUSY.beat(None, 30.0)[1] is StallVerdict.FINE
    assert BUSY.beat(55.0, 30.0)[1] is StallVerdict.FINE


def test_streams_that_all_left_during_the_probe_freeze_nothing() -> None:
    gone = BUSY.asked(12.0).streams_now(0, 12.1)
    assert gone.beat(None, 12.5)[1] is StallVerdict.FINE
    assert gone.streams_now(1, 12.2).beat(None, 12.5)[1] is StallVerdict.FINE


def test_the_silence_of_an_idle_worker_does_not_count_against_its_first_stream() -> None:
    idle = BUSY.streams_now(0, 11.0)
    assert idle.streams_now(1, 60.0).check(61.9, STALL) is StallVerdict.FINE
    assert idle.streams_now(1, 60.0).check(62.0, STALL) is StallVerdict.ASK


def test_a_stream_that_joins_a_silent_worker_does_not_make_it_fresh() -> None:
    assert BUSY.streams_now(4, 11.5).check(12.0, STALL) is StallVerdict.ASK


def test_one_stream_that_moves_speaks_for_all() -> None:
    assert BUSY.token(11.9).check(13.8, STALL) is StallVerdict.FINE
