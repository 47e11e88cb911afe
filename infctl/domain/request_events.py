"""What can happen to a running request, and what may be done about it. Times are monotonic seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from infctl.domain.ids import Epoch


class ErrorType(StrEnum):
    """The stable error types a client sees (R11)."""

    INVALID_REQUEST = "invalid_request"
    MODEL_NOT_FOUND = "model_not_found"
    UNAUTHORIZED = "unauthorized"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    NOT_RECOVERABLE = "not_recoverable"
    POISON = "poison"
    CONFLICT = "conflict"
    INTERNAL = "internal"


RETRYABLE = frozenset({ErrorType.OVERLOADED, ErrorType.UNAVAILABLE, ErrorType.NOT_RECOVERABLE})


class Break(StrEnum):
    """How an attempt ended without finishing its job."""

    REFUSED = "refused"  # no connection, or a connection closed before any answer
    EOF = "eof"  # the body ended without finish_reason and [DONE]
    RESET = "reset"
    UNAUTHORIZED = "unauthorized"  # 401/403: this address belongs to another launch now
    ERROR_FRAME = "error-frame"  # the engine rejected the request itself
    OVERLOADED = "abort-503"
    ENGINE_FAILED = "abort-500"
    ABORTED = "aborted"  # an abort that we did not send
    GAP = "gap"  # frames that do not fit what was committed
    FAULT = "fault"  # a fault notice for the launch
    FROZEN = "frozen"  # silence, confirmed by the heartbeat


@dataclass(frozen=True, slots=True)
class Started:
    """The request was admitted and recorded; begin."""


@dataclass(frozen=True, slots=True)
class WorkerChosen:
    """The attempt `epoch` was sent to `launch` and begins at token `base`; `split`: a prefill worker comes first."""

    epoch: Epoch
    launch: str
    base: int
    split: bool = False


@dataclass(frozen=True, slots=True)
class NothingLeft:
    """The replay plan says that the stream is complete already."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class NoWorker:
    """Nothing can serve the attempt now; `error` says what the client would be told."""

    epoch: Epoch
    error: ErrorType
    message: str


@dataclass(frozen=True, slots=True)
class TransferDone:
    """The prefill half ended and the decode half holds the KV cache."""

    epoch: Epoch
    launch: str


@dataclass(frozen=True, slots=True)
class TokensArrived:
    """`count` tokens, the first of which is number `start` of the whole stream (from 0)."""

    epoch: Epoch
    launch: str
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """The engine said `stop` or `length` after `total` tokens of the whole stream."""

    epoch: Epoch
    launch: str
    reason: str
    total: int


@dataclass(frozen=True, slots=True)
class AttemptBroken:
    epoch: Epoch
    launch: str
    kind: Break
    why: str


@dataclass(frozen=True, slots=True)
class LaunchLost:
    """A fault notice (FAULT) or two witnesses of a hang (FROZEN) concern every stream of `launch`."""

    launch: str
    kind: Break
    why: str


@dataclass(frozen=True, slots=True)
class ReaderLeft:
    pass


@dataclass(frozen=True, slots=True)
class ReaderJoined:
    pass


@dataclass(frozen=True, slots=True)
class CancelRequested:
    by: str


@dataclass(frozen=True, slots=True)
class AbortSettled:
    """The attempt that a cancel ended holds no worker any more. `epoch` is the one that the cancel raised."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class TermSeen:
    """The store names a term of this stream; a higher one than ours means another gateway owns it."""

    term: int


@dataclass(frozen=True, slots=True)
class TimerFired:
    name: str
    epoch: Epoch


RequestEvent = (
    Started
    | WorkerChosen
    | NothingLeft
    | NoWorker
    | TransferDone
    | TokensArrived
    | AttemptFinished
    | AttemptBroken
    | LaunchLost
    | ReaderLeft
    | ReaderJoined
    | CancelRequested
    | AbortSettled
    | TermSeen
    | TimerFired
)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Find a worker for the attempt and send it the request from token `base` on; avoid `exclude` (launches)."""

    epoch: Epoch
    base: int
    exclude: tuple[str, ...]
    recovering: bool


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give the client the last `count` tokens of the frame, after skipping its first `skip`."""

    skip: int
    count: int


@dataclass(frozen=True, slots=True)
class Drop:
    """A frame that nobody may see: of another epoch, another launch, or all known already."""

    why: str
    count: int


@dataclass(frozen=True, slots=True)
class AbortAttempt:
    """Close the connection of the attempt and tell its engine to abort it; waits for nothing."""

    epoch: Epoch
    launch: str


@dataclass(frozen=True, slots=True)
class Record:
    """Write the stream's state to the store; serving does not wait for it."""


@dataclass(frozen=True, slots=True)
class Finish:
    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    error: ErrorType
    message: str


@dataclass(frozen=True, slots=True)
class Silence:
    """Say nothing more to any client: another gateway owns the stream."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    name: str
    epoch: Epoch
    delay: float


@dataclass(frozen=True, slots=True)
class Announce:
    kind: str
    launch: str
    message: str


RequestEffect = Dispatch | Deliver | Drop | AbortAttempt | Record | Finish | Fail | Silence | SetTimer | Announce
