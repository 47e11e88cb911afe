"""Every order of events that a drain can meet: gateways that lag, streams that end or do not, a store that fails,
launches that die, an operator who changes his mind. What is checked is what was done to the group."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from infctl.domain import drain_events as ev
from infctl.domain.disruption import Rule
from infctl.domain.drain import Drain, Instants, Stage, step
from infctl.domain.drain_progress import progress

pytestmark = pytest.mark.timeout(300)  # a bound on hangs, not on the speed of the machine
LAUNCH = "a-1"


@dataclass
class Gateway:
    seen: int = 0
    streams: int = 0
    leased: bool = True


class DrainWorld(RuleBasedStateMachine):
    """The world tells the truth, late. `revision` is that of the endpoint's last change."""

    @initialize(
        deadline=st.sampled_from([10.0, 60.0, 900.0]),
        restart=st.booleans(),
        serving=st.booleans(),
        gateways=st.integers(0, 3),
    )
    def it_begins(self, deadline: float, restart: bool, serving: bool, gateways: int) -> None:
        self.now = self.heard = 0.0
        self.revision, self.state = 5, "ready"
        self.gateways = {f"g{i}": Gateway(seen=5) for i in range(gateways)}
        self.strangers = 0
        self.stamp = 0.0
        self.alive = True
        self.stopped = self.returned = self.finished = False
        self.entries = 0
        self.serving = serving
        self.work: list[ev.DrainEffect] = []
        self.timers: dict[str, float] = {}
        self.drain = Drain("a", 0.0, Instants.of(deadline), restart=restart, relaunch=50.0)
        self.feed(ev.Began(LAUNCH, serving))

    def feed(self, event: ev.DrainEvent) -> None:
        before = self.drain
        self.drain, effects = step(before, event, self.now)
        for effect in effects:
            match effect:
                case ev.SetTimer(name, delay):
                    assert delay >= 0
                    self.timers[name] = self.now + delay
                case ev.StopLaunch(launch, grace):
                    assert launch == LAUNCH and not self.stopped and not self.returned
                    self.check_stop(grace)
                    self.stopped = True
                case ev.Return():
                    assert not self.stopped
                    self.returned = True
                    self.work.append(effect)
                case ev.GiveBackPermission():
                    self.entries = 0
                case ev.Finish():
                    assert not self.finished
                    self.finished = True
                case _:
                    self.work.append(effect)
        if before.stage is Stage.OVER:
            assert self.drain == before
        progress(self.drain)

    def check_stop(self, grace: float) -> None:
        at = self.drain.began + self.drain.instants.stop
        assert not grace or self.now + grace <= self.drain.began + self.drain.instants.kill + 1e-6
        if not self.serving or self.now >= at:
            return
        # nobody can send anything any more, and nobody has anything left
        assert self.state == "draining"
        assert all(g.seen >= self.revision for g in self.gateways.values() if g.leased)
        assert not any(g.streams for g in self.gateways.values() if g.leased)
        assert not self.strangers

    # the world moves
    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 40.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.stamp += 1.0
        for name, due in sorted(self.timers.items(), key=lambda item: item[1]):
            if due <= self.now:
                del self.timers[name]
                self.feed(ev.TimerFired(name))

    @rule(data=st.data())
    def a_gateway_sends_a_request_as_far_as_it_knows(self, data: st.DataObject) -> None:
        able = [g for g in self.gateways.values() if self.alive and (g.seen < self.revision or self.state == "ready")]
        if able and not self.stopped:
            data.draw(st.sampled_from(able)).streams += 1

    @rule(data=st.data())
    def a_stream_ends(self, data: st.DataObject) -> None:
        busy = [g for g in self.gateways.values() if g.streams]
        if busy:
            data.draw(st.sampled_from(busy)).streams -= 1

    @rule(data=st.data())
    def a_gateway_reads_its_watch(self, data: st.DataObject) -> None:
        if self.gateways:
            data.draw(st.sampled_from(list(self.gateways.values()))).seen = self.revision

    @rule()
    def gateways_publish(self) -> None:
        loads = [ev.GatewayLoad(n, g.seen, g.streams) for n, g in self.gateways.items() if g.leased]
        self.feed(ev.GatewaysTold(tuple(loads)))

    @rule(data=st.data())
    def a_gateway_loses_its_lease_and_its_streams_run_on(self, data: st.DataObject) -> None:
        leased = [g for g in self.gateways.values() if g.leased]
        if leased:
            one = data.draw(st.sampled_from(leased))
            one.leased, one.seen = False, self.revision
            self.strangers += one.streams
            one.streams = 0

    @rule()
    def a_streams_nobody_knows_of_ends(self) -> None:
        self.strangers = max(0, self.strangers - 1)

    # what was asked for is done, or fails
    @precondition(lambda self: self.work)
    @rule(data=st.data(), fails=st.booleans())
    def work_is_done(self, data: st.DataObject, fails: bool) -> None:
        effect = self.work.pop(data.draw(st.integers(0, len(self.work) - 1)))
        match effect:
            case ev.AskPermission() if fails:
                self.feed(ev.Blocked(Rule.MIN_READY, "too few"))
            case ev.AskPermission():
                self.entries = 1
                self.feed(ev.Permitted())
            case ev.Withdraw() | ev.Return() if fails:
                self.feed(ev.StoreFailed(type(effect).__name__))
            case ev.Withdraw() if self.alive and not self.returned:
                if self.state == "ready":
                    self.revision, self.state = self.revision + 1, "draining"
                self.feed(ev.Withdrawn(self.revision))
            case ev.Return():
                self.revision, self.state = self.revision + 1, "ready"
                self.feed(ev.Returned())
            case ev.CountEngine() if fails:
                self.feed(ev.EngineCounted(None))
            case ev.CountEngine():
                count = sum(g.streams for g in self.gateways.values()) + self.strangers
                self.feed(ev.EngineCounted(count, (self.stamp,)))
            case ev.Relaunch():
                self.feed(ev.GroupFailed("no weights") if fails else ev.GroupReady("a-2"))

    @rule()
    def the_operator_takes_it_back(self) -> None:
        self.feed(ev.UndrainAsked("amy"))

    @precondition(lambda self: self.alive and self.stopped)
    @rule()
    def its_processes_end(self) -> None:
        self.alive = False
        self.feed(ev.LaunchEnded("planned"))

    @precondition(lambda self: self.alive)
    @rule(really=st.integers(0, 9))
    def it_dies_by_itself(self, really: int) -> None:
        if not really:
            self.alive = False
            self.feed(ev.LaunchEnded("process-exited"))

    @invariant()
    def over_means_finished_and_nothing_is_kept(self) -> None:
        if not hasattr(self, "drain"):
            return
        assert (self.drain.stage is Stage.OVER) == self.finished
        if self.finished and not any(isinstance(w, ev.AskPermission) for w in self.work):
            assert not self.entries

    def teardown(self) -> None:
        """When the world calms down every drain ends."""
        if not hasattr(self, "drain"):
            return
        for _ in range(60):
            while self.work:
                self.work_done_well()
            if self.stopped and self.alive:
                self.its_processes_end()
            self.time_passes(40.0)
        assert self.finished, self.drain
        assert not self.entries

    def work_done_well(self) -> None:
        effect = self.work.pop(0)
        match effect:
            case ev.AskPermission():
                self.entries = 1
                self.feed(ev.Permitted())
            case ev.Withdraw():
                self.feed(ev.Withdrawn(self.revision))
            case ev.Return():
                self.feed(ev.Returned())
            case ev.CountEngine():
                self.feed(ev.EngineCounted(None))
            case ev.Relaunch():
                self.feed(ev.GroupReady("a-2"))


