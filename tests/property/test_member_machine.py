"""Every order of events that one host's part of a launch can meet, with the machine and what turns keys into events.

The world is the store with its two watches, the owner, the network and the executor: plans, records, rank keys and
notices are heard of late and in any order between the watches, or by a relist; store work takes effect or not, perhaps
later; processes die unseen; the daemon dies after any prefix of a plan, and the next one takes the part over where it
lives, or ends it, before it hears anything from the store. What is checked are outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from weighted import WeightedWorld, action

from infctl.domain import member as machine
from infctl.domain import member_events as ev
from infctl.domain.causes import Cause, traits
from infctl.domain.member import ALIVE, UNREACHED, Member, Phase
from infctl.store.codec import decode, encode
from infctl.store.records import FaultNotice, GroupSpec, Host, LaunchPlan, LaunchRecord, RankPart
from infctl_daemon.node.members import Members
from infctl_daemon.node.world import World

pytestmark = pytest.mark.timeout(300)  # a bound on hangs, not on the speed of the machine
RANKS = 2
SPEC = GroupSpec(
    name="g", pool="p", node="z", hosts=[Host(node="z"), Host(node="me")], model_path="/m", max_running=1,
    max_queued=1, tp=4,
)  # fmt: skip
# our own part is why the launch is over: never without a notice
OURS = ev.ProcessExited | ev.PartRefused | ev.PartGone | ev.PartFound | ev.LeaderProbed | ev.TimerFired
# somebody else, or the store, has ended it
THEIRS = ev.FaultSeen | ev.LaunchClosed | ev.PlanSeen
Key = tuple[str, ...]


@dataclass
class Timer:
    name: str
    launch: str
    due: float


@dataclass
class Recorded:
    """The state file of the part."""

    launch: str = ""
    unfinished: bool = False
    loaded: bool = False


class MemberWorld(WeightedWorld):
    def __init__(self) -> None:
        super().__init__()
        self.now = 50.0
        # the store and its watches
        self.keys: dict[Key, bytes] = {}
        self.made = 0
        # the owner: `leader` is the launch of which node-rank 0 runs
        self.leader, self.listens, self.reachable, self.daemon = "", False, True, True
        self.ending = ""
        # this host
        self.alive: dict[str, int] = {}
        self.started: dict[str, int] = {}
        self.recorded = Recorded()
        self.ghosts: list[ev.WriteFault] = []
        self.crashes = 0
        self.prefix: int | None = None
        self.adopts = False
        self.finale = ""
        self.counts.setdefault("a_part_is_adopted", 0)
        self.counts.setdefault("two_classes_end_it", 0)
        self.counts.setdefault("node_rank_0_goes_first", 0)
        self.begin_life()

    def begin_life(self) -> None:
        recorded = self.recorded
        self.member = Member("g", launch="" if recorded.unfinished else recorded.launch)
        self.work: list[ev.MemberEffect] = []
        self.mail: list[ev.MemberEvent] = []
        self.posted: list[ev.MemberEvent] = []
        self.timers: list[Timer] = []
        self.said: dict[str, str] = {}
        self.over_here: set[str] = set()
        self.failed_probes = 0
        self.listed = False
        self.news: dict[str, list[tuple[Key, bytes | None]]] = {"groups": [], "faults": []}
        self.seen: set[Key] = set()
        context: Any = SimpleNamespace(node="me", world=World(), state=SimpleNamespace(read=lambda _: self.recorded))
        self.members = Members(context)
        self.world: World = context.world
        loop: Any = SimpleNamespace(post=self.posted.append)
        self.members.loops["g"] = loop

    @initialize(finale=st.sampled_from(["death", "host", "planned", "lease", "relaunch"]))
    def a_launch_is_planned(self, finale: str) -> None:
        self.finale = finale
        self.the_store_is_listed()
        self.the_owner_claims()
        self.the_owner_plans()

    # the store
    def put(self, key: Key, record: Any) -> None:
        self.keys[key] = encode(record)
        self.tell(key, self.keys[key])

    def delete(self, key: Key) -> None:
        if self.keys.pop(key, None) is not None:
            self.tell(key, None)

    def tell(self, key: Key, value: bytes | None) -> None:
        if self.listed:
            self.news[key[0]].append((key, value))

    @property
    def launch(self) -> str:
        return f"g-{self.made}" if self.made else ""

    def record_key(self, launch: str) -> Key:
        return ("groups", "g", "launches", launch)

    def plan_key(self, launch: str) -> Key:
        return (*self.record_key(launch), "plan")

    def owner_key(self, launch: str) -> Key:
        return ("groups", "g", "ranks", launch, "z")

    def fault_key(self, launch: str) -> Key:
        return ("faults", "g", launch)

    def ended(self, launch: str) -> bool:
        value = self.keys.get(self.record_key(launch))
        return value is None or bool(decode(LaunchRecord, value).ended_at)

    def write_fault(self, launch: str, reason: str) -> None:
        """One transaction: the record as ended, and the notice; the first one stays."""
        if launch != self.launch or self.ended(launch):
            return
        record = decode(LaunchRecord, self.keys[self.record_key(launch)])
        self.put(self.record_key(launch), msgspec.structs.replace(record, ended_at="now", ended_why=reason))
        notice = FaultNotice(fault_id="f1", group="g", launch=launch, generation=1, reason=reason, at_ms=1.0)
        self.put(self.fault_key(launch), notice)

    # what our daemon hears
    def hear(self, key: Key, value: bytes | None) -> None:
        if value is None:
            self.seen.discard(key)
        else:
            self.seen.add(key)
        self.members.changed(key, value)
        if key[:3] == ("groups", "g", "ranks"):
            self.world.set_part(key[3], key[4], decode(RankPart, value) if value else None)

    @action(20, lambda self: not self.listed)
    def the_store_is_listed(self) -> None:
        for prefix in ("groups", "faults"):
            for key in sorted(k for k in self.keys if k[0] == prefix):
                self.hear(key, self.keys[key])
        self.members.begin()
        self.listed = True

    @action(25, lambda self: any(self.news.values()), first=st.booleans())
    def a_change_is_heard_of(self, first: bool) -> None:
        """The order of one watch is kept, that between the two is not."""
        groups, faults = self.news["groups"], self.news["faults"]
        news = groups if groups and (first or not faults) else faults
        self.hear(*news.pop(0))

    @action(1, lambda self: self.listed, prefix=st.sampled_from(["groups", "faults"]))
    def a_watch_lists_anew(self, prefix: str) -> None:
        here = sorted(k for k in self.keys if k[0] == prefix)
        gone = sorted(k for k in self.seen if k[0] == prefix and k not in self.keys)
        self.news[prefix].clear()
        for key in (*gone, *here):
            self.hear(key, self.keys.get(key))

    # the owner
    @action(2, lambda self: self.daemon and not self.leader and (not self.made or self.ended(self.launch)))
    def the_owner_claims(self) -> None:
        for key in [k for k in self.keys if k[:3] == ("groups", "g", "launches")]:
            self.delete(key)
        self.made += 1
        self.ending = ""
        self.put(self.record_key(self.launch), LaunchRecord(launch=self.launch, group="g", node="z"))

    @action(1, lambda self: self.made and self.made < 6, sure=st.sampled_from([False, False, True]))
    def another_owner_claims(self, sure: bool) -> None:
        """The group was moved while the launch ran, and the old owner's engine is killed."""
        if sure:
            self.delete(self.owner_key(self.launch))
            self.leader, self.listens, self.daemon = "", False, True
            self.the_owner_claims()

    def may_plan(self) -> bool:
        return self.daemon and self.made > 0 and not self.ended(self.launch)

    @action(25, lambda self: self.may_plan() and self.plan_key(self.launch) not in self.keys)
    def the_owner_plans(self) -> None:
        self.leader, self.listens = self.launch, False
        plan = LaunchPlan(
            launch=self.launch, group="g", owner="z", spec=SPEC, served_model="m", revision="r", leader="127.0.0.1",
            rendezvous=1, url="http://127.0.0.1:1",
        )  # fmt: skip
        self.put(self.plan_key(self.launch), plan)

    @action(15, lambda self: self.may_plan() and self.leader and self.owner_key(self.launch) not in self.keys)
    def the_owner_says_its_part(self) -> None:
        part = RankPart(launch=self.launch, group="g", node="z", node_rank=0, state="loading")
        self.put(self.owner_key(self.launch), part)

    @action(1, lambda self: self.daemon and self.leader)
    def the_store_loses_the_owner(self) -> None:
        """Its lease; the engine goes on."""
        self.daemon = False
        self.delete(self.owner_key(self.launch))

    @action(5, lambda self: not self.daemon)
    def the_owner_comes_back(self) -> None:
        self.daemon = True
        if not self.leader and self.made and not self.ended(self.launch):
            self.write_fault(self.launch, Cause.HOST_REBOOTED)

    @action(1, lambda self: self.leader, daemon=st.booleans())
    def node_rank_0_dies(self, daemon: bool) -> None:
        """With its daemon, or seen by it."""
        self.leader, self.listens = "", False
        if self.daemon and daemon:
            self.daemon = False
        elif self.daemon:
            self.write_fault(self.launch, Cause.CRASH)
        self.delete(self.owner_key(self.launch))

    @action(2, lambda self: self.daemon and self.leader and not self.ended(self.launch))
    def a_planned_end_begins(self) -> None:
        self.ending = self.launch
        self.write_fault(self.launch, Cause.DRAINED)

    @action(3, lambda self: self.daemon and self.leader and self.ended(self.leader))
    def node_rank_0_has_left(self) -> None:
        self.leader, self.listens = "", False
        self.delete(self.owner_key(self.launch))

    @action(1, lambda self: True)
    def the_network_between_hosts_is_cut_or_mended(self) -> None:
        self.reachable = not self.reachable

    @action(1, lambda self: any(k[0] == "faults" for k in self.keys))
    def a_notice_ends(self) -> None:
        """Minutes after it was written."""
        self.delete(next(k for k in self.keys if k[0] == "faults"))

    # the executor
    def feed(self, event: ev.MemberEvent) -> None:
        before = self.member
        after, effects = machine.step(before, event, self.now)
        self.check(before, event, after, effects)
        self.member = after
        prefix, self.prefix = self.prefix, None
        for index, effect in enumerate(effects):
            if prefix is not None and index >= prefix:
                break
            self.execute(effect)
        if prefix is not None:
            self.crash()

    def execute(self, effect: ev.MemberEffect) -> None:
        match effect:
            case ev.SetTimer(name, launch, delay):
                assert delay > 0
                self.timers = [t for t in self.timers if t.name != name]
                self.timers.append(Timer(name, launch, self.now + delay))
            case ev.Announce():
                pass
            case ev.SayPart(launch, state):
                if state:
                    self.said[launch] = state
                else:
                    self.said.pop(launch, None)
            case ev.KillPart(launch):
                if ev.SpawnPart(launch) in self.work:
                    self.work.remove(ev.SpawnPart(launch))
                    self.mail.append(ev.PartRefused(launch, "ended before it was started"))
                self.work.append(effect)
            case _:
                self.work.append(effect)

    def crash(self) -> None:
        """Our daemon dies; what it sent may still take effect. The next one knows the state file and the processes."""
        self.crashes += 1
        self.ghosts += [w for w in self.work if isinstance(w, ev.WriteFault)]
        recorded = self.recorded
        self.begin_life()
        if not recorded.unfinished:
            return
        if self.adopts and self.alive.get(recorded.launch) == RANKS:
            self.counts["a_part_is_adopted"] += 1
            self.feed(ev.PartAdopted(recorded.launch, recorded.loaded))
        else:
            self.feed(ev.PartFound(recorded.launch, Cause.DAEMON_RESTARTED, "not all of it lives"))

    def on_host(self, effect: ev.MemberEffect, well: bool) -> ev.MemberEvent | None:
        match effect:
            case ev.SpawnPart(launch):
                running = [x for x, ranks in self.alive.items() if ranks]
                assert not running, f"{launch} starts beside {running}"
                self.recorded = Recorded(launch, unfinished=True)
                if not well:
                    return ev.PartRefused(launch, "no such file")
                self.started[launch] = self.started.get(launch, 0) + 1
                self.alive[launch] = RANKS
                return ev.PartSpawned(launch, 1)
            case ev.AwaitPart(launch):
                if self.alive.get(launch) == RANKS and self.leader == launch:
                    self.listens = self.recorded.loaded = True
                    return ev.PartLoaded(launch, RANKS)
                if self.alive.get(launch) == RANKS and self.member.launch == launch and self.member.phase in ALIVE:
                    self.work.append(effect)  # node-rank 0 has not come yet
                return None
            case ev.KillPart(launch):
                self.alive[launch] = 0
                if self.recorded.launch == launch:
                    self.recorded.unfinished = False
                return ev.PartGone(launch)
            case ev.ProbeLeader(launch):
                return ev.LeaderProbed(launch, self.leader == launch and self.listens and self.reachable)
        raise AssertionError(effect)

    # what holds after every step
    def check(self, before: Member, event: ev.MemberEvent, after: Member, effects: tuple[ev.MemberEffect, ...]) -> None:
        kinds = [type(e) for e in effects]
        same = event.launch == before.launch
        planned = isinstance(event, ev.FaultSeen) and traits(event.reason).planned
        if isinstance(event, ev.FaultSeen | ev.LaunchClosed):
            self.over_here.add(event.launch)
        if isinstance(event, ev.LeaderProbed) and same:
            self.failed_probes = 0 if event.reached else self.failed_probes + 1
        if after.launch != before.launch or (isinstance(event, ev.OwnerBack) and same):
            self.failed_probes = 0
        if isinstance(event, ev.StoreFailed):
            assert after == before and not {ev.KillPart, ev.SpawnPart} & set(kinds), "an unknown answer did something"
        if ev.KillPart in kinds:
            leaving = before.phase is Phase.LEAVING
            assert isinstance(event, OURS | THEIRS) or (leaving and isinstance(event, ev.OwnerAway) and event.lost), (
                f"kills on {event}"
            )
            if before.phase in ALIVE and isinstance(event, OURS):
                assert ev.WriteFault in kinds, "kills without a notice"
            if isinstance(event, THEIRS):
                assert ev.WriteFault not in kinds, "another one's end is told as ours"
            if isinstance(event, ev.LeaderProbed):
                assert before.owner_away and self.failed_probes >= UNREACHED and before.phase is Phase.SERVING
                self.counts["two_classes_end_it"] += 1
            if planned:
                assert before.owner_lost, "goes before node-rank 0"
            if leaving and isinstance(event, ev.TimerFired):
                assert event.name == "leave"
        if planned and same and before.phase in ALIVE and not before.owner_lost:
            assert after.phase is Phase.LEAVING and ev.SetTimer("leave", after.launch, after.leave) in effects
            self.counts["node_rank_0_goes_first"] += 1
        if isinstance(event, ev.ProcessExited | ev.PartRefused) and same and before.phase in ALIVE:
            assert after.phase is Phase.ENDING and {ev.KillPart, ev.WriteFault} <= set(kinds), "a death goes unheard"
        if isinstance(event, ev.FaultSeen | ev.LaunchClosed) and same and before.phase in ALIVE:
            assert after.phase in (Phase.LEAVING, Phase.ENDING), "lives on after its end was told"
        if before.phase is Phase.ENDING and after.phase is not Phase.ENDING:
            assert not self.alive.get(before.launch), "goes on while processes of the old launch run"
            over = before.launch != self.launch or self.ended(before.launch)
            assert over, "goes on without a notice"
        for effect in effects:
            if isinstance(effect, ev.SpawnPart):
                assert effect.launch not in self.over_here, "begins what is over"
                assert before.phase in (Phase.IDLE, Phase.ENDING)
        born = ev.PlanSeen | ev.PartFound | ev.PartAdopted
        if not same and not isinstance(event, born):
            assert after.phase is before.phase and not effects, "an event of another launch did something"

    @invariant()
    def at_most_one_launch_runs(self) -> None:
        assert sum(1 for ranks in self.alive.values() if ranks) <= 1

    @invariant()
    def no_launch_was_started_twice(self) -> None:
        assert all(count == 1 for count in self.started.values()), self.started

    # the world goes on
    @action(
        40,
        lambda self: self.work,
        pick=st.integers(0, 63),
        fate=st.sampled_from(["done", "done", "done", "unknown-done", "unknown-lost", "unknown-late"]),
    )
    def work_gets_done(self, pick: int, fate: str) -> None:
        effect = self.work.pop(pick % len(self.work))
        if not isinstance(effect, ev.WriteFault):
            if (answer := self.on_host(effect, fate != "unknown-lost")) is not None:
                self.mail.append(answer)
            return
        if fate in ("done", "unknown-done"):
            self.write_fault(effect.launch, effect.reason)
        if fate == "unknown-late":
            self.ghosts.append(effect)
        self.mail.append(ev.FaultWritten(effect.launch) if fate == "done" else ev.StoreFailed(effect.launch))

    @action(2, lambda self: self.ghosts, pick=st.integers(0, 63))
    def a_write_takes_effect_late(self, pick: int) -> None:
        ghost = self.ghosts.pop(pick % len(self.ghosts))
        self.write_fault(ghost.launch, ghost.reason)

    @action(40, lambda self: self.mail, pick=st.integers(0, 63), twice=st.booleans())
    def news_of_the_host_arrive(self, pick: int, twice: bool) -> None:
        event = self.mail.pop(pick % len(self.mail))
        crashes = self.crashes
        self.feed(event)
        if twice and crashes == self.crashes:
            self.feed(event)

    @action(40, lambda self: self.posted)
    def news_of_the_store_arrive(self) -> None:
        self.feed(self.posted.pop(0))

    @action(2, lambda self: any(self.alive.values()), told=st.sampled_from([True, True, False]))
    def a_rank_dies(self, told: bool) -> None:
        """Unseen only where no daemon is there to see it."""
        launch = next(x for x, ranks in self.alive.items() if ranks)
        self.alive[launch] -= 1
        self.mail.append(ev.ProcessExited(launch, 1, "sglang::scheduler_TP1", "SIGKILL"))
        if not told:
            self.crash()

    @action(4, lambda self: self.timers, pick=st.integers(0, 63), far=st.booleans())
    def a_timer_fires(self, pick: int, far: bool) -> None:
        timer = self.timers[pick % len(self.timers)]
        if timer.due > self.now + 30.0 and not far:
            return
        self.fire(timer)

    def fire(self, timer: Timer) -> None:
        self.timers.remove(timer)
        self.now = max(self.now, timer.due)
        self.feed(ev.TimerFired(timer.name, timer.launch))

    @action(2, lambda self: self.made > 1, pick=st.integers(0, 63), kind=st.integers(0, 9))
    def an_old_launch_is_heard_of(self, pick: int, kind: int) -> None:
        old = f"g-{1 + pick % (self.made - 1)}"
        if old == self.member.launch or old not in self.started:
            return
        self.feed(
            [
                ev.ProcessExited(old, 9, "scheduler"),
                ev.PartSpawned(old, 9),
                ev.PartLoaded(old, RANKS),
                ev.PartRefused(old, "late"),
                ev.PartGone(old),
                ev.FaultWritten(old),
                ev.StoreFailed(old),
                ev.OwnerAway(old),
                ev.LeaderProbed(old, False),
                ev.TimerFired("load", old),
            ][kind]
        )

    @action(1, lambda self: self.crashes < 3, prefix=st.integers(0, 3), adopts=st.booleans())
    def the_daemon_will_die_within_its_next_plan(self, prefix: int, adopts: bool) -> None:
        self.prefix, self.adopts = prefix, adopts

    # the end
    def teardown(self) -> None:
        """The store answers, the network is whole, nothing dies, all news arrive: then the part serves, or is over."""
        self.prefix = None
        self.reachable = True
        for ghost in self.ghosts:
            self.write_fault(ghost.launch, ghost.reason)
        self.ghosts = []
        self.calm_down()
        if self.member.phase is Phase.SERVING and self.member.launch == self.leader:
            getattr(self, f"then_{self.finale}")()

    def then_death(self) -> None:
        launch = self.leader
        self.a_rank_dies(True)
        self.calm_down()
        assert self.ended(launch) and not self.alive[launch]

    def then_host(self) -> None:
        """The owner's host dies with everything on it, and stays away: a member writes the notice."""
        launch = self.leader
        self.daemon, self.leader, self.listens = False, "", False
        self.delete(self.owner_key(launch))
        self.calm_down()
        assert self.ended(launch) and not self.alive[launch]
        assert self.member.end_reason == Cause.HOST_LOST

    def then_lease(self) -> None:
        """The store loses the owner, whose engine goes on: for ever, if need be."""
        launch = self.leader
        self.daemon = False
        self.delete(self.owner_key(launch))
        self.calm_down()
        for _ in range(10):
            self.fire(next(t for t in self.timers if t.name == "probe"))
            self.calm_down()
        assert self.alive[launch] == RANKS and not self.ended(launch) and self.member.phase is Phase.SERVING

    def then_planned(self) -> None:
        launch = self.leader
        was_lost, there = self.member.owner_lost, self.owner_key(launch) in self.keys
        self.a_planned_end_begins()
        if there and not was_lost:
            self.calm_down(timers=False)
            assert self.alive[launch] == RANKS, "goes before node-rank 0"
        self.node_rank_0_has_left()
        self.calm_down(timers=not (there or was_lost))  # of one that never said that it was there nobody hears
        assert not self.alive[launch]

    def then_relaunch(self) -> None:
        old = self.leader
        self.another_owner_claims(True)
        self.the_owner_plans()
        self.the_owner_says_its_part()
        self.calm_down()
        assert not self.alive[old] and self.alive[self.launch] == RANKS
        assert self.member.phase is Phase.SERVING

    def calm_down(self, timers: bool = True) -> None:
        for _ in range(400):
            if not self.listed:
                self.the_store_is_listed()
            elif any(self.news.values()):
                self.a_change_is_heard_of(True)
            elif self.posted:
                self.news_of_the_store_arrive()
            elif self.mail:
                self.feed(self.mail.pop(0))
            elif self.ready_work():
                effect = self.ready_work()[0]
                self.work.remove(effect)
                if isinstance(effect, ev.WriteFault):
                    self.write_fault(effect.launch, effect.reason)
                    self.mail.append(ev.FaultWritten(effect.launch))
                elif (answer := self.on_host(effect, True)) is not None:
                    self.mail.append(answer)
            elif self.resting() or not timers:
                break
            else:
                assert self.timers, f"waits for nothing: {self.member}"
                self.fire(min(self.timers, key=lambda t: t.due))
            self.at_most_one_launch_runs()
            self.no_launch_was_started_twice()
        else:
            raise AssertionError(f"does not come to rest: {self.member}")
        if timers:
            self.at_rest()

    def ready_work(self) -> list[ev.MemberEffect]:
        """A part that waits for node-rank 0 is not ready to go on."""
        return [w for w in self.work if not isinstance(w, ev.AwaitPart) or self.leader == w.launch]

    def resting(self) -> bool:
        phase, launch = self.member.phase, self.member.launch
        if phase is Phase.SERVING and self.member.owner_away:
            return self.leader == launch and self.member.unreached == 0 and any(t.name == "probe" for t in self.timers)
        return phase in (Phase.IDLE, Phase.SERVING)

    def at_rest(self) -> None:
        running = [x for x, ranks in self.alive.items() if ranks]
        if self.member.phase is Phase.SERVING:
            launch = self.member.launch
            assert running == [launch] and self.alive[launch] == RANKS
            assert launch == self.launch and not self.ended(launch), "lives on though it is over"
            assert self.said == {launch: "loaded"}
        else:
            assert not running and not self.said, "something of a launch that is over is left"
            assert not self.recorded.unfinished
            planned = self.plan_key(self.launch) in self.keys
            assert not planned or self.ended(self.launch), "a launch was planned, and its part is not there"


MemberWorld.TestCase.settings = settings(stateful_step_count=80)


class TestMemberMachine(MemberWorld.TestCase):  # type: ignore[misc, name-defined]
    def runTest(self) -> None:
        """A world in which nothing happens proves nothing: count what was done."""
        super().runTest()
        never = [name for name, count in MemberWorld.counts.items() if count < 4]
        assert not never, f"hardly ever done: {never}"
