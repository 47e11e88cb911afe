"""The life of one request in the gateway that owns it: `step(state, event, now) -> (state, effects)`.

    ADMITTED ─▶ PREFILLING ─▶ (TRANSFERRING ─▶) DECODING ─▶ COMPLETED
        any running state ─▶ MIGRATING ─▶ PREFILLING      a worker was lost; the attempt rises
                          ─▶ CANCELLING ─▶ CANCELLED      a cancel beats a migration in flight
                          ─▶ FAILED                       honest end with a typed error
    DETACHED stands beside the running states: no reader is left, the grace runs.

Kept true, whatever order events come in (R3): term and attempt never fall; at most one attempt is live; a frame of
another epoch or launch is dropped; tokens are delivered once each and in order; a terminal state never leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from infctl.domain import request_events as ev
from infctl.domain.ids import Epoch
from infctl.domain.request_events import Break, ErrorType, RequestEffect, RequestEvent

RETRY_FIRST = 0.05
RETRY_MOST = 1.0
ABORT_WAIT = 2.0
# a launch that failed us but lives is asked again after this long; a dead one has left the routing table by then
REPRIEVE = 5.0


class Phase(StrEnum):
    ADMITTED = "ADMITTED"
    PREFILLING = "PREFILLING"
    TRANSFERRING = "TRANSFERRING"
    DECODING = "DECODING"
    MIGRATING = "MIGRATING"
    CANCELLING = "CANCELLING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"


TERMINAL = frozenset({Phase.COMPLETED, Phase.CANCELLED, Phase.FAILED})
ON_WORKER = frozenset({Phase.PREFILLING, Phase.TRANSFERRING, Phase.DECODING})
RUNNING = ON_WORKER | {Phase.ADMITTED, Phase.MIGRATING}

# breaks that say something about the request, not about the worker
_NOT_THE_WORKER = frozenset({Break.ERROR_FRAME})


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `committed` counts the tokens that belong to the stream for ever.

    `launch` names the live attempt's worker, "" while there is none; `lost` says why the last one went. `excluded` are
    launches that failed since the last token. `patience` bounds the search for a replacement (seconds); `waiting`: no
    dispatch is under way, the retry timer runs. `grace_until` is when a stream without readers is cancelled.
    """

    id: str
    deadline: float
    replayable: bool = True
    migration_limit: int = 3
    grace: float = 0.0
    patience: float = 30.0
    phase: Phase = Phase.ADMITTED
    epoch: Epoch = Epoch(1, 0)
    launch: str = ""
    committed: int = 0
    migrations: int = 0
    excluded: tuple[str, ...] = ()
    lost: str = ""
    readers: int = 1
    detached: bool = False
    searching_since: float = 0.0
    retries: int = 0
    waiting: bool = False
    shed: bool = False
    grace_until: float = 0.0
    owned: bool = True


Step = tuple[Request, tuple[RequestEffect, ...]]


