"""The planned end of one group's launch: `step(state, event, now) -> (state, effects)`.

    ASKING ──▶ WITHDRAWING ──▶ SEEING ──▶ FINISHING ──▶ STOPPING ──▶ (RELAUNCHING ──▶) OVER
      │             │             │            │           ▲
      │             └─────────────┴── undrain ─┴─▶ RETURNING ──▶ OVER
      └── undrain, or the stop instant: nothing was touched ──▶ OVER

Kept true, whatever order events come in: nothing is stopped before no gateway can send new work there and the engine
has none, or the stop instant came (R4); what could not be withdrawn by then is not stopped either (R5); the one
deadline is total, whatever was waited for; after the stop there is no way back, before it always; a permission taken is
given back once; OVER never leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from infctl.domain import drain_events as ev
from infctl.domain.drain_events import DrainEffect, DrainEvent, GatewayLoad

STORE_RETRY = 0.5
RECOUNT = 1.0  # an idle scheduler rewrites its counts about once a second
ASK_AGAIN = 5.0  # what a rule looks at is watched; this is for a node lease that ran out, which is not


class Stage(StrEnum):
    ASKING = "asking"
    WITHDRAWING = "withdrawing"
    SEEING = "seeing"
    FINISHING = "finishing"
    RETURNING = "returning"
    STOPPING = "stopping"
    RELAUNCHING = "relaunching"
    OVER = "over"


class Result(StrEnum):
    DRAINED = "drained"
    RESTARTED = "restarted"
    UNDRAINED = "undrained"
    FAILED = "failed"


BEFORE_STOP = frozenset({Stage.ASKING, Stage.WITHDRAWING, Stage.SEEING, Stage.FINISHING})
_COUNTED = frozenset({Stage.SEEING, Stage.FINISHING})


@dataclass(frozen=True, slots=True)
class Instants:
    """Seconds from the start of a drain (R4): hand over, then SIGTERM, then SIGKILL, which is the deadline."""

    hand_over: float
    stop: float
    kill: float

    @staticmethod
    def of(deadline: float, hand_over: float = 120.0, grace: float = 30.0) -> Instants:
        """For a total of `deadline`; where it is short the grace and the hand-over shrink with it."""
        deadline = max(0.0, deadline)
        stop = deadline - min(grace, deadline / 2)
        return Instants(min(hand_over, stop / 2), stop, deadline)


@dataclass(frozen=True, slots=True)
class Drain:
    """One drain. Times are on the clock of `now`; `began` may be long ago when it is taken up again.

    `cut` counts the streams that the stop took their worker from. `relaunch` bounds the start after a restart.
    `gave_up`: it goes back by itself.
    """

    group: str
    began: float
    instants: Instants
    restart: bool = False
    at_once: bool = False
    relaunch: float = 960.0
    stage: Stage = Stage.ASKING
    launch: str = ""
    permitted: bool = False
    blocked: str = ""
    rule: str = ""
    revision: int = 0
    gateways: tuple[GatewayLoad, ...] | None = None
    requests: int | None = None
    idle_stamps: tuple[float, ...] = ()
    handed_over: bool = False
    gave_up: bool = False
    cut: int = 0
    result: Result | None = None
    why: str = ""

    @property
    def streams(self) -> int:
        """What is left, by the one who knows of more: gateways tell every two seconds, the engine's count lags."""
        return max(sum(g.streams for g in self.gateways or ()), self.requests or 0)


Step = tuple[Drain, tuple[DrainEffect, ...]]


def step(drain: Drain, event: DrainEvent, now: float) -> Step:
    """What the drain becomes and what is to be done. Total: an event that does not fit changes nothing."""
    if drain.stage is Stage.OVER:
        # a late permission is nobody's any more
        return drain, (ev.GiveBackPermission(),) if isinstance(event, ev.Permitted) else ()
    match event:
        case ev.Began(launch, serving, ending) if drain.stage is Stage.ASKING and not drain.launch:
            return _begin(replace(drain, launch=launch), serving, ending, now)
        case ev.Permitted() if drain.stage is Stage.ASKING:
            return _withdraw(replace(drain, permitted=True, blocked="", rule=""))
        case ev.Permitted() if not drain.permitted:
            return drain, (ev.GiveBackPermission(),)
        case ev.Blocked(rule, why) if drain.stage is Stage.ASKING:
            return replace(drain, blocked=why, rule=rule), (ev.SetTimer("ask", ASK_AGAIN),)
        case ev.RulesChanged() if drain.stage is Stage.ASKING and drain.blocked:
            return drain, (ev.AskPermission(),)
        case ev.Withdrawn(revision) if drain.stage is Stage.WITHDRAWING:
            seeing = replace(drain, stage=Stage.SEEING, revision=revision)
            return _look(seeing, (ev.CountEngine(drain.launch),), now)
        case ev.GatewaysTold(gateways):
            return _look(replace(drain, gateways=gateways), (), now)
        case ev.EngineCounted() if drain.stage in _COUNTED:
            return _counted(drain, event, now)
        case ev.StoreFailed(what):
            return drain, (ev.SetTimer(what, STORE_RETRY),)
        case ev.UndrainAsked(by) if drain.stage is Stage.ASKING:
            return _finish(drain, Result.UNDRAINED, f"by {by}, before anything was touched")
        case ev.UndrainAsked(by) if drain.stage in BEFORE_STOP:
            return replace(drain, stage=Stage.RETURNING, why=f"by {by}"), (ev.Return(drain.launch),)
        case ev.Returned() if drain.stage is Stage.RETURNING:
            return _finish(drain, Result.FAILED if drain.gave_up else Result.UNDRAINED, drain.why)
        case ev.LaunchEnded(why):
            return _ended(drain, why)
        case ev.GroupReady(launch) if drain.stage is Stage.RELAUNCHING and launch != drain.launch:
            return _finish(drain, Result.RESTARTED, f"launch {launch}")
        case ev.GroupFailed(why) if drain.stage is Stage.RELAUNCHING:
            return _finish(drain, Result.FAILED, f"it does not start again: {why}")
        case ev.TimerFired(name):
            return _timer(drain, name, now)
    return drain, ()


