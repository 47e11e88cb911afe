"""Why launches end: a closed list of causes, what follows from each, and the one function that names a cause.

Kept true: every word that a fault notice, a status or an event gives as its reason is one of these; a cause that this
version does not know is `other` and is told as it came; being full is never a fault. `classify` is total and pure: who
saw the evidence collects it, nobody else decides what it means.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The classes of evidence (R6), and the two kinds of ends that are no evidence of a fault in service."""

    PROCESS = "process"
    PROGRESS = "progress"
    DATA_PATH = "data-path"
    DEVICE = "device"
    MEMBERSHIP = "membership"
    PLANNED = "planned"
    START = "start"


class Recovery(StrEnum):
    """What starting again does about it."""

    RESTART = "restart"  # it can help
    CHANGE = "change"  # seldom helps before the specification or the host is changed: few tries
    NONE = "none"  # there is nothing to recover from: it was ordered, or it is no fault


class Routing(StrEnum):
    """What becomes of new requests while only this is known."""

    KEEP = "keep"
    LOWER = "lower"
    STOP = "stop"


class Cause(StrEnum):
    CRASH = "process-exited"  # also an exit code 0 that nobody asked for
    OUT_OF_MEMORY = "out-of-memory"  # the kernel killed it, for its cgroup or for the host
    DEVICE_OUT_OF_MEMORY = "device-out-of-memory"
    XID = "xid"
    DEVICE = "device"
    HANG = "hang"
    CONNECTION_CUT = "connection-cut"
    TIMEOUT = "timeout"
    OVERLOADED = "overloaded"
    CANARY_FAILED = "canary-failed"
    SPAWN_FAILED = "spawn-failed"
    PORT_TAKEN = "port-taken"
    MODEL_MISSING = "model-missing"
    WEIGHTS_WRONG = "weights-wrong"
    ARGUMENTS_REFUSED = "arguments-refused"
    LOAD_TIMEOUT = "load-timeout"
    HOST_LOST = "host-lost"
    HOST_REBOOTED = "host-rebooted"
    REFUSED = "refused"
    SUPERSEDED = "superseded"
    DRAINED = "drained"
    DELETED = "deleted"
    MOVED = "moved"
    DAEMON_STOPPED = "daemon-stopped"
    DAEMON_RESTARTED = "daemon-restarted"
    OPERATOR = "operator"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Traits:
    """`unexplained`: a request may have done it, so it counts when a poisonous one is looked for (R8)."""

    kind: Kind
    recovery: Recovery
    routing: Routing
    unexplained: bool = False
    hint: str = ""

    @property
    def planned(self) -> bool:
        return self.kind is Kind.PLANNED


_LOGS = "the engine's last lines say more: infctl describe names the file"
_PLANNED = Traits(Kind.PLANNED, Recovery.NONE, Routing.STOP)
_TABLE: dict[Cause, Traits] = {
    Cause.CRASH: Traits(Kind.PROCESS, Recovery.RESTART, Routing.STOP, unexplained=True, hint=_LOGS),
    Cause.OUT_OF_MEMORY: Traits(
        Kind.PROCESS, Recovery.RESTART, Routing.STOP, unexplained=True,
        hint="the kernel ended it for want of memory: give the group more, or lower its caps",
    ),
    Cause.DEVICE_OUT_OF_MEMORY: Traits(
        Kind.DEVICE, Recovery.RESTART, Routing.STOP, unexplained=True,
        hint="lower maxRunning or --mem-fraction-static; is another process on the same GPU?",
    ),
    Cause.XID: Traits(Kind.DEVICE, Recovery.RESTART, Routing.STOP),
    Cause.DEVICE: Traits(Kind.DEVICE, Recovery.RESTART, Routing.STOP),
    Cause.HANG: Traits(Kind.PROGRESS, Recovery.RESTART, Routing.STOP, hint=_LOGS),
    Cause.CONNECTION_CUT: Traits(Kind.DATA_PATH, Recovery.RESTART, Routing.LOWER),
    Cause.TIMEOUT: Traits(Kind.DATA_PATH, Recovery.RESTART, Routing.LOWER),
    Cause.OVERLOADED: Traits(Kind.DATA_PATH, Recovery.NONE, Routing.LOWER),
    Cause.CANARY_FAILED: Traits(Kind.DATA_PATH, Recovery.RESTART, Routing.STOP),
    Cause.SPAWN_FAILED: Traits(Kind.START, Recovery.RESTART, Routing.STOP),
    Cause.PORT_TAKEN: Traits(
        Kind.START, Recovery.RESTART, Routing.STOP, hint="ss -ltnp shows who holds it; or change spec.port"
    ),
    Cause.MODEL_MISSING: Traits(
        Kind.START, Recovery.CHANGE, Routing.STOP, hint="is spec.modelPath mounted and readable on this node?"
    ),
    Cause.WEIGHTS_WRONG: Traits(
        Kind.START, Recovery.CHANGE, Routing.STOP, hint="spec.revision and the files at spec.modelPath differ"
    ),
    Cause.ARGUMENTS_REFUSED: Traits(Kind.START, Recovery.CHANGE, Routing.STOP, hint="correct spec.engineArgs"),
    Cause.LOAD_TIMEOUT: Traits(
        Kind.START, Recovery.RESTART, Routing.STOP, hint="is spec.restart.loadDeadlineSeconds long enough?"
    ),
    Cause.HOST_LOST: Traits(Kind.MEMBERSHIP, Recovery.RESTART, Routing.STOP),
    Cause.HOST_REBOOTED: Traits(Kind.MEMBERSHIP, Recovery.NONE, Routing.STOP),
    Cause.REFUSED: Traits(Kind.MEMBERSHIP, Recovery.RESTART, Routing.STOP),
    Cause.SUPERSEDED: Traits(Kind.MEMBERSHIP, Recovery.RESTART, Routing.STOP),
    Cause.DRAINED: _PLANNED,
    Cause.DELETED: _PLANNED,
    Cause.MOVED: _PLANNED,
    Cause.DAEMON_STOPPED: _PLANNED,
    Cause.DAEMON_RESTARTED: _PLANNED,
    Cause.OPERATOR: _PLANNED,
    Cause.OTHER: Traits(Kind.PROCESS, Recovery.RESTART, Routing.STOP),
}  # fmt: skip