def step(request: Request, event: RequestEvent, now: float) -> Step:
    """What the request becomes and what is to be done. Total: an event that does not fit changes nothing."""
    if type(event) is ev.TokensArrived:
        return _tokens(request, event, now)
    match event:
        case ev.TermSeen(term):
            return _term(request, term)
        case ev.ReaderJoined():
            if request.phase in TERMINAL:
                return request, ()
            joined = replace(request, readers=request.readers + 1, detached=False)
            return joined, (ev.Record(),) if request.detached else ()
        case ev.WorkerChosen(epoch, launch) if not _searching(request, epoch):
            if _live(request, epoch, launch):
                return request, ()
            # sent before a cancel, a deadline or another owner was known: nobody waits for it any more
            return request, (ev.AbortAttempt(epoch, launch),)
    if request.phase in TERMINAL:
        return request, ()
    match event:
        case ev.Started() if request.phase is Phase.ADMITTED and request.epoch.attempt == 0:
            epoch = Epoch(request.epoch.term, 1)
            started = replace(request, epoch=epoch, searching_since=now)
            return started, (
                ev.SetTimer("deadline", epoch, max(0.0, request.deadline - now)),
                ev.Dispatch(epoch, request.committed, (), recovering=False),
            )
        case ev.WorkerChosen(_, launch, _, split):
            if launch in request.excluded:
                chosen = replace(request, phase=Phase.PREFILLING, launch=launch)
                return _migrate(chosen, Break.FAULT, "the worker was lost while it was chosen", now)
            phase = Phase.TRANSFERRING if split else Phase.PREFILLING
            return replace(request, phase=phase, launch=launch), (ev.Record(),)
        case ev.TransferDone(epoch, launch) if request.phase is Phase.TRANSFERRING and _live(request, epoch, launch):
            return replace(request, phase=Phase.PREFILLING), ()
        case ev.NothingLeft(epoch, reason) if _searching(request, epoch):
            return _complete(request, reason)
        case ev.NoWorker(epoch, error, message) if _searching(request, epoch):
            return _no_worker(request, error, message, now)
        case ev.AttemptFinished(epoch, launch, reason, total) if _live(request, epoch, launch):
            if total != request.committed:
                return _migrate(request, Break.GAP, f"finished at {total}, committed {request.committed}", now)
            return _complete(request, reason)
        case ev.AttemptBroken(epoch, launch, kind, why) if _live(request, epoch, launch):
            if kind in _NOT_THE_WORKER:
                return _fail(request, ErrorType.INVALID_REQUEST, why)
            return _migrate(request, kind, why, now)
        case ev.LaunchLost(launch, kind, why) if request.phase in ON_WORKER and launch == request.launch:
            return _migrate(request, kind, why, now)
        case ev.LaunchLost(launch) if request.phase in RUNNING and not request.launch:
            if launch in request.excluded:
                return request, ()
            return replace(request, excluded=(launch, *request.excluded)), ()
        case ev.ReaderLeft():
            return _reader_left(request, now)
        case ev.CancelRequested(by):
            return _cancel(request, by)
        case ev.AbortSettled(epoch) if request.phase is Phase.CANCELLING and epoch == request.epoch:
            return replace(request, phase=Phase.CANCELLED, launch=""), (ev.Record(),)
        case ev.TimerFired(name, epoch):
            return _timer(request, name, epoch, now)
    return request, ()


def _live(request: Request, epoch: Epoch, launch: str) -> bool:
    return request.phase in ON_WORKER and epoch == request.epoch and launch == request.launch


def _searching(request: Request, epoch: Epoch) -> bool:
    """A dispatch of this epoch is under way."""
    searching = request.phase in (Phase.ADMITTED, Phase.MIGRATING) and epoch.attempt > 0
    return searching and epoch == request.epoch and not request.waiting


def _tokens(request: Request, event: ev.TokensArrived, now: float) -> Step:
    """The frame path. Runs for every token: no allocation beyond the new state and one effect."""
    if event.epoch != request.epoch or event.launch != request.launch or request.phase not in ON_WORKER:
        return request, (ev.Drop("stale", event.count),)
    committed = request.committed
    skip = committed - event.start
    if skip < 0:
        return _migrate(request, Break.GAP, f"token {event.start} came after {committed}", now)
    fresh = event.count - skip
    if fresh <= 0:
        return request, (ev.Drop("known", event.count),) if event.count else ()
    moved = replace(request, phase=Phase.DECODING, committed=committed + fresh, excluded=(), retries=0)
    if request.phase is not Phase.DECODING:
        return moved, (ev.Deliver(skip, fresh), *_first_token(request))
    return moved, (ev.Deliver(skip, fresh),)


def _first_token(request: Request) -> tuple[RequestEffect, ...]:
    """Once for each attempt that speaks: the store learns of it, and people of a stream that goes on."""
    if not request.migrations:
        return (ev.Record(),)
    message = f"attempt {request.epoch.attempt} goes on at token {request.committed}"
    return ev.Record(), ev.Announce("stream.resumed", request.launch, message)


def _migrate(request: Request, kind: Break, why: str, now: float) -> Step:
    lost = request.launch
    if request.committed and not request.replayable:
        failed, effects = _fail(request, ErrorType.NOT_RECOVERABLE, f"the worker was lost ({kind}): {why}")
        return failed, effects
    if request.migrations >= request.migration_limit:
        return _fail(request, ErrorType.UNAVAILABLE, f"moved {request.migrations} times, then {kind}: {why}")
    epoch = Epoch(request.epoch.term, request.epoch.attempt + 1)
    excluded = (*(e for e in request.excluded if e != lost), lost)
    moving = replace(
        request,
        phase=Phase.MIGRATING,
        epoch=epoch,
        launch="",
        migrations=request.migrations + 1,
        lost=f"{kind}: {why}",
        excluded=excluded,
        searching_since=now,
        retries=0,
        waiting=False,
        shed=kind is Break.OVERLOADED and not request.committed,
    )
    return moving, (
        ev.Dispatch(epoch, request.committed, excluded, recovering=True),
        ev.AbortAttempt(request.epoch, lost),
        ev.Record(),
        ev.Announce("stream.migrating", lost, f"{kind} at token {request.committed}: {why}"),
    )


