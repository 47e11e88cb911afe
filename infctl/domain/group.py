"""The life of a worker group as its owner's daemon drives it: `step(state, event, now) -> (state, effects)`.

    IDLE ──spec──▶ CLAIMING ──claimed──▶ SPAWNING ──▶ LOADING ──▶ CANARY ──▶ PUBLISHING ──▶ READY
                      ▲                     │            │          │            │            │
                      │                     └────────────┴──── death, refusal ───┴────────────┤
                      └── timer ── BACKOFF ◀── all gone ── ENDING ◀───────────────────────────┘
                                                 │ not wanted any more
                                                 └──▶ IDLE            too many tries ──▶ FAILED

Kept true, whatever order events come in: generation never falls; an event of another launch changes nothing; an
endpoint is published only after canary and with every rank alive; a death makes the kill and the fault notice in
the same step, so neither waits for the other; a store that does not answer kills nothing (R5); a launch that is
doubted keeps its endpoint, which says so, and its streams.
"""

from __future__ import annotations

from dataclasses import replace

from infctl.domain import group_events as ev
from infctl.domain.causes import Cause
from infctl.domain.group_events import GroupEffect, GroupEvent
from infctl.domain.group_state import ALIVE, Group, Phase
from infctl.domain.health_events import MAY_BE_BUSY
from infctl.domain.model import EndpointState
from infctl.domain.restart import Failures, GiveUp, RestartPolicy, verdict, what_clears

__all__ = ["ALIVE", "STORE_RETRY", "Group", "Phase", "RestartPolicy", "step"]

STORE_RETRY = 0.5

Step = tuple[Group, tuple[GroupEffect, ...]]


def step(group: Group, event: GroupEvent, now: float) -> Step:
    """What the group becomes and what is to be done. Total: an event that does not fit changes nothing."""
    match event:
        case ev.SpecApplied(digest):
            return _spec(group, digest)
        case ev.SpecDeleted(reason):
            return _unwanted(group, reason)
        case ev.GroupHeld(reason):
            return (replace(group, wanted=""), ()) if group.phase in ALIVE else _unwanted(group, reason)
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
                ready_at=None,
                doubt="",
                doubt_why="",
                published="",
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
        case ev.StoreFailed("ClaimLaunch", _) | ev.ClaimDeferred() if group.phase is Phase.CLAIMING:
            return group, (ev.SetTimer("claim", "", STORE_RETRY),)
    if isinstance(event, ev.ClaimDeferred) or event.launch != group.launch or not group.launch:
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
            return passed, _publish(passed)
        case ev.EndpointPublished(_, generation, state) if _publishable(group) and generation == group.generation:
            return _published(group, state, now)
        case ev.HealthDoubted(_, reason, why) if _publishable(group) and (reason, why) != (
            group.doubt,
            group.doubt_why,
        ):
            doubted = replace(group, doubt=reason, doubt_why=why)
            return doubted, (*_republish(doubted), ev.Announce("group.doubted", launch, f"{reason}: {why}"))
        case ev.HealthTrusted() if _publishable(group) and group.doubt:
            trusted = replace(group, doubt="", doubt_why="")
            return trusted, (*_republish(trusted), ev.Announce("group.trusted", launch, f"no more {group.doubt}"))
        case ev.GenerationClaimed(_, generation) if _publishable(group) and generation > group.generation:
            # also when ready: the durable generation is a floor below which our endpoint does not count
            raised = replace(group, phase=Phase.PUBLISHING, generation=generation, reclaim=False)
            return raised, _publish(raised)
        case ev.ClaimRefused(_, why) if group.phase in ALIVE:
            return _end(group, now, Cause.REFUSED, why)
        case ev.ClaimRefused() if group.fault_pending:
            # the store names another launch, or has the notice: there is nothing of ours left to take away
            return _settle(replace(group, fault_pending=False), now)
        case ev.StoreFailed("PublishEndpoint" | "ClaimGeneration", _) if _publishable(group):
            return group, (ev.SetTimer("publish", launch, STORE_RETRY),)
        case ev.StoreFailed("RunCanary", _) if group.phase is Phase.CANARY:
            # the engine answered, the store could not say what is right: neither the engine's fault nor its end (R5)
            return group, (
                ev.SetTimer("recheck", launch, STORE_RETRY),
                ev.SetTimer("canary", launch, group.policy.canary_deadline),
            )
        case ev.StoreFailed("WriteFault", _) if group.fault_pending:
            return group, (ev.SetTimer("fault", launch, STORE_RETRY),)
        case ev.SpawnFailed(_, why, cause) if group.phase in ALIVE:
            return _end(group, now, cause, why)
        case ev.CanaryFailed(_, why) if group.phase is Phase.CANARY or _publishable(group):
            return _end(group, now, Cause.CANARY_FAILED, why)
        case ev.ProcessExited(_, pid, title, status, cause) if group.phase in ALIVE:
            evidence = f"{title} (pid {pid}) ended" + (f": {status}" if status else "")
            return _end(group, now, cause, evidence)
        case ev.HangConfirmed(_, evidence) if group.phase in ALIVE:
            return _end(group, now, Cause.HANG, evidence)
        case ev.LaunchDrained(_, reason, grace) if group.phase in ALIVE:
            return _planned_end(group, reason, grace)
        case ev.FaultSeen(_, reason) if group.phase in ALIVE:
            ended, effects = _end(group, now, reason, "fault notice by another member")
            # the notice is there already: only the kill is ours
            return replace(ended, fault_pending=False), tuple(e for e in effects if not isinstance(e, ev.WriteFault))
        case ev.FaultWritten() if group.fault_pending:
            return _settle(replace(group, fault_pending=False), now)
        case ev.LaunchGone() if group.phase is Phase.ENDING and not group.gone:
            return _settle(replace(group, gone=True), now)
        case ev.LaunchGone() if group.phase in ALIVE:
            ended, effects = _end(group, now, Cause.CRASH, "every process is gone")
            return replace(ended, gone=True), effects
    return group, ()


