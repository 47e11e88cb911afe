"""The life of a worker group as its owner's daemon drives it: `step(state, event, now) -> (state, effects)`.

    IDLE ──spec──▶ CLAIMING ──claimed──▶ SPAWNING ──▶ LOADING ──▶ CANARY ──▶ PUBLISHING ──▶ READY
                      ▲                     │            │          │            │            │
                      │                     └────────────┴──── death, refusal ───┴────────────┤
                      └── timer ── BACKOFF ◀── all gone ── ENDING ◀───────────────────────────┘
                                                 │ not wanted any more
                                                 └──▶ IDLE            too many tries ──▶ FAILED

Kept true, whatever order events come in: generation never falls; an event of another launch changes nothing; an
endpoint is published only after canary and with every rank alive; a death makes the kill and the fault notice in
the same step, so neither waits for the other; a store that does not answer kills nothing (R5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from infctl.domain import group_events as ev
from infctl.domain.group_events import GroupEffect, GroupEvent

STORE_RETRY = 0.5


class Phase(StrEnum):
    IDLE = "idle"
    CLAIMING = "claiming"
    SPAWNING = "spawning"
    LOADING = "loading"
    CANARY = "canary"
    PUBLISHING = "publishing"
    READY = "ready"
    ENDING = "ending"
    BACKOFF = "backoff"
    FAILED = "failed"


ALIVE = frozenset({Phase.SPAWNING, Phase.LOADING, Phase.CANARY, Phase.PUBLISHING, Phase.READY})


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often and how soon a group is started again. Seconds; `attempts` failures within `interval` give up."""

    first_delay: float = 2.0
    max_delay: float = 60.0
    attempts: int = 5
    interval: float = 600.0
    load_deadline: float = 900.0
    canary_deadline: float = 60.0
    kill_deadline: float = 30.0

    def delay(self, failures: int) -> float:
        """Doubling from `first_delay`; `failures` counts those inside the interval, from 1."""
        return min(self.max_delay, self.first_delay * 2.0 ** min(max(0, failures - 1), 16))


@dataclass(frozen=True, slots=True)
class Group:
    """One group as its owner knows it. `failures` are the moments of recent ends, oldest first.

    `reclaim`: a lease was lost after the canary, so a new generation is due before the endpoint is written (R1).
    `kept_lease`: of an adopted launch, the lease that its generation was taken under; while that one still lives,
    nothing was lost and the generation stays.
    """

    name: str
    policy: RestartPolicy = RestartPolicy()
    phase: Phase = Phase.IDLE
    wanted: str = ""
    running: str = ""
    launch: str = ""
    generation: int = 0
    leased: bool = False
    reclaim: bool = False
    kept_lease: int = 0
    fault_pending: bool = False
    gone: bool = True
    end_reason: str = ""
    end_evidence: str = ""
    failures: tuple[float, ...] = ()


Step = tuple[Group, tuple[GroupEffect, ...]]


def step(group: Group, event: GroupEvent, now: float) -> Step:
    """What the group becomes and what is to be done. Total: an event that does not fit changes nothing."""
    match event:
        case ev.SpecApplied(digest):
            return _spec(group, digest)
        case ev.SpecDeleted(reason):
            return _unwanted(group, reason)
        case ev.LaunchFound(launch) if group.phase is Phase.IDLE and launch:
            return _found(group, event, now)
        case ev.LaunchAdopted(launch) if group.phase is Phase.IDLE and launch:
            return _adopted(group, event)
        case ev.LeaseHeld(lease):
            return _lease_held(group, lease)
        case ev.LeaseEnded():
            return replace(group, leased=False, kept_lease=0), ()
        case ev.LaunchClaimed(launch, generation):
            if generation <= group.generation:
                return group, ()
            if group.phase is not Phase.CLAIMING:
                return _superseded(group, launch, generation, now)
            claimed = replace(
                group,
                launch=launch,
                generation=generation,
                phase=Phase.SPAWNING,
                gone=False,
                reclaim=False,
                kept_lease=0,
                running=group.wanted,
            )
            return claimed, (
                ev.SpawnLaunch(launch),
                ev.SetTimer("load", launch, group.policy.load_deadline),
                ev.Announce("launch.claimed", launch, f"generation {generation}"),
            )
        case ev.TimerFired(name, launch):
            return _timer(group, name, launch, now)
        case ev.ClaimRefused(launch, why) if group.phase is Phase.CLAIMING:
            return group, (ev.SetTimer("claim", "", STORE_RETRY), ev.Announce("claim.refused", launch, why))
        case ev.StoreFailed("ClaimLaunch", _) if group.phase is Phase.CLAIMING:
            return group, (ev.SetTimer("claim", "", STORE_RETRY),)
    if event.launch != group.launch or not group.launch:
        return group, ()
    return _of_launch(group, event, now)