def _no_worker(request: Request, error: ErrorType, message: str, now: float) -> Step:
    if request.shed:
        # nothing was said yet and every worker is full: an honest no now beats a hope for half a minute (R11)
        return _fail(request, ErrorType.OVERLOADED, "every ready group is full")
    if request.phase is Phase.ADMITTED:
        return _fail(request, error, message)
    if now - request.searching_since >= request.patience:
        why = f"{request.lost}; no replacement within {request.patience:g} s: {message}"
        return _fail(request, ErrorType.UNAVAILABLE, why)
    delay = min(RETRY_MOST, RETRY_FIRST * 2.0 ** min(request.retries, 10))
    waiting = replace(request, retries=request.retries + 1, waiting=True)
    return waiting, (ev.SetTimer("retry", request.epoch, delay),)


def _complete(request: Request, reason: str) -> Step:
    return replace(request, phase=Phase.COMPLETED, launch=""), (ev.Finish(reason), ev.Record())


def _fail(request: Request, error: ErrorType, message: str) -> Step:
    effects: tuple[RequestEffect, ...] = (
        ev.Fail(error, message),
        ev.Record(),
        ev.Announce("stream.failed", request.launch, f"{error}: {message}"),
    )
    if request.launch:
        effects = (ev.AbortAttempt(request.epoch, request.launch), *effects)
    return replace(request, phase=Phase.FAILED, launch=""), effects


def _cancel(request: Request, by: str) -> Step:
    if request.phase is Phase.CANCELLING:
        return request, ()
    epoch = Epoch(request.epoch.term, request.epoch.attempt + 1)
    cancelling = replace(request, phase=Phase.CANCELLING, epoch=epoch, launch="")
    effects: tuple[RequestEffect, ...] = (
        ev.Fail(ErrorType.CANCELLED, f"cancelled by {by}"),
        ev.Record(),
        ev.SetTimer("abort", epoch, ABORT_WAIT),
        ev.Announce("stream.cancelled", request.launch, f"by {by} at token {request.committed}"),
    )
    if request.launch:
        effects = (ev.AbortAttempt(request.epoch, request.launch), *effects)
    return cancelling, effects


def _reader_left(request: Request, now: float) -> Step:
    if not request.readers:
        return request, ()
    left = replace(request, readers=max(0, request.readers - 1))
    if left.readers or left.phase is Phase.CANCELLING:
        return left, ()
    if left.grace <= 0:
        return _cancel(left, "client (gone)")
    detached = replace(left, detached=True, grace_until=now + left.grace)
    return detached, (ev.SetTimer("grace", left.epoch, left.grace), ev.Record())


def _timer(request: Request, name: str, epoch: Epoch, now: float) -> Step:
    if name == "deadline":
        if request.phase is Phase.CANCELLING:
            return replace(request, phase=Phase.CANCELLED), (ev.Record(),)
        return _fail(request, ErrorType.DEADLINE, "the request's deadline passed")
    if name == "grace" and request.detached and request.readers == 0:
        if (left := request.grace_until - now) > 0:
            # set by an earlier leave: a reader was back in between
            return request, (ev.SetTimer("grace", request.epoch, left),)
        return _cancel(request, "grace")
    if epoch != request.epoch:
        return request, ()
    if name == "retry" and request.phase is Phase.MIGRATING and request.waiting:
        # a full round failed: launches that were refused before may be back, later even the one that failed last
        excluded = request.excluded if request.retries <= 1 else request.excluded[-1:]
        if now - request.searching_since >= REPRIEVE:
            excluded = ()
        again = replace(request, excluded=excluded, waiting=False)
        return again, (ev.Dispatch(request.epoch, request.committed, excluded, recovering=True),)
    if name == "abort" and request.phase is Phase.CANCELLING:
        return replace(request, phase=Phase.CANCELLED), (ev.Record(),)
    return request, ()


def _term(request: Request, term: int) -> Step:
    """A higher term in the store: this gateway is no longer the owner and says nothing more (R3)."""
    if term <= request.epoch.term or request.phase in TERMINAL:
        return request, ()
    taken = replace(request, phase=Phase.FAILED, epoch=Epoch(term, 0), launch="", owned=False)
    effects: tuple[RequestEffect, ...] = (ev.Silence(),)
    if request.launch:
        effects = (ev.AbortAttempt(request.epoch, request.launch), *effects)
    return taken, effects
