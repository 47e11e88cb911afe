"""What `--once` says of our parts of launches that other hosts own; `domain.member.step` is asked, as by a daemon."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from infctl.domain import member_events as ev
from infctl.domain.member import Member, Phase, step
from infctl.store.codec import decode
from infctl.store.records import FaultNotice, LaunchPlan, LaunchRecord
from infctl_daemon.node.adopt import Lost, check_living
from infctl_daemon.node.member_work import node_rank
from infctl_daemon.proc import procfs
from infctl_daemon.proc.state_file import GroupState, StateFile


@dataclass(frozen=True, slots=True)
class Finding:
    """One group: what it is, and what a daemon would do; "" where nothing."""

    group: str
    state: str
    todo: str


@dataclass(slots=True)
class Parts:
    """What one look found. `plans` name this node as another host than the owner; `there` are hosts with a rank key."""

    node: str
    plans: dict[str, LaunchPlan] = field(default_factory=dict)
    there: set[tuple[str, str]] = field(default_factory=set)
    over: dict[str, str] = field(default_factory=dict)  # launch -> why
    recorded: dict[str, GroupState] = field(default_factory=dict)
    alive: dict[str, int] = field(default_factory=dict)
    lost: dict[str, Lost] = field(default_factory=dict)

    def take(self, parts: tuple[str, ...], value: bytes) -> None:
        """A key of the store. Raises BadRecord."""
        match parts:
            case ("groups", group, "launches", _, "plan"):
                if node_rank(plan := decode(LaunchPlan, value), self.node):
                    self.plans[group] = plan
            case ("groups", _, "launches", launch) if (record := decode(LaunchRecord, value)).ended_at:
                self.over[launch] = record.ended_why
            case ("groups", _, "ranks", launch, host):
                self.there.add((launch, host))
            case ("faults", _, launch):
                self.over[launch] = decode(FaultNotice, value).reason

    def look(self, state: StateFile) -> None:
        """This host's side: what is recorded, and what of it lives."""
        for group in state.groups():
            known = self.recorded[group] = state.read(group)
            if not known.unfinished:
                continue
            self.alive[group] = sum(procfs.is_alive(p.ident) for p in state.leftovers(group))
            try:
                check_living(known)
            except Lost as lost:
                self.lost[group] = lost

    def findings(self, *, supervised: bool) -> list[Finding]:
        """For every part that is planned or left over here."""
        left = {group for group, known in self.recorded.items() if known.unfinished}
        return [self._finding(group, supervised) for group in sorted({*self.plans, *left})]

    def _finding(self, group: str, supervised: bool) -> Finding:
        known, plan = self.recorded.get(group), self.plans.get(group)
        if known is None or not known.unfinished:
            state = f"part of {plan.owner}'s launch {plan.launch}, nothing runs" if plan else "nothing runs"
        else:
            counted = f"{self.alive[group]} of {len(known.processes)} processes"
            state = f"part of launch {known.launch}, node-rank {known.node_rank}, {counted}"
            right = plan is not None and plan.launch == known.launch and known.launch not in self.over
            if supervised and right and group not in self.lost:
                return Finding(group, state, "")
        return Finding(group, state, _words(self._effects(group, known, plan)))

    def _effects(self, group: str, known: GroupState | None, plan: LaunchPlan | None) -> Iterable[ev.MemberEffect]:
        """What the daemon's own machine asks for when it starts and finds this."""
        left = known if known and known.unfinished else None
        member = Member(group, launch=known.launch if known and not left else "")
        effects: list[ev.MemberEffect] = []
        for event in self._events(group, left, plan):
            member, more = step(member, event, time.monotonic())
            effects += more
        if left and member.phase is Phase.ENDING:
            # and what follows when that went well
            for event in (ev.FaultWritten(left.launch), ev.PartGone(left.launch)):
                member, more = step(member, event, time.monotonic())
                effects += more
        return effects

    def _events(self, group: str, left: GroupState | None, plan: LaunchPlan | None) -> Iterable[ev.MemberEvent]:
        if left and (lost := self.lost.get(group)):
            yield ev.PartFound(left.launch, lost.reason, lost.evidence)
        elif left:
            yield ev.PartAdopted(left.launch, left.stage == "checked")
        if left and left.launch in self.over:
            yield ev.FaultSeen(left.launch, self.over[left.launch])
        elif left and plan is None:
            yield ev.LaunchClosed(left.launch, "the store does not have its plan any more")
        elif left and plan and (plan.launch, plan.owner) not in self.there:
            yield ev.OwnerAway(plan.launch)
        if plan and plan.launch not in self.over:
            yield ev.PlanSeen(plan.launch)


_TODO = {
    ev.SpawnPart: "start its part of {launch}",
    ev.AwaitPart: "wait until it has loaded",
    ev.KillPart: "end its part of {launch}",
    ev.WriteFault: "write its fault notice",
    ev.ProbeLeader: "ask the owner's engine whether it is there",
}


def _words(effects: Iterable[ev.MemberEffect]) -> str:
    """The effects as a person says them; one that has no words is named."""
    said = []
    for effect in effects:
        if isinstance(effect, ev.Announce) and effect.kind == "part.adopted":
            said.append(f"take over its part of {effect.launch}")
        if isinstance(effect, (ev.Announce, ev.SetTimer, ev.SayPart)):
            continue
        said.append(_TODO.get(type(effect), type(effect).__name__).format(launch=effect.launch))
    return ", ".join(said)