def _of_launch(group: Group, event: GroupEvent, now: float) -> Step:
    """Events that name the current launch."""
    launch = group.launch
    match event:
        case ev.Spawned() if group.phase is Phase.SPAWNING:
            return replace(group, phase=Phase.LOADING), (ev.AwaitLoad(launch),)
        case ev.EngineLoaded(_, ranks) if group.phase is Phase.LOADING:
            return replace(group, phase=Phase.CANARY), (
                ev.RunCanary(launch),
                ev.SetTimer("canary", launch, group.policy.canary_deadline),
                ev.Announce("engine.loaded", launch, f"{ranks} ranks"),
            )
        case ev.CanaryPassed() if group.phase is Phase.CANARY:
            passed = replace(group, phase=Phase.PUBLISHING)
            return passed, (ev.PublishEndpoint(launch, group.generation),) if group.leased else ()
        case ev.EndpointPublished(_, generation) if group.phase is Phase.PUBLISHING and generation == group.generation:
            return replace(group, phase=Phase.READY), (
                ev.Announce("endpoint.published", launch, f"generation {generation}"),
            )
        case ev.GenerationClaimed(_, generation) if _publishable(group) and generation > group.generation:
            # also when ready: the durable generation is a floor below which our endpoint does not count
            raised = replace(group, phase=Phase.PUBLISHING, generation=generation, reclaim=False)
            return raised, (ev.PublishEndpoint(launch, generation),) if group.leased else ()
        case ev.ClaimRefused(_, why) if group.phase in ALIVE:
            return _end(group, now, "refused", why)
        case ev.ClaimRefused() if group.fault_pending:
            # the store names another launch, or has the notice: there is nothing of ours left to take away
            return _settle(replace(group, fault_pending=False), now)
        case ev.StoreFailed("PublishEndpoint" | "ClaimGeneration", _) if group.phase is Phase.PUBLISHING:
            return group, (ev.SetTimer("publish", launch, STORE_RETRY),)
        case ev.StoreFailed("RunCanary", _) if group.phase is Phase.CANARY:
            # the engine answered, the store could not say what is right: neither the engine's fault nor its end (R5)
            return group, (
                ev.SetTimer("recheck", launch, STORE_RETRY),
                ev.SetTimer("canary", launch, group.policy.canary_deadline),
            )
        case ev.StoreFailed("WriteFault", _) if group.fault_pending:
            return group, (ev.SetTimer("fault", launch, STORE_RETRY),)
        case ev.SpawnFailed(_, why) if group.phase in ALIVE:
            return _end(group, now, "spawn-failed", why)
        case ev.CanaryFailed(_, why) if group.phase is Phase.CANARY:
            return _end(group, now, "canary-failed", why)
        case ev.ProcessExited(_, pid, title, status) if group.phase in ALIVE:
            evidence = f"{title} (pid {pid}) ended" + (f": {status}" if status else "")
            return _end(group, now, "process-exited", evidence)
        case ev.HangConfirmed(_, evidence) if group.phase in ALIVE:
            return _end(group, now, "hang", evidence)
        case ev.FaultSeen(_, reason) if group.phase in ALIVE:
            ended, effects = _end(group, now, reason, "fault notice by another member")
            # the notice is there already: only the kill is ours
            return replace(ended, fault_pending=False), tuple(e for e in effects if not isinstance(e, ev.WriteFault))
        case ev.FaultWritten() if group.fault_pending:
            return _settle(replace(group, fault_pending=False), now)
        case ev.LaunchGone() if group.phase is Phase.ENDING and not group.gone:
            return _settle(replace(group, gone=True), now)
        case ev.LaunchGone() if group.phase in ALIVE:
            ended, effects = _end(group, now, "process-exited", "every process is gone")
            return replace(ended, gone=True), effects
    return group, ()


def _spec(group: Group, digest: str) -> Step:
    wanted = replace(group, wanted=digest)
    if digest and group.phase in (Phase.IDLE, Phase.FAILED) and (digest != group.wanted or group.phase is Phase.IDLE):
        return _claim(replace(wanted, failures=()))
    return wanted, ()


def _unwanted(group: Group, reason: str) -> Step:
    unwanted = replace(group, wanted="")
    if group.phase in ALIVE:
        ending = replace(
            unwanted, phase=Phase.ENDING, end_reason=reason, end_evidence="planned", fault_pending=True, gone=False
        )
        return ending, (
            ev.StopLaunch(group.launch, group.policy.kill_deadline),
            ev.WriteFault(group.launch, reason, "planned"),
            ev.Announce("group.stopping", group.launch, reason),
        )
    if group.phase is Phase.ENDING:
        return unwanted, ()
    return replace(unwanted, phase=Phase.IDLE), ()


def _found(group: Group, found: ev.LaunchFound, now: float) -> Step:
    """A launch that cannot go on is ended before anything new starts. That the daemon was away is nobody's failure."""
    failed = found.reason == "process-exited"
    ending = replace(
        group,
        launch=found.launch,
        generation=max(group.generation, found.generation),
        phase=Phase.ENDING,
        fault_pending=True,
        gone=False,
        end_reason=found.reason,
        end_evidence=found.evidence,
        failures=(*group.failures, now) if failed else group.failures,
    )
    return ending, (
        ev.KillLaunch(found.launch, found.reason),
        ev.WriteFault(found.launch, found.reason, found.evidence),
        ev.Announce("launch.found", found.launch, f"{found.reason}: {found.evidence}"),
    )


