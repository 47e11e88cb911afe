"""One host's part of a launch that another host owns: `step(member, event, now) -> (member, effects)`.

    IDLE ──plan──▶ SPAWNING ──▶ LOADING ──▶ SERVING ──planned notice──▶ LEAVING
      ▲               │            │           │                          │ node-rank 0 has left, or time is over
      │               └────────────┴── death, notice, closed ──▶ ENDING ◀─┘
      └──────────────── all gone, notice written ────────────────┘

Kept true, whatever order events come in: a launch is started here once and never again, and only after nothing is left
of the one before it (R2); a death makes the kill and the notice in the same step; an owner that the store has lost is
one class of evidence and kills nothing, an engine that had loaded and that nobody reaches any more is the second (R6);
with a planned notice node-rank 0 goes first; a store that does not answer kills nothing (R5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from infctl.domain import member_events as ev
from infctl.domain.causes import Cause, traits
from infctl.domain.member_events import MemberEffect, MemberEvent

STORE_RETRY = 0.5
PROBE_EVERY = 1.0
UNREACHED = 3  # probes in a row that make the second class of evidence
REMEMBERED = 8  # launches that are over


class Phase(StrEnum):
    IDLE = "idle"
    SPAWNING = "spawning"
    LOADING = "loading"
    SERVING = "serving"
    LEAVING = "leaving"
    ENDING = "ending"


ALIVE = frozenset({Phase.SPAWNING, Phase.LOADING, Phase.SERVING})


@dataclass(frozen=True, slots=True)
class Member:
    """`launch` is the one that runs or ran last; `planned` a newer one that waits until that is gone;
    `awaited`: of that one the store does not have the owner's part yet.

    `closed` are the last ones that are over or ran here before: none of them is begun. `unreached`: probes of the
    leader that failed in a row while `owner_away`; an engine listens when it has loaded, so it is asked from then on.
    """

    group: str
    phase: Phase = Phase.IDLE
    launch: str = ""
    planned: ev.PlanSeen | None = None
    awaited: bool = False
    closed: tuple[str, ...] = ()
    load: float = 900.0
    leave: float = 35.0
    owner_away: bool = False
    owner_lost: bool = False
    unreached: int = 0
    fault_pending: bool = False
    gone: bool = True
    end_reason: str = ""
    end_evidence: str = ""


Step = tuple[Member, tuple[MemberEffect, ...]]


def step(member: Member, event: MemberEvent, now: float) -> Step:
    """What the part becomes and what is to be done. Total: an event that does not fit changes nothing."""
    match event:
        case ev.PlanSeen():
            return _planned(member, event)
        case ev.PartFound(launch, reason, evidence) if member.phase is Phase.IDLE and launch:
            found = replace(member, launch=launch, phase=Phase.SPAWNING, gone=False)
            return _end(found, reason, evidence)
        case ev.PartAdopted(launch) if member.phase is Phase.IDLE and launch:
            return _adopted(member, event)
        case ev.LaunchClosed(launch) | ev.FaultSeen(launch) if launch != member.launch:
            return _closed_before(member, launch), ()
    if member.planned is not None and event.launch == member.planned.launch:
        match event:
            case ev.OwnerAway():
                return replace(member, awaited=True), ()
            case ev.OwnerBack():
                return replace(member, awaited=False), ()
    if event.launch != member.launch or not member.launch:
        return member, ()
    return _of_launch(member, event)


def _of_launch(member: Member, event: MemberEvent) -> Step:
    """Events that name the launch that is here."""
    launch, phase = member.launch, member.phase
    alive, there = phase in ALIVE, phase in ALIVE or phase is Phase.LEAVING
    match event:
        case ev.PartSpawned() if phase is Phase.SPAWNING:
            return replace(member, phase=Phase.LOADING), (ev.AwaitPart(launch), ev.SayPart(launch, "loading"))
        case ev.PartLoaded(_, ranks) if phase is Phase.LOADING:
            said = ev.Announce("part.loaded", launch, f"{ranks} ranks")
            serving = replace(member, phase=Phase.SERVING)
            return serving, (ev.SayPart(launch, "loaded"), said, *_look_for_owner(serving))
        case ev.PartRefused(_, why, cause) if alive:
            return _end(member, cause, why)
        case ev.ProcessExited(_, pid, title, status, cause) if alive:
            return _end(member, cause, f"{title} (pid {pid}) ended" + (f": {status}" if status else ""))
        case ev.ProcessExited() | ev.PartRefused() if phase is Phase.LEAVING:
            return _kill(member, member.end_reason)
        case ev.FaultSeen(_, reason) if alive and traits(reason).planned:
            leaving = replace(member, phase=Phase.LEAVING, end_reason=reason, end_evidence="planned")
            if member.owner_lost:
                return _kill(leaving, reason)
            return leaving, (ev.SetTimer("leave", launch, member.leave), ev.Announce("part.leaving", launch, reason))
        case ev.FaultSeen(_, reason) if there and not traits(reason).planned:
            return _kill(member, reason)
        case ev.FaultSeen() if member.fault_pending:
            return _settle(replace(member, fault_pending=False))
        case ev.LaunchClosed(_, why) if there:
            return _kill(replace(member, end_evidence=why), Cause.SUPERSEDED)
        case ev.LaunchClosed() if member.fault_pending:
            return _settle(replace(member, fault_pending=False))
        case ev.OwnerAway(_, lost) if phase is Phase.LEAVING and lost:
            return _kill(replace(member, owner_away=True, owner_lost=True), member.end_reason)
        case ev.OwnerAway(_, lost) if alive and not member.owner_away:
            away = replace(member, owner_away=True, owner_lost=lost, unreached=0)
            return away, _look_for_owner(away)
        case ev.OwnerAway(_, lost) if alive and lost:
            return replace(member, owner_lost=True), ()
        case ev.OwnerBack() if member.owner_away:
            return replace(member, owner_away=False, owner_lost=False, unreached=0), ()
        case ev.LeaderProbed(_, reached, why) if phase is Phase.SERVING and member.owner_away:
            return _probed(member, reached, why)
        case ev.PartGone() if phase is Phase.ENDING and not member.gone:
            return _settle(replace(member, gone=True))
        case ev.PartGone() if there:
            return _end(member, Cause.CRASH, "every process is gone")
        case ev.FaultWritten() if member.fault_pending:
            return _settle(replace(member, fault_pending=False))
        case ev.StoreFailed() if member.fault_pending:
            return member, (ev.SetTimer("fault", launch, STORE_RETRY),)
        case ev.TimerFired(name):
            return _timer(member, name)
    return member, ()


def _planned(member: Member, plan: ev.PlanSeen) -> Step:
    if plan.launch in (*member.closed, member.launch):
        return member, ()
    if member.phase is Phase.IDLE:
        return _spawn(replace(member, planned=None), plan)
    waiting = replace(member, planned=plan, awaited=False)
    if member.phase is not Phase.ENDING:
        # the store registers another launch by now: ours has nobody to belong to
        return _kill(replace(waiting, end_evidence=f"the store plans {plan.launch}"), Cause.SUPERSEDED)
    return _settle(replace(waiting, fault_pending=False))


def _spawn(member: Member, plan: ev.PlanSeen) -> Step:
    over = _over(member, member.launch) if member.launch else member
    spawning = replace(
        over, phase=Phase.SPAWNING, launch=plan.launch, load=plan.load, leave=plan.leave, gone=False,
        owner_away=False, owner_lost=False, unreached=0, fault_pending=False, end_reason="", end_evidence="",
    )  # fmt: skip
    return spawning, (ev.SpawnPart(plan.launch), ev.SetTimer("load", plan.launch, plan.load))


def _adopted(member: Member, found: ev.PartAdopted) -> Step:
    adopted = replace(
        member, phase=Phase.SERVING if found.loaded else Phase.LOADING, launch=found.launch, gone=False,
        load=found.load, leave=found.leave,
    )  # fmt: skip
    said = ev.Announce("part.adopted", found.launch, "loaded" if found.loaded else "it loads")
    say = ev.SayPart(found.launch, "loaded" if found.loaded else "loading")
    if found.loaded:
        return adopted, (say, said)
    return adopted, (say, ev.AwaitPart(found.launch), ev.SetTimer("load", found.launch, found.load), said)


def _closed_before(member: Member, launch: str) -> Member:
    """A launch that is over before it was begun here is not begun."""
    if member.planned is not None and member.planned.launch == launch:
        member = replace(member, planned=None)
    return _over(member, launch)


def _over(member: Member, launch: str) -> Member:
    if launch in member.closed:
        return member
    return replace(member, closed=(*member.closed, launch)[-REMEMBERED:])


def _look_for_owner(member: Member) -> tuple[MemberEffect, ...]:
    """The first class of evidence is there: ask for the second, once there is something to ask."""
    if not member.owner_away or member.phase is not Phase.SERVING:
        return ()
    said = ev.Announce("owner.away", member.launch, "the store does not have its part")
    return ev.ProbeLeader(member.launch), said


def _probed(member: Member, reached: bool, why: str) -> Step:
    again = ev.SetTimer("probe", member.launch, PROBE_EVERY)
    if reached:
        return replace(member, unreached=0), (again,)
    unreached = member.unreached + 1
    if unreached < UNREACHED:
        return replace(member, unreached=unreached), (again,)
    both = f"the store has lost the owner's host, and its engine is not reached: {why}"
    return _end(member, Cause.HOST_LOST, both)


def _timer(member: Member, name: str) -> Step:
    launch, phase = member.launch, member.phase
    if name == "load" and phase in (Phase.SPAWNING, Phase.LOADING):
        return _end(member, Cause.LOAD_TIMEOUT, f"not loaded after {member.load:g} s")
    if name == "leave" and phase is Phase.LEAVING:
        return _kill(member, member.end_reason)
    if name == "fault" and member.fault_pending:
        return member, (ev.WriteFault(launch, member.end_reason, member.end_evidence),)
    if name == "probe" and phase is Phase.SERVING and member.owner_away:
        return member, (ev.ProbeLeader(launch),)
    return member, ()


def _end(member: Member, reason: str, evidence: str) -> Step:
    """Our part is why the launch is over: kill and notice in one step."""
    ended, effects = _kill(replace(member, end_evidence=evidence), reason)
    kill, said = effects[0], ev.Announce("part.failed", member.launch, f"{reason}: {evidence}")
    return replace(ended, fault_pending=True), (kill, ev.WriteFault(member.launch, reason, evidence), said)


def _kill(member: Member, reason: str) -> Step:
    """The launch is over without us."""
    ending = replace(member, phase=Phase.ENDING, end_reason=reason, gone=False)
    return ending, (ev.KillPart(member.launch, reason), ev.Announce("part.ending", member.launch, reason))


def _settle(member: Member) -> Step:
    """Nothing is left of the launch and the store knows it: the next one may begin."""
    if member.phase is not Phase.ENDING or not member.gone or member.fault_pending:
        return member, ()
    idle = replace(member, phase=Phase.IDLE)
    said = (ev.SayPart(member.launch, ""), ev.Announce("part.gone", member.launch, member.end_reason))
    if member.planned is None:
        return idle, said
    spawning, effects = _spawn(replace(idle, planned=None, awaited=False), member.planned)
    return replace(spawning, owner_away=member.awaited), (*said, *effects)
