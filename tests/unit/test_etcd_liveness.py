"""When a silent stream is asked, and when it is given up; a loop whose clock moves only when told."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

import pytest

from infctl.adapters.etcd.liveness import DOUBT_S, Liveness


class FakeLoop:
    """Only `time` and `call_at`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.made = 0
        self._heap: list[Any] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        handle = FakeTimer(when, callback)
        self.made += 1
        heapq.heappush(self._heap, (when, self.made, handle))
        return handle

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            when, _, handle = heapq.heappop(self._heap)
            self.now = when
            if handle.live:
                handle.callback()
        self.now = until


class FakeTimer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self._when, self.callback, self.live = when, callback, True

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.live = False


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
    made = FakeLoop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


@pytest.fixture
def log() -> list[tuple[str, float]]:
    return []


@pytest.fixture
def liveness(loop: FakeLoop, log: list[tuple[str, float]]) -> Liveness:
    return Liveness(
        2.0, ask=lambda: log.append(("ask", loop.now - 100)), end=lambda _: log.append(("end", loop.now - 100))
    )


def heard(liveness: Liveness, quiet: float = 1.5) -> None:
    liveness.heard()
    liveness.waiting(quiet)


def test_a_stream_that_is_never_created_is_given_up(liveness: Liveness, loop: FakeLoop, log: Any) -> None:
    loop.advance(60)
    assert log == [("end", 2.0)]


def test_silence_is_asked_once_and_then_given_up(liveness: Liveness, loop: FakeLoop, log: Any) -> None:
    heard(liveness)
    loop.advance(60)
    assert log == [("ask", 1.5), ("end", 3.5)]


def test_an_answer_begins_anew_and_events_cost_no_timer(liveness: Liveness, loop: FakeLoop, log: Any) -> None:
    for _ in range(1000):
        heard(liveness)
        loop.advance(0.01)
    assert log == [] and loop.made < 20
    loop.advance(1.5)
    assert [what for what, _ in log] == ["ask"]
    heard(liveness)
    loop.advance(1.4)
    assert [what for what, _ in log] == ["ask"]


def test_a_shorter_wait_is_kept_although_a_longer_one_was_set(liveness: Liveness, loop: FakeLoop, log: Any) -> None:
    heard(liveness, 10.0)
    heard(liveness, 0.3)
    loop.advance(0.3)
    assert log == [("ask", pytest.approx(0.3))]


def test_the_time_that_its_reader_takes_is_not_held_against_the_member(
    liveness: Liveness, loop: FakeLoop, log: Any
) -> None:
    liveness.heard()
    loop.advance(500)
    liveness.doubt()
    loop.advance(500)
    assert log == []
    liveness.waiting(1.5)
    loop.advance(1.5)
    assert log == [("ask", pytest.approx(1001.5))]


def test_a_doubt_asks_at_once_and_waits_less(liveness: Liveness, loop: FakeLoop, log: Any) -> None:
    heard(liveness)
    loop.advance(0.1)
    liveness.doubt()
    assert log == [("ask", pytest.approx(0.1))]
    loop.advance(60)
    assert log[1:] == [("end", pytest.approx(0.1 + DOUBT_S))]
    liveness.doubt()
    assert len(log) == 2


def test_a_doubt_shortens_a_question_under_way_and_never_prolongs_one(
    liveness: Liveness, loop: FakeLoop, log: Any
) -> None:
    heard(liveness)
    loop.advance(1.6)
    liveness.doubt()
    loop.advance(0.5)
    liveness.doubt()
    loop.advance(60)
    assert log == [("ask", 1.5), ("end", pytest.approx(1.6 + DOUBT_S))]


def test_a_doubt_that_was_answered_is_forgotten(liveness: Liveness, loop: FakeLoop, log: Any) -> None:
    heard(liveness)
    liveness.doubt()
    heard(liveness)
    loop.advance(1.4)
    assert [what for what, _ in log] == ["ask"]


def test_nothing_comes_after_the_end(liveness: Liveness, loop: FakeLoop, log: Any) -> None:
    liveness.stop()
    liveness.doubt()
    heard(liveness)
    loop.advance(60)
    assert log == []