DrainWorld.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestDrains = DrainWorld.TestCase


EVENTS = st.one_of(
    st.builds(ev.Began, st.sampled_from(["", LAUNCH]), st.booleans(), st.booleans()),
    st.builds(ev.Permitted),
    st.builds(ev.Blocked, st.sampled_from(list(Rule)), st.text(max_size=3)),
    st.builds(ev.RulesChanged),
    st.builds(ev.Withdrawn, st.integers(-1, 9)),
    st.builds(ev.GatewaysTold, st.lists(st.builds(ev.GatewayLoad, st.just("g"), st.integers(0, 9))).map(tuple)),
    st.builds(ev.EngineCounted, st.sampled_from([None, 0, 1]), st.lists(st.floats(0, 3)).map(tuple)),
    st.builds(ev.StoreFailed, st.sampled_from(["", "AskPermission", "Withdraw", "Return", "x"])),
    st.builds(ev.UndrainAsked, st.just("amy")),
    st.builds(ev.Returned),
    st.builds(ev.LaunchEnded, st.just("")),
    st.builds(ev.GroupReady, st.sampled_from([LAUNCH, "a-2"])),
    st.builds(ev.GroupFailed, st.just("")),
    st.builds(ev.TimerFired, st.sampled_from(["ask", "stop", "hand-over", "count", "relaunch", "Withdraw", ""])),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 1000)), max_size=30), st.booleans())
@settings(max_examples=300, deadline=None)
def test_no_order_of_events_raises_and_over_never_leaves(
    events: list[tuple[ev.DrainEvent, float]], again: bool
) -> None:
    drain = Drain("a", 0.0, Instants.of(60.0), restart=again)
    stops = 0
    for event, now in events:
        before = drain
        drain, effects = step(drain, event, now)
        stops += sum(isinstance(e, ev.StopLaunch) for e in effects)
        if before.stage is Stage.OVER:
            assert drain == before
    assert stops <= 1
