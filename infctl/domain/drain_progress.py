"""What a drain is doing, for people: what it waits for, and what happens next at the latest."""

from __future__ import annotations

from dataclasses import dataclass

from infctl.domain.drain import BEFORE_STOP, Drain, Stage


@dataclass(frozen=True, slots=True)
class Progress:
    """`next_at` and `oldest_at` are on the drain's clock; 0 where there is none."""

    stage: Stage
    streams: int
    tokens: int
    oldest_at: float
    waits_for: str
    next: str
    next_at: float


def progress(drain: Drain) -> Progress:
    gateways = drain.gateways or ()
    ages = [g.oldest_at for g in gateways if g.streams]
    name, at = _next(drain)
    return Progress(
        stage=drain.stage,
        streams=0 if drain.stage is Stage.OVER else drain.streams,
        tokens=sum(g.tokens for g in gateways),
        oldest_at=min(ages, default=0.0),
        waits_for=_waits_for(drain),
        next=name,
        next_at=at,
    )


def _waits_for(drain: Drain) -> str:
    match drain.stage:
        case Stage.ASKING:
            return f"{drain.rule}: {drain.blocked}" if drain.blocked else "permission"
        case Stage.WITHDRAWING:
            return "the endpoint to say draining"
        case Stage.SEEING:
            behind = sorted(g.gateway for g in drain.gateways or () if g.revision < drain.revision)
            return f"gateways to see it: {', '.join(behind[:5])}" if behind else "gateways to see it"
        case Stage.FINISHING:
            holders = sorted(g.gateway for g in drain.gateways or () if g.streams)
            if holders:
                return f"streams of {', '.join(holders[:5])}"
            return "the engine's own count" if not drain.requests else "requests on the engine that no gateway knows"
        case Stage.RETURNING:
            return "the endpoint to say ready"
        case Stage.STOPPING:
            return "its processes to end"
        case Stage.RELAUNCHING:
            return "its new launch to serve"
    return ""


def _next(drain: Drain) -> tuple[str, float]:
    if drain.stage is Stage.STOPPING:
        return "SIGKILL", drain.began + drain.instants.kill
    if drain.stage in BEFORE_STOP:
        if drain.stage is Stage.ASKING:
            return "gives up", drain.began + drain.instants.stop
        return "SIGTERM", drain.began + drain.instants.stop
    return "", 0.0