def _begin(drain: Drain, serving: bool, ending: bool, now: float) -> Step:
    timers = (
        ev.HoldGroup(),
        ev.SetTimer("hand-over", max(0.0, drain.began + drain.instants.hand_over - now)),
        ev.SetTimer("stop", max(0.0, drain.began + drain.instants.stop - now)),
    )
    if not drain.launch:
        ended, effects = _ended(drain, "nothing ran")
        return ended, (ev.HoldGroup(), *effects)
    if ending:
        return replace(drain, stage=Stage.STOPPING), timers[:1]
    if drain.at_once or not serving:
        stopping, effects = _stop(drain, now)
        return stopping, (ev.HoldGroup(), *effects)
    return drain, (*timers, ev.AskPermission())


def _withdraw(drain: Drain) -> Step:
    return replace(drain, stage=Stage.WITHDRAWING), (ev.Withdraw(drain.launch),)


def _look(drain: Drain, also: tuple[DrainEffect, ...], now: float) -> Step:
    """Every live gateway has seen that the group drains: from then on its streams only become fewer."""
    known = drain.gateways is not None and all(g.revision >= drain.revision for g in drain.gateways)
    if drain.stage is Stage.SEEING and known:
        return replace(drain, stage=Stage.FINISHING, idle_stamps=()), also
    if drain.stage is Stage.FINISHING and any(g.streams for g in drain.gateways or ()):
        return replace(drain, idle_stamps=()), also
    return drain, also


def _counted(drain: Drain, event: ev.EngineCounted, now: float) -> Step:
    counted = replace(drain, requests=event.requests)
    again = (ev.SetTimer("count", RECOUNT),)
    busy = event.requests != 0 or not event.stamps or any(g.streams for g in drain.gateways or ())
    if drain.stage is not Stage.FINISHING or busy:
        return replace(counted, idle_stamps=()), again
    if not drain.idle_stamps or len(drain.idle_stamps) != len(event.stamps):
        return replace(counted, idle_stamps=event.stamps), again
    if all(a != b for a, b in zip(drain.idle_stamps, event.stamps, strict=True)):
        # two counts of nothing, written by every scheduler at two different moments
        return _stop(counted, now)
    return counted, again


def _stop(drain: Drain, now: float) -> Step:
    """From here on there is no way back."""
    grace = drain.instants.kill - drain.instants.stop
    left = drain.began + drain.instants.kill - now
    stopping = replace(drain, stage=Stage.STOPPING, cut=drain.streams)
    return stopping, (ev.StopLaunch(drain.launch, 0.0 if drain.at_once else max(0.0, min(grace, left))),)


def _ended(drain: Drain, why: str) -> Step:
    if drain.stage is Stage.RELAUNCHING:
        return drain, ()
    early = drain.stage in (*BEFORE_STOP, Stage.RETURNING) and drain.launch
    note = f"its launch ended by itself: {why}" if early else ("" if drain.launch else why)
    if drain.stage is Stage.RETURNING:
        return _finish(drain, Result.FAILED if drain.gave_up else Result.UNDRAINED, f"{drain.why}; {note}")
    cut = drain.streams if early else drain.cut
    if drain.restart:
        # the permission is kept until the group serves again
        again = replace(drain, stage=Stage.RELAUNCHING, cut=cut, why=note)
        return again, (ev.Relaunch(), ev.SetTimer("relaunch", drain.relaunch))
    return _finish(replace(drain, cut=cut), Result.DRAINED, note)


def _finish(drain: Drain, result: Result, why: str) -> Step:
    over = replace(drain, stage=Stage.OVER, result=result, why=why, permitted=False)
    return over, (*((ev.GiveBackPermission(),) if drain.permitted else ()), ev.Finish())


def _timer(drain: Drain, name: str, now: float) -> Step:
    match name, drain.stage:
        case "ask" | "AskPermission", Stage.ASKING:
            return drain, (ev.AskPermission(),)
        case "Withdraw", Stage.WITHDRAWING:
            return drain, (ev.Withdraw(drain.launch),)
        case "Return", Stage.RETURNING:
            return drain, (ev.Return(drain.launch),)
        case "count", Stage.SEEING | Stage.FINISHING:
            return drain, (ev.CountEngine(drain.launch),)
        case "hand-over", stage if stage in BEFORE_STOP and not drain.handed_over:
            return replace(drain, handed_over=True), (ev.HandOver(drain.launch),)
        case "stop", Stage.ASKING:
            return _finish(drain, Result.FAILED, f"{drain.rule or 'Store'}: {drain.blocked or 'no answer in time'}")
        case "stop", Stage.WITHDRAWING:
            why = "Store: the endpoint could not be withdrawn in time"
            return replace(drain, stage=Stage.RETURNING, gave_up=True, why=why), (ev.Return(drain.launch),)
        case "stop", Stage.SEEING | Stage.FINISHING:
            return _stop(drain, now)
        case "relaunch", Stage.RELAUNCHING:
            return _finish(drain, Result.FAILED, f"does not serve {drain.relaunch:g} s after its stop")
    return drain, ()
