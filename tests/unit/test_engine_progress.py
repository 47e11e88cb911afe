"""The heartbeat of an engine: when it counts as standing still, and when never."""

from __future__ import annotations

from infctl.domain.progress import Progress


def beat(*polls: tuple[float, tuple[float, ...] | None]) -> Progress:
    made = Progress(stall=2.0)
    for now, stamps in polls:
        made = made.polled(stamps, now)
    return made


def test_a_moving_stamp_is_never_suspect() -> None:
    made = beat(*((float(t), (100.0 + t,)) for t in range(10)))
    assert not made.suspect(9.5)


def test_standing_still_for_the_stall_time_over_two_polls_is() -> None:
    made = beat((1.0, (5.0,)), (2.0, (5.0,)), (3.0, (5.0,)))
    assert made.suspect(3.0)
    assert not made.suspect(2.9)
    assert "2.0 s" in made.evidence(3.0)


def test_one_poll_proves_nothing_however_late_it_comes() -> None:
    """A daemon that was frozen itself finds an old stamp once; the next poll tells."""
    made = beat((1.0, (5.0,)), (60.0, (5.0,)))
    assert not made.suspect(60.0)
    made = made.polled((6.0,), 61.0)
    assert not made.suspect(61.0)


def test_no_answer_counts_as_standing_still_and_gives_its_reason() -> None:
    made = Progress(stall=2.0)
    made = made.polled((5.0,), 1.0)
    made = made.polled(None, 2.0, "/v1/loads: no answer within 0.5 s")
    made = made.polled(None, 3.5, "/v1/loads: no answer within 0.5 s")
    assert made.suspect(3.5)
    assert "no answer" in made.evidence(3.5)


def test_every_rank_has_to_move() -> None:
    made = beat((1.0, (5.0, 7.0)), (2.0, (5.0, 8.0)), (3.0, (5.0, 9.0)))
    assert made.suspect(3.0)
    made = made.polled((6.0, 10.0), 4.0)
    assert not made.suspect(4.0)


def test_an_engine_that_never_published_is_suspect_after_the_stall_time() -> None:
    assert beat((1.0, ()), (2.0, ()), (3.0, ())).suspect(3.0)


def test_the_engines_clock_may_jump_backwards() -> None:
    made = beat((1.0, (1000.0,)), (2.0, (5.0,)), (3.0, (6.0,)))
    assert not made.suspect(3.0)
