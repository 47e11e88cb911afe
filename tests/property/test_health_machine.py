"""Any course of an engine's troubles: what is withdrawn is doubted, what is ended had two classes of evidence.

The world is an engine with faults that come and go, gateways that suspect, and other groups that go bad; questions are
on their way for as long as the world likes, and clocks only go forward. What the machine may know is what it was told,
so the checks stand on the answers that were given, not on the machine's own fields.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from weighted import WeightedWorld, action

from infctl.domain import health as machine
from infctl.domain import health_events as ev
from infctl.domain.causes import Cause
from infctl.domain.health import HealthPolicy
from infctl.domain.health_events import Layer, Reason

pytestmark = pytest.mark.timeout(300)  # a bound on hangs, not on the speed of the machine


SUSPICIONS = [ev.Suspicion(gateway, "silence", at) for gateway in ("g1", "g2") for at in ("10:00", "10:01")]


@dataclass
class Engine:
    frozen: bool = False  # the scheduler
    blocked: bool = False  # the HTTP loop
    mute: bool = False  # the detokenizer
    wrong: int = 0  # so many tokens are right before it goes wrong, 0 for none wrong at all
    full: bool = False
    unready: bool = False


class HealthWorld(WeightedWorld):
    def __init__(self) -> None:
        super().__init__()
        self.now = 10.0
        self.stamp = 0.0
        self.engine = Engine()
        self.hold = False
        self.asked: dict[Layer, float] = {}
        self.waits: dict[Layer, float] = {}
        self.doubted: Reason | None = None
        self.end: ev.End | None = None
        # what the answers said
        self.moved_at = self.now
        self.unmoved = 0
        self.silent_at: float | None = None
        self.suspected: tuple[ev.Suspicion, ...] = ()
        self.cleared: set[ev.Suspicion] = set()
        self.wrongs = 0

    @property
    def suspects(self) -> bool:
        """A gateway does, and no right answer has come since it said so."""
        return bool(set(self.suspected) - self.cleared)

    @initialize(exact=st.booleans(), room=st.integers(1, 4))
    def it_begins(self, exact: bool, room: int) -> None:
        self.policy = HealthPolicy(exact=exact, room=room)
        self.health = machine.begin("a-1", self.policy)
        self.feed(ev.Began())

    def feed(self, event: ev.HealthEvent) -> None:
        before = self.health
        self.health, effects = machine.step(before, event, self.now)
        assert not (before.over and effects), "speaks after the end"
        for effect in effects:
            match effect:
                case ev.Ask(layer, timeout):
                    assert layer not in self.asked, f"{layer} is asked twice at once"
                    assert timeout == self.policy.of(layer).timeout
                    self.asked[layer] = self.now
                    self.waits.pop(layer, None)
                case ev.Wait(layer, delay):
                    assert 0.0 <= delay <= self.policy.of(layer).interval * (1.0 + self.policy.of(layer).jitter / 2)
                    self.waits[layer] = self.now + delay
                case ev.Doubt(reason):
                    assert not self.hold_told, "withdraws while it holds"
                    self.doubted = reason
                case ev.Trust():
                    self.doubted = None
                case ev.End():
                    self.ended(event, effect)

    hold_told = False

    def ended(self, event: ev.HealthEvent, end: ev.End) -> None:
        assert self.end is None, "ends twice"
        assert not self.hold_told, "kills while it holds"
        self.end = end
        if end.cause is Cause.CANARY_FAILED:
            assert self.wrongs >= 2
            return
        assert end.cause is Cause.HANG
        assert isinstance(event, ev.Polled), "the heartbeat has the last word"
        assert self.unmoved >= 2 and self.now - self.moved_at >= self.policy.stall, "the scheduler moved"
        silent = self.silent_at is not None and self.silent_at >= self.moved_at
        assert silent or self.suspected_while_still, "one class only"

    suspected_while_still = False

    @invariant()
    def every_layer_is_asked_or_waits(self) -> None:
        if self.end is None and hasattr(self, "health"):
            for layer in Layer:
                assert (layer in self.asked) != (layer in self.waits), f"{layer} is forgotten"

    @invariant()
    def what_was_said_is_what_is_found(self) -> None:
        if self.end is None and hasattr(self, "health"):
            ready = machine.findings(self.health, self.now)[-1]
            found = machine.doubt(self.health, self.now)
            if ready.holds:
                assert self.doubted is None
            else:
                assert found is not None and self.doubted is found[0]

    # the world goes on
    @action(30, lambda self: self.waits and not self.end)
    def the_next_question_falls_due(self) -> None:
        layer = min(self.waits, key=lambda name: self.waits[name])
        self.now = max(self.now, self.waits.pop(layer))
        self.feed(ev.Due(layer))

    @action(40, lambda self: self.asked and not self.end, pick=st.integers(0, 2), late=st.booleans())
    def an_answer_comes(self, pick: int, late: bool) -> None:
        layer = sorted(self.asked)[pick % len(self.asked)]
        self.answer(layer, late)

    def answer(self, layer: Layer, late: bool = False) -> None:
        engine, timeout = self.engine, self.policy.of(layer).timeout
        at = self.asked.pop(layer)
        if layer is Layer.PROCESS:
            self.poll(at + timeout if engine.blocked else at)
        elif layer is Layer.MODEL:
            bad = engine.unready or engine.blocked
            self.feed(ev.ModelSeen(Reason.NOT_READY, "no") if bad else ev.ModelSeen())
        elif engine.full and not engine.frozen:
            self.feed(ev.CanaryShed())
        elif engine.frozen or engine.blocked or engine.mute:
            self.now = max(self.now, at + timeout)
            self.silent_at = self.now
            self.feed(ev.CanarySilent("no answer"))
        elif engine.wrong or late:
            agreed = max(0, engine.wrong - 1) if engine.wrong else 8
            self.wrongs += agreed < 8
            self.cleared |= set(self.suspected) if agreed == 8 else set()
            self.feed(ev.CanaryAnswered(agreed, 8, "answered otherwise"))
        else:
            self.cleared |= set(self.suspected)
            self.feed(ev.CanaryAnswered(8, 8))

    def poll(self, now: float) -> None:
        self.now = max(self.now, now)
        self.hold_told = self.hold
        engine = self.engine
        if engine.blocked or engine.frozen:
            self.unmoved += 1
            self.suspected_while_still |= self.suspects
        else:
            self.stamp += 1.0
            self.unmoved, self.moved_at, self.suspected_while_still = 0, self.now, False
        running = self.policy.room if engine.full else 0
        if engine.blocked:
            self.feed(ev.Polled(None, why="no answer", hold=self.hold))
        else:
            self.feed(ev.Polled((self.stamp,), running=running, hold=self.hold))

    @action(2, lambda self: not self.end, what=st.sampled_from(["frozen", "blocked", "mute", "full", "unready"]))
    def something_breaks(self, what: str) -> None:
        setattr(self.engine, what, True)

    @action(1, lambda self: not self.end, right=st.integers(1, 8))
    def its_tokens_go_wrong(self, right: int) -> None:
        self.engine.wrong = right

    @action(2)
    def it_heals(self) -> None:
        self.engine = Engine()

    @action(1, lambda self: not self.end, by=st.lists(st.sampled_from(SUSPICIONS), max_size=2, unique=True))
    def gateways_tell(self, by: list[ev.Suspicion]) -> None:
        self.suspected = tuple(by)
        self.cleared &= set(by)
        self.suspected_while_still |= self.suspects and self.unmoved > 0
        self.feed(ev.Suspected(self.suspected))

    @action(1)
    def other_groups_go_bad_or_well(self) -> None:
        self.hold = not self.hold

    @action(2, lambda self: not self.end, layer=st.sampled_from(Layer))
    def it_could_not_be_asked(self, layer: Layer) -> None:
        if self.asked.pop(layer, None) is not None:
            self.feed(ev.Unasked(layer))

    @action(2, seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        for _ in range(4000):
            if self.end or self.now >= until:
                return
            if self.asked:
                self.answer(min(self.asked, key=lambda name: self.asked[name]))
            else:
                self.the_next_question_falls_due()
        raise AssertionError("time stands still")

    def teardown(self) -> None:
        """Whatever happened: a launch that is well is trusted again, and one that then freezes is found in time."""
        if self.end or not hasattr(self, "health"):
            return
        self.engine, self.hold = Engine(), False
        self.gateways_tell([])
        self.run(60.0)
        assert self.end is None and self.doubted is None
        assert all(f.holds for f in machine.findings(self.health, self.now))
        self.engine = Engine(frozen=True)
        self.run(self.policy.stall + self.policy.canary.timeout * 2 + 5.0)
        assert self.end is not None and self.end.cause is Cause.HANG


HealthWorld.TestCase.settings = settings(stateful_step_count=60)


class TestHealthMachine(HealthWorld.TestCase):  # type: ignore[misc, name-defined]
    def runTest(self) -> None:
        """A world in which nothing happens proves nothing: count what was done."""
        super().runTest()
        never = [name for name, count in HealthWorld.counts.items() if count < 4]
        assert not never, f"hardly ever done: {never}"
