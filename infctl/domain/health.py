"""The health of a serving launch in three layers: `step(health, event, now) -> (health, effects)`.

    layer      asks                               bad means                           class of evidence (R6)
    process    /v1/loads answers                  the HTTP event loop is blocked      -
               its stamps move                    the scheduler stands still          progress
    model      /ready, weights, ranks             the engine says so itself           -  (never a reason to kill)
    canary     a few tokens, compared             silent: the data path is blocked    data path
    (told)     rank keys of the other hosts       one went: its daemon, or the host   membership
                                                  wrong: it serves nonsense           -

Kept true: one class takes the launch out of routing and kills nothing; two classes end it, after a last look at the
heartbeat, and so does a second wrong answer; a canary that was shed is no verdict, nor is one that waits behind other
requests; while half of four or more groups look bad, nothing is withdrawn and nothing ends (R6). Each layer asks on
its own interval with its own timeout and thresholds, never twice at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from infctl.domain import health_events as ev
from infctl.domain.causes import Cause, Evidence, Kind, classify
from infctl.domain.health_events import HealthEffect, HealthEvent, Layer, Reason
from infctl.domain.model import Limits
from infctl.domain.progress import Progress
from infctl.domain.restart import chance

CONFIRMING = 2  # wrong answers that end a launch, right ones that clear the first


@dataclass(frozen=True, slots=True)
class LayerPolicy:
    """Seconds. `jitter` is a share of the interval; so many failures turn bad, so many successes turn good."""

    interval: float
    timeout: float
    jitter: float = 0.2
    failures: int = 1
    successes: int = 1


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """`exact`: the engine promises the same tokens whatever else it serves. `room`: requests it runs at once."""

    process: LayerPolicy = LayerPolicy(interval=1.0, timeout=0.5, jitter=0.0, failures=3)
    model: LayerPolicy = LayerPolicy(interval=10.0, timeout=1.0, failures=2)
    canary: LayerPolicy = LayerPolicy(interval=15.0, timeout=4.0, failures=2)
    stall: float = 2.0
    exact: bool = False
    room: int = 1

    def of(self, layer: Layer) -> LayerPolicy:
        return {Layer.PROCESS: self.process, Layer.MODEL: self.model, Layer.CANARY: self.canary}[layer]


def policy_of(limits: Limits, *, exact: bool, room: int) -> HealthPolicy:
    """Everything in measure with the poll and the stall time of the cluster."""
    poll, stall = limits.loads_poll, limits.stall
    default = HealthPolicy()
    return HealthPolicy(
        process=replace(default.process, interval=poll, timeout=limits.probe),
        model=replace(default.model, interval=10.0 * poll, timeout=2.0 * limits.probe),
        canary=replace(default.canary, interval=15.0 * poll, timeout=2.0 * stall),
        stall=stall,
        exact=exact,
        room=room,
    )


@dataclass(frozen=True, slots=True)
class Streak:
    """One layer: its verdict, and what speaks against it. `turn` counts the questions."""

    reason: Reason
    good: bool = True
    failures: int = 0
    successes: int = 0
    why: str = ""
    asking: bool = False
    turn: int = 0

    def failed(self, policy: LayerPolicy, reason: Reason, why: str) -> Streak:
        failures = self.failures + 1
        if failures < policy.failures and self.good:
            return replace(self, failures=failures, successes=0)
        return replace(self, good=False, reason=reason, why=why, failures=failures, successes=0)

    def passed(self, successes_needed: int, reason: Reason) -> Streak:
        successes = self.successes + 1
        if not self.good and successes < successes_needed:
            return replace(self, successes=successes)
        return replace(self, good=True, reason=reason, why="", failures=0, successes=successes)


@dataclass(frozen=True, slots=True)
class Health:
    """One launch. `second`: the other class of evidence, while the heartbeat has the last word. `told`: the doubt that
    was last said, None for none. `busy_at`, `full_at`: when it was last seen with other requests, with no room.
    `answered`: suspicions after which our own question was answered rightly; they count no more. `lost`: hosts whose
    part the store does not have."""

    launch: str
    policy: HealthPolicy = HealthPolicy()
    process: Streak = Streak(Reason.ANSWERS)
    model: Streak = Streak(Reason.SERVES)
    canary: Streak = Streak(Reason.RIGHT)
    progress: Progress = Progress(stall=2.0)
    suspected: tuple[ev.Suspicion, ...] = ()
    lost: tuple[str, ...] = ()
    answered: tuple[ev.Suspicion, ...] = ()
    second: str = ""
    wrong: int = 0
    busy_at: float | None = None
    full_at: float | None = None
    hold: bool = False
    told: Reason | None = None
    over: bool = False


Step = tuple[Health, tuple[HealthEffect, ...]]


def begin(launch: str, policy: HealthPolicy) -> Health:
    return Health(launch, policy, progress=Progress(stall=policy.stall))


def step(health: Health, event: HealthEvent, now: float) -> Step:
    """What is known now and what is to be done. Total: an event that does not fit changes nothing."""
    if health.over:
        return health, ()
    effects: tuple[HealthEffect, ...] = ()
    match event:
        case ev.Began():
            return _ask(health, Layer.PROCESS, *(_wait(health, layer) for layer in (Layer.MODEL, Layer.CANARY)))
        case ev.Due(layer):
            return _ask(health, layer)
        case ev.Polled():
            health, effects = _polled(health, event, now)
        case ev.ModelSeen(problem, why):
            policy = health.policy.model
            seen = health.model.failed(policy, problem, why) if problem else _pass(health, Layer.MODEL, Reason.SERVES)
            health, effects = _answered(replace(health, model=seen), Layer.MODEL)
        case ev.CanaryAnswered():
            health, effects = _canary(health, event, now)
        case ev.CanaryShed():
            health, effects = _answered(health, Layer.CANARY)
        case ev.Unasked(layer):
            health, effects = _answered(health, layer)
        case ev.CanarySilent(why):
            health, effects = _silent(health, why, now)
        case ev.Suspected(by):
            news = replace(health, suspected=by, answered=tuple(s for s in health.answered if s in by))
            if not set(by) <= set(health.suspected):
                # a gateway lost it: look at both ends of the path now
                news, first = _ask(news, Layer.PROCESS)
                news, then = _ask(news, Layer.CANARY)
                effects = (*first, *then)
            health = _confirm(news, _data_path(news), now)
        case ev.HostsSeen(lost):
            news = replace(health, lost=lost)
            if set(lost) - set(health.lost):
                # is it only the host's daemon that is away, or does the engine feel it?
                news, first = _ask(news, Layer.PROCESS)
                news, then = _ask(news, Layer.CANARY)
                effects = (*first, *then)
            health = _confirm(news, _membership(news), now)
    return _judge(health, effects, now)


def _polled(health: Health, event: ev.Polled, now: float) -> Step:
    policy = health.policy.process
    if event.stamps is None:
        process = health.process.failed(policy, Reason.LOOP_SILENT, event.why)
    else:
        process = _pass(health, Layer.PROCESS, Reason.ANSWERS)
    ours = 1 if health.canary.asking else 0
    others = event.running + event.waiting - ours
    full = event.waiting > ours or others >= health.policy.room
    before = health.second
    health = replace(
        health,
        process=process,
        progress=health.progress.polled(event.stamps, now, event.why),
        busy_at=now if others > 0 else health.busy_at,
        full_at=now if full else health.full_at,
        hold=event.hold,
    )
    health, effects = _answered(health, Layer.PROCESS)
    if not health.progress.suspect(now):
        return replace(health, second=""), effects
    if before:
        if health.hold:
            return health, effects
        both = Evidence(bad=frozenset({Kind.PROGRESS, Kind.DATA_PATH}))
        return _end(health, classify(both), f"{health.progress.evidence(now)}; {before}")
    health = _confirm(health, _data_path(health) or _membership(health), now)
    if health.second:
        return health, (*effects, ev.Wait(Layer.PROCESS, 0.0))
    health, asked = _ask(health, Layer.CANARY)
    return health, (*effects, *asked)


def _canary(health: Health, event: ev.CanaryAnswered, now: float) -> Step:
    right = event.agreed >= event.length
    if not right and event.agreed > 0 and not health.policy.exact and _lately(health, health.busy_at, now):
        # kernels that depend on the batch break near ties; nonsense differs from the first token on
        return _answered(health, Layer.CANARY)
    if right:
        needed = CONFIRMING if health.wrong else health.policy.canary.successes
        canary = health.canary.passed(needed, Reason.RIGHT)
        wrong = 0 if canary.good else health.wrong
        return _answered(replace(health, canary=canary, wrong=wrong, answered=health.suspected), Layer.CANARY)
    wrong = health.wrong + 1
    canary = replace(health.canary, good=False, reason=Reason.WRONG, why=event.why, successes=0, failures=wrong)
    health = replace(health, wrong=wrong, canary=canary)
    if wrong >= CONFIRMING and not health.hold:
        seen = Evidence(wrong_answer=True)
        return _end(health, classify(seen), f"{wrong} wrong answers while serving: {event.why}")
    return _answered(health, Layer.CANARY)


def _silent(health: Health, why: str, now: float) -> Step:
    if health.progress.suspect(now):
        health = _confirm(health, f"canary: {why}", now)
        health, effects = _answered(health, Layer.CANARY)
        health, asked = _ask(health, Layer.PROCESS)
        return health, (*effects, *asked)
    if health.canary.reason is not Reason.WRONG and not _lately(health, health.full_at, now):
        canary = health.canary.failed(health.policy.canary, Reason.CANARY_SILENT, why)
        health = replace(health, canary=canary)
        if health.lost and not canary.good and not health.hold:
            both = Evidence(bad=frozenset({Kind.MEMBERSHIP, Kind.DATA_PATH}))
            return _end(health, classify(both), f"{_membership(health)}; canary: {why}")
    return _answered(health, Layer.CANARY)


def _confirm(health: Health, second: str, now: float) -> Health:
    """A second class counts only while the first stands."""
    if not second or health.second or not health.progress.suspect(now):
        return health
    return replace(health, second=second)


def _data_path(health: Health) -> str:
    open_ones = [f"{s.gateway} saw {s.kind}" for s in health.suspected if s not in health.answered]
    return "data path: " + ", ".join(open_ones) if open_ones else ""


def _membership(health: Health) -> str:
    return f"membership: the store has lost the part of {', '.join(health.lost)}" if health.lost else ""


def _lately(health: Health, at: float | None, now: float) -> bool:
    return at is not None and now - at <= 3.0 * health.policy.process.interval


def _pass(health: Health, layer: Layer, reason: Reason) -> Streak:
    return _of(health, layer).passed(health.policy.of(layer).successes, reason)


def _of(health: Health, layer: Layer) -> Streak:
    return {Layer.PROCESS: health.process, Layer.MODEL: health.model, Layer.CANARY: health.canary}[layer]


def _with(health: Health, layer: Layer, streak: Streak) -> Health:
    match layer:
        case Layer.PROCESS:
            return replace(health, process=streak)
        case Layer.MODEL:
            return replace(health, model=streak)
        case Layer.CANARY:
            return replace(health, canary=streak)


def _ask(health: Health, layer: Layer, *more: HealthEffect) -> Step:
    """Ask unless the question is on its way already."""
    streak = _of(health, layer)
    if streak.asking:
        return health, more
    asked = _with(health, layer, replace(streak, asking=True, turn=streak.turn + 1))
    return asked, (ev.Ask(layer, health.policy.of(layer).timeout), *more)


def _answered(health: Health, layer: Layer) -> Step:
    health = _with(health, layer, replace(_of(health, layer), asking=False))
    return health, (_wait(health, layer),)


def _wait(health: Health, layer: Layer) -> ev.Wait:
    """The next question: spread over the fleet, and soon where an answer has to be confirmed."""
    policy, streak = health.policy.of(layer), _of(health, layer)
    if layer is not Layer.PROCESS and not streak.good:
        return ev.Wait(layer, health.policy.process.interval)
    spread = chance(f"{health.launch} {layer} {streak.turn}") - 0.5
    return ev.Wait(layer, policy.interval * (1.0 + policy.jitter * spread))


def _end(health: Health, cause: Cause, evidence: str) -> Step:
    return replace(health, over=True), (ev.End(cause, evidence),)


def doubt(health: Health, now: float) -> tuple[Reason, str] | None:
    """What speaks against new work, the gravest first."""
    if health.wrong:
        return Reason.WRONG, health.canary.why
    if health.progress.suspect(now):
        return Reason.STANDS_STILL, health.progress.why
    if health.lost:
        return Reason.HOST_LOST, _membership(health)
    for streak in (health.model, health.canary, health.process):
        if not streak.good:
            return streak.reason, streak.why
    return None


def bad(health: Health, now: float) -> bool:
    """Counts when it is asked whether half of the groups look bad at once."""
    return doubt(health, now) is not None


def _judge(health: Health, effects: tuple[HealthEffect, ...], now: float) -> Step:
    """Say what has changed for routing."""
    if health.over:
        return health, effects
    found = None if health.hold else doubt(health, now)
    reason = found[0] if found else None
    if reason is health.told:
        return health, effects
    said: HealthEffect = ev.Doubt(*found) if found else ev.Trust()
    return replace(health, told=reason), (*effects, said)


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition as the machine sees it; `holds` is None when it is not known."""

    type: str
    holds: bool | None
    reason: str
    message: str = ""


def findings(health: Health, now: float) -> tuple[Finding, ...]:
    """Liveness and readiness apart, and what they stand on. Texts change only when a verdict does."""
    still = health.progress.suspect(now)
    found = None if health.hold else doubt(health, now)
    if found:
        ready = Finding("Ready", False, *found)
    elif doubt(health, now):
        ready = Finding("Ready", True, Reason.HELD, "half of the groups look bad at once: what was routable stays so")
    else:
        ready = Finding("Ready", True, Reason.SERVES)
    return (
        Finding("Live", health.process.good, health.process.reason, health.process.why),
        Finding("Progressing", not still, Reason.STANDS_STILL if still else Reason.MOVES),
        Finding("ModelServed", health.model.good, health.model.reason, health.model.why),
        Finding("AnswersRight", health.canary.good, health.canary.reason, health.canary.why),
        ready,
    )