# reasons of StartFailed and ConfigError
_START = {
    "PortTaken": Cause.PORT_TAKEN,
    "ModelMissing": Cause.MODEL_MISSING,
    "WrongRevision": Cause.WEIGHTS_WRONG,
    "InvalidConfig": Cause.ARGUMENTS_REFUSED,
}
# what torch and SGLang print when a device has no room left
_DEVICE_FULL = (
    "cuda out of memory",
    "hip out of memory",
    "cuda error: out of memory",
    "outofmemoryerror",
    "cudaerrormemoryallocation",
    "not enough memory. please try to increase --mem-fraction-static",
)
_SIGKILL = (-9, 137)  # 137: a shell or init in between


def traits(word: str) -> Traits:
    """What follows from a cause, also one that another version wrote."""
    return _TABLE[named(word)]


def explains(word: str, other: str) -> bool:
    """The one says why, and the other is an end that nobody could explain: it may have followed from the first."""
    known = traits(word)
    return traits(other).unexplained and not known.unexplained and known.kind not in (Kind.START, Kind.MEMBERSHIP)


def named(word: str) -> Cause:
    """The cause of a reason word; `other` where this version does not know it."""
    try:
        return Cause(word)
    except ValueError:
        return Cause.OTHER


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of one end or of one doubt. `exit_code` is 0…255, or minus the signal; None where nobody knows.

    `output`: the engine's last lines; `oom_kills`: those of its cgroup since it began; `bad`: classes of evidence.
    """

    ordered: Cause | None = None
    exited: bool = False
    exit_code: int | None = None
    oom_kills: int = 0
    output: str = ""
    xid: int | None = None
    start_reason: str = ""
    start_failed: bool = False
    wrong_answer: bool = False
    shed: bool = False
    timed_out: bool = False
    cut: bool = False
    bad: frozenset[Kind] = frozenset()


def classify(seen: Evidence) -> Cause:
    """The most definite cause that the evidence carries: an order, then what is known, then what is only noticed."""
    if seen.ordered is not None:
        return seen.ordered
    if seen.xid is not None:
        return Cause.XID
    if seen.start_failed:
        return _START.get(seen.start_reason, Cause.SPAWN_FAILED)
    if seen.exited:
        if seen.oom_kills > 0 and (seen.exit_code is None or seen.exit_code in _SIGKILL):
            return Cause.OUT_OF_MEMORY
        said = seen.output.lower()
        if any(words in said for words in _DEVICE_FULL):
            return Cause.DEVICE_OUT_OF_MEMORY
        return Cause.CRASH
    if seen.wrong_answer:
        return Cause.CANARY_FAILED
    if len(seen.bad) >= 2:
        if Kind.PROGRESS in seen.bad:
            return Cause.HANG
        return Cause.HOST_LOST if Kind.MEMBERSHIP in seen.bad else Cause.TIMEOUT
    if seen.shed:
        return Cause.OVERLOADED
    if seen.cut:
        return Cause.CONNECTION_CUT
    if seen.timed_out or seen.bad:
        return Cause.TIMEOUT
    return Cause.OTHER