def _adopted(group: Group, found: ev.LaunchAdopted) -> Step:
    """It goes on where it was. Nothing is published before the lease says whether the registration still holds."""
    adopted = replace(
        group,
        launch=found.launch,
        generation=max(group.generation, found.generation),
        phase=Phase.PUBLISHING if found.checked else Phase.LOADING,
        gone=False,
        running=found.digest,
        kept_lease=found.lease,
    )
    said = ev.Announce("launch.adopted", found.launch, f"generation {adopted.generation}")
    if not found.checked:
        return adopted, (
            ev.AwaitLoad(found.launch),
            ev.SetTimer("load", found.launch, group.policy.load_deadline),
            said,
        )
    if not group.leased:
        return adopted, (said,)
    return replace(adopted, reclaim=True), (ev.ClaimGeneration(found.launch, adopted.generation), said)


def _lease_held(group: Group, lease: int) -> Step:
    held = replace(group, leased=True)
    if group.phase is Phase.CLAIMING and not group.leased:
        return held, (ev.ClaimLaunch(group.generation),)
    if _publishable(group) and not group.leased:
        again = replace(held, phase=Phase.PUBLISHING)
        if lease and lease == group.kept_lease:
            return again, (ev.PublishEndpoint(group.launch, group.generation),)
        # the old lease took the endpoint with it, if it was there; the launch itself never stopped (R7)
        return replace(again, reclaim=True), (ev.ClaimGeneration(group.launch, group.generation),)
    return held, ()


def _publishable(group: Group) -> bool:
    return group.phase in (Phase.PUBLISHING, Phase.READY)


def _superseded(group: Group, launch: str, generation: int, now: float) -> Step:
    """A claim of ours that nobody waits for any more: the store now registers a launch that will never run."""
    raised = replace(group, generation=generation)
    if group.phase in ALIVE and launch != group.launch:
        return _end(raised, now, "superseded", f"the store registers {launch}")
    return raised, ()


def _claim(group: Group) -> Step:
    claiming = replace(group, phase=Phase.CLAIMING)
    return claiming, (ev.ClaimLaunch(group.generation),) if group.leased else ()


def _end(group: Group, now: float, reason: str, evidence: str) -> Step:
    """The launch is over: kill and notice in one step."""
    recent = tuple(t for t in group.failures if now - t < group.policy.interval)
    ending = replace(
        group,
        phase=Phase.ENDING,
        fault_pending=True,
        gone=False,
        end_reason=reason,
        end_evidence=evidence,
        failures=(*recent, now),
    )
    return ending, (
        ev.KillLaunch(group.launch, reason),
        ev.WriteFault(group.launch, reason, evidence),
        ev.Announce("launch.failed", group.launch, f"{reason}: {evidence}"),
    )


def _settle(group: Group, now: float) -> Step:
    """The launch is gone and its notice is written: start again, wait, or give up."""
    if group.phase is not Phase.ENDING or not group.gone or group.fault_pending:
        return group, ()
    if not group.wanted:
        return replace(group, phase=Phase.IDLE), (ev.Announce("group.stopped", group.launch, group.end_reason),)
    count = len(group.failures)
    if count > group.policy.attempts:
        return replace(group, phase=Phase.FAILED), (
            ev.Announce("group.failed", group.launch, f"{count} ends within {group.policy.interval:g} s"),
        )
    return replace(group, phase=Phase.BACKOFF), (ev.SetTimer("relaunch", "", group.policy.delay(count)),)


def _timer(group: Group, name: str, launch: str, now: float) -> Step:
    if name == "relaunch" and group.phase is Phase.BACKOFF:
        return _claim(group) if group.wanted else (replace(group, phase=Phase.IDLE), ())
    if name == "claim" and group.phase is Phase.CLAIMING and group.leased:
        return group, (ev.ClaimLaunch(group.generation),)
    if not launch or launch != group.launch:
        return group, ()
    if name == "load" and group.phase in (Phase.SPAWNING, Phase.LOADING):
        return _end(group, now, "load-timeout", f"not loaded after {group.policy.load_deadline:g} s")
    if name == "canary" and group.phase is Phase.CANARY:
        return _end(group, now, "canary-failed", f"no answer within {group.policy.canary_deadline:g} s")
    if name == "recheck" and group.phase is Phase.CANARY:
        return group, (ev.RunCanary(launch),)
    if name == "publish" and group.phase is Phase.PUBLISHING and group.leased:
        if group.reclaim:
            return group, (ev.ClaimGeneration(launch, group.generation),)
        return group, (ev.PublishEndpoint(launch, group.generation),)
    if name == "fault" and group.fault_pending:
        return group, (ev.WriteFault(launch, group.end_reason, group.end_evidence),)
    return group, ()
