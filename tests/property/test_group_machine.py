"""Every order of events that a group can meet, with a store that compares, engines that die and a daemon that crashes.

The world is the executor: store work takes effect at any time, or is answered "unknown" and takes effect or not,
perhaps later; processes die unseen; leases end in the store before anybody hears of it; the daemon dies after any
prefix of a plan, and the next one takes the launch over where it lives, or ends it. What is
checked are outcomes: what the store holds, which processes run, where the group ends up when the world has calmed down.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from weighted import WeightedWorld, action

from infctl.domain import group as machine
from infctl.domain import group_events as ev
from infctl.domain.group import ALIVE, Group, Phase, RestartPolicy

pytestmark = pytest.mark.timeout(300)  # a bound on hangs, not on the speed of the machine
RANKS = 2
POLICY = RestartPolicy(attempts=2, interval=600.0)
# what may lead to a kill: everything else is no evidence
KILLERS = (
    ev.ClaimRefused
    | ev.SpawnFailed
    | ev.CanaryFailed
    | ev.ProcessExited
    | ev.LaunchGone
    | ev.HangConfirmed
    | ev.FaultSeen
    | ev.TimerFired
    | ev.LaunchFound
    | ev.LaunchClaimed
)
StoreWork = ev.ClaimLaunch | ev.ClaimGeneration | ev.PublishEndpoint | ev.WriteFault


@dataclass
class Work:
    """One effect on its way. `lease` and `read` are what its writer knew when it was sent."""

    effect: ev.GroupEffect
    lease: int
    read: int


@dataclass
class Timer:
    name: str
    launch: str
    due: float


@dataclass
class Store:
    generation: int = 0
    launch: str = ""
    endpoint: tuple[str, int, int] | None = None
    state: str = ""
    late: bool = False  # a write that nobody waited for any more set the state
    faults: set[str] = field(default_factory=set)
    lease: int = 0


@dataclass
class Recorded:
    """The state file: what the next daemon knows of the launch."""

    launch: str
    generation: int
    lease: int
    checked: bool = False


class GroupWorld(WeightedWorld):
    def __init__(self) -> None:
        super().__init__()
        self.now = 50.0
        self.store = Store()
        self.leases = 0
        self.made = 0
        self.alive: dict[str, int] = {}
        self.dead_seen: set[str] = set()
        self.killed: set[str] = set()
        self.spawned = ""
        self.wanted = ""
        self.held = False
        self.prefix: int | None = None
        self.recorded: Recorded | None = None
        self.counts.setdefault("a_launch_is_adopted", 0)
        self.adopts = self.keeps_lease = False
        self.crashes = 0
        self.foreign = 0
        self.reads_back = True
        self.ghosts: list[Work] = []
        self.begin_life()

    def begin_life(self) -> None:
        self.group = Group("a", POLICY, generation=self.store.generation)
        self.lease = 0
        self.work: list[Work] = []
        self.mail: list[ev.GroupEvent] = []
        self.lease_news: list[ev.GroupEvent] = []
        self.timers: list[Timer] = []

    @initialize(leased=st.booleans(), reads_back=st.booleans())
    def it_is_wanted(self, leased: bool, reads_back: bool) -> None:
        self.reads_back = reads_back
        if leased:
            self.a_lease_is_granted()
            self.lease_news_arrive()
        self.the_spec_is_applied("v1")

    # the executor
    def feed(self, event: ev.GroupEvent) -> None:
        before = self.group
        after, effects = machine.step(before, event, self.now)
        self.group = after
        self.check(before, event, after, effects)
        prefix, self.prefix = self.prefix, None
        for index, effect in enumerate(effects):
            if prefix is not None and index >= prefix:
                break
            self.execute(effect)
        if prefix is not None:
            self.crash()

    def execute(self, effect: ev.GroupEffect) -> None:
        match effect:
            case ev.SetTimer(name, launch, delay):
                assert delay > 0
                self.timers.append(Timer(name, launch, self.now + delay))
            case ev.KillLaunch(launch):
                self.killed.add(launch)
                self.work = [w for w in self.work if w.effect != ev.SpawnLaunch(launch)]
                self.work.append(Work(effect, self.lease, self.store.generation))
            case ev.Announce():
                pass
            case _:
                if isinstance(effect, ev.StopLaunch):
                    self.work = [w for w in self.work if w.effect != ev.SpawnLaunch(effect.launch)]
                self.work.append(Work(effect, self.lease, self.store.generation))

    def crash(self) -> None:
        """The daemon dies; what it sent may still take effect. The next one takes the launch over, or ends it first."""
        self.crashes += 1
        self.held = False
        self.ghosts += [w for w in self.work if isinstance(w.effect, StoreWork)]
        found, recorded = self.spawned or self.store.launch, self.recorded
        if not self.keeps_lease:
            self.store.lease, self.store.endpoint = 0, None
        for launch in self.killed:
            self.alive[launch] = 0
        self.begin_life()
        if self.store.lease:
            self.lease_news.append(ev.LeaseHeld(self.store.lease))
        if self.adopts and recorded and recorded.launch == found and self.alive.get(found) == RANKS:
            self.counts["a_launch_is_adopted"] += 1
            self.feed(ev.LaunchAdopted(found, recorded.generation, recorded.checked, recorded.lease, "v1"))
        elif found:
            self.feed(ev.LaunchFound(found, self.store.generation))
        if self.wanted:
            self.feed(ev.SpecApplied(self.wanted))

    def apply(self, work: Work, late: bool = False) -> ev.GroupEvent:
        """What the store does with a transaction, and what its writer makes of the answer (read back)."""
        store = self.store
        match work.effect:
            case ev.ClaimLaunch(above):
                if late and store.generation != work.read:
                    return ev.ClaimRefused("", "another writer was faster")
                store.generation = 1 + max(store.generation, above)
                self.made += 1
                store.launch = f"a-{self.made}"
                return ev.LaunchClaimed(store.launch, store.generation)
            case ev.ClaimGeneration(launch, above):
                if store.launch != launch or launch in store.faults:
                    return ev.ClaimRefused(launch, "another launch or a fault")
                if late and store.generation != work.read:
                    return ev.GenerationClaimed(launch, store.generation)
                store.generation = 1 + max(store.generation, above)
                return ev.GenerationClaimed(launch, store.generation)
            case ev.PublishEndpoint(launch, generation, state):
                if store.launch != launch or launch in store.faults:
                    return ev.ClaimRefused(launch, "another launch or a fault")
                if store.generation != generation:
                    if self.reads_back:
                        return ev.GenerationClaimed(launch, store.generation)
                    return ev.StoreFailed("PublishEndpoint", launch)
                if not work.lease or store.lease != work.lease:
                    return ev.StoreFailed("PublishEndpoint", launch)
                store.endpoint = (launch, generation, work.lease)
                store.state, store.late = state, store.late or late
                return ev.EndpointPublished(launch, generation, state)
            case ev.WriteFault(launch):
                if store.launch != launch:
                    return ev.ClaimRefused(launch, "another launch")
                store.faults.add(launch)
                if store.endpoint is not None and store.endpoint[0] == launch:
                    store.endpoint = None
                return ev.FaultWritten(launch)
        raise AssertionError(work)

    def on_host(self, work: Work, well: bool) -> ev.GroupEvent | None:
        match work.effect:
            case ev.SpawnLaunch(launch):
                running = [x for x, ranks in self.alive.items() if ranks and x != launch]
                assert not running, f"{launch} starts beside {running}"
                if not well:
                    return ev.SpawnFailed(launch, "no such file")
                self.spawned = launch
                self.alive[launch] = RANKS
                self.recorded = Recorded(launch, self.group.generation, work.lease)
                return ev.Spawned(launch, 1)
            case ev.AwaitLoad(launch):
                return ev.EngineLoaded(launch, RANKS) if self.alive.get(launch) == RANKS else None
            case ev.RunCanary(launch):
                if self.alive.get(launch) != RANKS:
                    return ev.CanaryFailed(launch, "connection refused")
                if well and self.recorded and self.recorded.launch == launch:
                    self.recorded.checked = True
                return ev.CanaryPassed(launch) if well else ev.StoreFailed("RunCanary", launch)
            case ev.StopLaunch(launch) | ev.KillLaunch(launch):
                self.alive[launch] = 0
                return ev.LaunchGone(launch)
        raise AssertionError(work)

    # what holds after every step
    def check(self, before: Group, event: ev.GroupEvent, after: Group, effects: tuple[ev.GroupEffect, ...]) -> None:
        kinds = [type(e) for e in effects]
        launch = getattr(event, "launch", "")
        if isinstance(event, ev.ProcessExited | ev.LaunchGone | ev.HangConfirmed | ev.FaultSeen):
            self.dead_seen.add(launch)
        assert after.generation >= before.generation
        if after.launch != before.launch:
            assert isinstance(event, ev.LaunchClaimed | ev.LaunchFound | ev.LaunchAdopted)
            assert not isinstance(event, ev.LaunchClaimed) or after.generation > before.generation
        if isinstance(event, ev.StoreFailed):
            assert after.phase is before.phase, "an unknown answer moved the group"
        if ev.KillLaunch in kinds:
            assert isinstance(event, KILLERS), f"killed on {event}"
            assert ev.WriteFault in kinds or isinstance(event, ev.FaultSeen), "a kill without its notice"
        deaths = (ev.ProcessExited, ev.HangConfirmed, ev.FaultSeen, ev.LaunchGone)
        if isinstance(event, deaths) and launch == before.launch and before.phase in ALIVE:
            assert ev.KillLaunch in kinds, "a death without a kill in the same step"
            assert after.phase is Phase.ENDING
        if isinstance(event, ev.GroupHeld) and before.phase in ALIVE:
            assert after.phase is before.phase and not effects, "a hold ended a launch"
        if after.phase is Phase.READY and before.phase is not Phase.READY:
            assert event == ev.EndpointPublished(after.launch, after.generation)
        if before.phase is Phase.ENDING and after.phase is not Phase.ENDING:
            assert not self.alive.get(before.launch), "goes on while processes of the old launch run"
            assert before.launch in self.store.faults or self.store.launch != before.launch, "goes on without a notice"
        for effect in effects:
            if isinstance(effect, ev.PublishEndpoint):
                assert effect.launch not in self.dead_seen, "publishes a launch that it saw die"
                assert effect.generation == after.generation and after.leased and not after.reclaim
            if isinstance(effect, ev.ClaimLaunch | ev.ClaimGeneration):
                assert after.leased
            if isinstance(effect, ev.SpawnLaunch):
                assert isinstance(event, ev.LaunchClaimed) and before.phase is Phase.CLAIMING
        new = ev.LaunchClaimed | ev.LaunchFound | ev.LaunchAdopted
        stale = launch and launch not in (before.launch, "") and not isinstance(event, new)
        if stale and not isinstance(event, ev.ClaimRefused):
            assert after == before and not effects, "an event of another launch did something"

    @invariant()
    def no_endpoint_stands_beside_a_fault_notice(self) -> None:
        endpoint = self.store.endpoint
        if endpoint is not None:
            launch, _generation, lease = endpoint
            assert launch not in self.store.faults
            assert lease == self.store.lease

    @invariant()
    def at_most_one_launch_runs(self) -> None:
        assert sum(1 for ranks in self.alive.values() if ranks) <= 1

    @invariant()
    def a_ready_group_has_a_launch_that_was_not_seen_dying(self) -> None:
        if self.group.phase in (Phase.PUBLISHING, Phase.READY):
            assert self.group.launch not in self.dead_seen | self.killed

    # the world goes on
    def next_of(self, pick: int) -> Work:
        return self.work.pop(pick % len(self.work))

    @action(
        40,
        lambda self: self.work,
        pick=st.integers(0, 63),
        fate=st.sampled_from(["done", "done", "done", "unknown-done", "unknown-lost", "unknown-late"]),
    )
    def work_gets_done(self, pick: int, fate: str) -> None:
        work = self.next_of(pick)
        if not isinstance(work.effect, StoreWork):
            answer = self.on_host(work, fate == "done" or not fate.endswith("lost"))
            if answer is not None:
                self.mail.append(answer)
            return
        if fate in ("done", "unknown-done"):
            event = self.apply(work)
        if fate == "done" and isinstance(event, ev.GenerationClaimed):
            known = self.recorded
            if known is not None and known.launch == event.launch:
                known.generation, known.lease = event.generation, work.lease
        if fate == "unknown-late":
            self.ghosts.append(work)
        if fate != "done":
            event = ev.StoreFailed(type(work.effect).__name__, getattr(work.effect, "launch", ""))
        self.mail.append(event)

    @action(2, lambda self: self.ghosts, pick=st.integers(0, 63))
    def a_write_takes_effect_late(self, pick: int) -> None:
        self.apply(self.ghosts.pop(pick % len(self.ghosts)), late=True)

    @action(40, lambda self: self.mail, pick=st.integers(0, 63), twice=st.booleans())
    def news_arrive(self, pick: int, twice: bool) -> None:
        event = self.mail.pop(pick % len(self.mail))
        crashes = self.crashes
        self.feed(event)
        if twice and crashes == self.crashes:
            self.feed(event)

    @action(
        2,
        lambda self: any(self.alive.values()),
        title=st.sampled_from(["sglang::scheduler_TP1", "sglang::detokenizer", "sglang::main"]),
    )
    def a_rank_dies(self, title: str) -> None:
        launch = next(x for x, ranks in self.alive.items() if ranks)
        self.alive[launch] -= 1
        self.mail.append(ev.ProcessExited(launch, 1, title, "SIGKILL"))
        if not self.alive[launch]:
            self.mail.append(ev.LaunchGone(launch))

    @action(2, lambda self: self.group.phase in ALIVE, kind=st.sampled_from(["hang", "fault", "canary"]))
    def the_launch_goes_bad(self, kind: str) -> None:
        launch = self.group.launch
        if kind == "fault":
            if self.store.launch == launch:
                self.apply(Work(ev.WriteFault(launch, "operator", ""), 0, 0))
                self.mail.append(ev.FaultSeen(launch, "operator"))
        elif kind == "hang":
            self.feed(ev.HangConfirmed(launch, "silence and heartbeat"))
        else:
            self.feed(ev.CanaryFailed(launch, "wrong tokens"))

    @action(1, lambda self: self.group.phase in (Phase.PUBLISHING, Phase.READY), doubted=st.booleans())
    def its_health_changes(self, doubted: bool) -> None:
        """It leaves routing or comes back; nothing else happens to it."""
        launch, before = self.group.launch, self.group.phase
        self.feed(ev.HealthDoubted(launch, "WrongAnswer", "7 for 9") if doubted else ev.HealthTrusted(launch))
        assert self.group.phase is before or self.crashes

    @action(2, lambda self: self.made > 1, pick=st.integers(0, 63), kind=st.integers(0, 9))
    def an_old_launch_is_heard_of(self, pick: int, kind: int) -> None:
        old = f"a-{1 + pick % (self.made - 1)}"
        if old == self.group.launch or self.alive.get(old):
            return
        generation = self.group.generation
        self.feed(
            [
                ev.ProcessExited(old, 9, "scheduler"),
                ev.Spawned(old, 9),
                ev.EngineLoaded(old, RANKS),
                ev.CanaryPassed(old),
                ev.EndpointPublished(old, generation),
                ev.GenerationClaimed(old, generation + 1),
                ev.LaunchGone(old),
                ev.FaultWritten(old),
                ev.FaultSeen(old, "late"),
                ev.StoreFailed("WriteFault", old),
            ][kind]
        )

    @action(1, lambda self: self.store.lease)
    def the_lease_ends(self) -> None:
        """In the store, with its endpoint; the daemon hears of it later."""
        if self.store.endpoint is not None and self.store.endpoint[2] == self.store.lease:
            self.store.endpoint = None
        self.store.lease = 0
        self.lease_news.append(ev.LeaseEnded())

    @action(12, lambda self: not self.store.lease)
    def a_lease_is_granted(self) -> None:
        self.leases += 1
        self.store.lease = self.leases
        self.lease_news.append(ev.LeaseHeld(self.leases))

    @action(12, lambda self: self.lease_news)
    def lease_news_arrive(self) -> None:
        event = self.lease_news.pop(0)
        self.lease = event.lease if isinstance(event, ev.LeaseHeld) else 0
        self.feed(event)

    @action(1, digest=st.sampled_from(["v1", "v1", "v2"]))
    def the_spec_is_applied(self, digest: str) -> None:
        self.wanted, self.held = digest, False
        self.feed(ev.SpecApplied(digest))

    @action(1, sure=st.booleans())
    def the_spec_is_deleted(self, sure: bool) -> None:
        if sure:
            self.wanted, self.held = "", False
            self.feed(ev.SpecDeleted())

    @action(1, lambda self: self.wanted and not self.held, sure=st.booleans())
    def a_drain_begins(self, sure: bool) -> None:
        if sure:
            self.held = True
            self.feed(ev.GroupHeld())

    @action(3, lambda self: self.held)
    def it_is_taken_back(self) -> None:
        self.the_spec_is_applied(self.wanted)

    @action(3, lambda self: self.held)
    def its_streams_have_finished(self) -> None:
        self.wanted, self.held = "", False
        self.feed(ev.LaunchDrained(self.group.launch, "drained", 5.0))

    @action(4, lambda self: self.timers, pick=st.integers(0, 63), far=st.booleans())
    def a_timer_fires(self, pick: int, far: bool) -> None:
        timer = self.timers[pick % len(self.timers)]
        if timer.due > self.now + 30.0 and not far:
            return
        self.timers.remove(timer)
        self.now = max(self.now, timer.due)
        self.feed(ev.TimerFired(timer.name, timer.launch))

    @action(1, lambda self: self.foreign < 2, sure=st.sampled_from([False, False, True]))
    def another_owner_registers_a_launch(self, sure: bool) -> None:
        if sure:
            self.foreign += 1
            self.store.generation += 1
            self.store.launch = f"foreign-{self.foreign}"
            self.store.endpoint = None  # a claim takes the endpoint of the launch that it replaces

    @action(1, lambda self: self.crashes < 3, prefix=st.integers(0, 3), adopts=st.booleans(), keeps=st.booleans())
    def the_daemon_will_die_within_its_next_plan(self, prefix: int, adopts: bool, keeps: bool) -> None:
        self.prefix, self.adopts, self.keeps_lease = prefix, adopts, keeps

    @action(1, seconds=st.sampled_from([0.1, 3.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def teardown(self) -> None:
        """The store answers, nothing dies, all news arrive. Then the group is ready, given up, or gone."""
        self.prefix = None
        for work in self.ghosts:
            self.apply(work, late=True)
        self.ghosts = []
        if self.held:
            self.it_is_taken_back()
        self.calm_down()
        if self.group.phase is Phase.READY and self.store.launch == self.group.launch and not self.mail:
            self.a_lost_lease_raises_the_generation_and_stops_nothing()
            self.a_death_is_followed_by_a_new_launch()

    def a_lost_lease_raises_the_generation_and_stops_nothing(self) -> None:
        """Also when the store takes the new generation and its answer is lost."""
        launch, generation = self.group.launch, self.group.generation
        self.the_lease_ends()
        self.a_lease_is_granted()
        self.lease_news_arrive()
        self.lease_news_arrive()
        assert self.work, "a regained lease asked the store for nothing"
        self.apply(self.work[0])
        self.mail.append(ev.StoreFailed(type(self.work.pop(0).effect).__name__, launch))
        self.calm_down()
        assert self.group.launch == launch and self.group.generation > generation

    def a_death_is_followed_by_a_new_launch(self) -> None:
        launch, generation = self.group.launch, self.group.generation
        self.a_rank_dies("sglang::scheduler_TP1")
        self.calm_down()
        assert launch in self.store.faults and not self.alive[launch]
        if self.group.phase is not Phase.FAILED:  # one death too many
            assert self.group.launch != launch and self.group.generation > generation

    def calm_down(self) -> None:
        for _ in range(300):
            if not self.store.lease:
                self.a_lease_is_granted()
            if self.lease_news:
                self.lease_news_arrive()
            elif self.mail:
                self.feed(self.mail.pop(0))
            elif self.work:
                work = self.work.pop(0)
                answer = self.apply(work) if isinstance(work.effect, StoreWork) else self.on_host(work, True)
                if answer is not None:
                    self.mail.append(answer)
            elif self.settled() and not self.timers_of_publish():
                break
            else:
                assert self.timers, f"waits for nothing: {self.group}"
                timer = min(self.timers, key=lambda t: t.due)
                self.timers.remove(timer)
                self.now = max(self.now, timer.due)
                self.feed(ev.TimerFired(timer.name, timer.launch))
            self.no_endpoint_stands_beside_a_fault_notice()
            self.at_most_one_launch_runs()
        group, store = self.group, self.store
        assert self.settled(), f"does not settle: {group}"
        running = [x for x, ranks in self.alive.items() if ranks]
        if not self.wanted:
            assert group.phase is Phase.IDLE
            assert not running and store.endpoint is None
        elif group.phase is Phase.FAILED:
            assert len(group.failures) > POLICY.attempts
            assert not running and store.endpoint is None
        else:
            assert running == [group.launch] and self.alive[group.launch] == RANKS
            if store.launch == group.launch:
                assert store.endpoint == (group.launch, store.generation, store.lease)
                assert group.published == ("unfit" if group.doubt else "ready")
                assert store.state == group.published or store.late

    def timers_of_publish(self) -> bool:
        return self.group.phase is Phase.READY and any(t.name == "publish" for t in self.timers)

    def settled(self) -> bool:
        expected = (Phase.READY, Phase.FAILED) if self.wanted else (Phase.IDLE,)
        return self.group.phase in expected


GroupWorld.TestCase.settings = settings(stateful_step_count=80)


class TestGroupMachine(GroupWorld.TestCase):  # type: ignore[misc, name-defined]
    def runTest(self) -> None:
        """A world in which nothing happens proves nothing: count what was done."""
        super().runTest()
        never = [name for name, count in GroupWorld.counts.items() if count < 4]
        assert not never, f"hardly ever done: {never}"