def _spec(group: Group, digest: str) -> Step:
    wanted = replace(group, wanted=digest)
    if digest and group.phase in (Phase.IDLE, Phase.FAILED) and (digest != group.wanted or group.phase is Phase.IDLE):
        return _claim(replace(wanted, failures=(), vain=(), gave_up=""))
    return wanted, ()


def _unwanted(group: Group, reason: str) -> Step:
    unwanted = replace(group, wanted="")
    if group.phase in ALIVE:
        return _planned_end(group, reason, group.policy.kill_deadline)
    if group.phase is Phase.ENDING:
        return unwanted, ()
    return replace(unwanted, phase=Phase.IDLE), ()


def _planned_end(group: Group, reason: str, grace: float) -> Step:
    """SIGTERM and notice in one step, and nobody's failure."""
    ending = replace(
        group,
        wanted="",
        phase=Phase.ENDING,
        end_reason=reason,
        end_evidence="planned",
        fault_pending=True,
        gone=False,
    )
    return ending, (
        ev.StopLaunch(group.launch, grace),
        ev.WriteFault(group.launch, reason, "planned"),
        ev.Announce("group.stopping", group.launch, reason),
    )


def _found(group: Group, found: ev.LaunchFound, now: float) -> Step:
    """A launch that cannot go on is ended before anything new starts. That the daemon was away is nobody's failure."""
    failures = Failures(group.failures, group.vain).with_end(group.policy, found.reason, now, 0.0)
    ending = replace(
        group,
        launch=found.launch,
        generation=max(group.generation, found.generation),
        phase=Phase.ENDING,
        fault_pending=True,
        gone=False,
        end_reason=found.reason,
        end_evidence=found.evidence,
        failures=failures.at,
        vain=failures.vain,
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
            return again, _publish(again)
        # the old lease took the endpoint with it, if it was there; the launch itself never stopped (R7)
        return replace(again, reclaim=True), (ev.ClaimGeneration(group.launch, group.generation),)
    return held, ()


def _publishable(group: Group) -> bool:
    return group.phase in (Phase.PUBLISHING, Phase.READY)


def _standing(group: Group) -> str:
    """The state that the endpoint is to have."""
    if not group.doubt:
        return EndpointState.READY
    return EndpointState.SUSPECT if group.doubt in MAY_BE_BUSY else EndpointState.UNFIT


def _publish(group: Group) -> tuple[GroupEffect, ...]:
    return (ev.PublishEndpoint(group.launch, group.generation, _standing(group)),) if group.leased else ()


def _republish(group: Group) -> tuple[GroupEffect, ...]:
    """The endpoint stands, and its state is not the one it is to have. Without a lease there is none that stands."""
    stands = group.phase is Phase.READY and group.published != _standing(group)
    return _publish(group) if stands else ()


def _published(group: Group, state: str, now: float) -> Step:
    ready_at = now if group.ready_at is None else group.ready_at
    ready = replace(group, phase=Phase.READY, published=state, ready_at=ready_at)
    if ready == group:
        return group, ()
    said = ev.Announce("endpoint.published", group.launch, f"generation {group.generation}, {state}")
    return ready, (said, *_republish(ready))


def _superseded(group: Group, launch: str, generation: int, now: float) -> Step:
    """A claim of ours that nobody waits for any more: the store now registers a launch that will never run."""
    raised = replace(group, generation=generation)
    if group.phase in ALIVE and launch != group.launch:
        return _end(raised, now, Cause.SUPERSEDED, f"the store registers {launch}")
    return raised, ()


def _claim(group: Group) -> Step:
    claiming = replace(group, phase=Phase.CLAIMING)
    return claiming, (ev.ClaimLaunch(group.generation),) if group.leased else ()


def _end(group: Group, now: float, reason: str, evidence: str) -> Step:
    """The launch is over: kill and notice in one step."""
    served = now - group.ready_at if group.ready_at is not None else 0.0
    failures = Failures(group.failures, group.vain).with_end(group.policy, reason, now, served)
    ending = replace(
        group,
        phase=Phase.ENDING,
        fault_pending=True,
        gone=False,
        end_reason=reason,
        end_evidence=evidence,
        failures=failures.at,
        vain=failures.vain,
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
    match verdict(group.policy, Failures(group.failures, group.vain), group.launch):
        case GiveUp(why):
            gave_up = f"given up after {why}; {what_clears(group.name)}"
            last = f"{group.end_reason}: {group.end_evidence}"
            return replace(group, phase=Phase.FAILED, gave_up=gave_up), (
                ev.Announce("group.failed", group.launch, f"{gave_up}; the last was {last}"),
            )
        case again:
            return replace(group, phase=Phase.BACKOFF), (ev.SetTimer("relaunch", "", again.delay),)


def _timer(group: Group, name: str, launch: str, now: float) -> Step:
    if name == "relaunch" and group.phase is Phase.BACKOFF:
        return _claim(group) if group.wanted else (replace(group, phase=Phase.IDLE), ())
    if name == "claim" and group.phase is Phase.CLAIMING and group.leased:
        return group, (ev.ClaimLaunch(group.generation),)
    if not launch or launch != group.launch:
        return group, ()
    if name == "load" and group.phase in (Phase.SPAWNING, Phase.LOADING):
        return _end(group, now, Cause.LOAD_TIMEOUT, f"not loaded after {group.policy.load_deadline:g} s")
    if name == "canary" and group.phase is Phase.CANARY:
        return _end(group, now, Cause.CANARY_FAILED, f"no answer within {group.policy.canary_deadline:g} s")
    if name == "recheck" and group.phase is Phase.CANARY:
        return group, (ev.RunCanary(launch),)
    if name == "publish" and group.phase is Phase.PUBLISHING and group.leased:
        if group.reclaim:
            return group, (ev.ClaimGeneration(launch, group.generation),)
        return group, _publish(group)
    if name == "publish":
        return group, _republish(group)
    if name == "fault" and group.fault_pending:
        return group, (ev.WriteFault(launch, group.end_reason, group.end_evidence),)
    return group, ()
