"""The one tree of errors. Each carries a stable reason, a hint and whether trying again can help.

InfctlError
├─ UsageError · ConfigError                         exit 2
├─ NotFound                                         exit 5
├─ Conflict                                         exit 6
├─ PermissionDenied                                 exit 77
├─ StoreError                                       exit 3
│  ├─ StoreUnavailable   the default for every answer we do not understand: fences nothing (R5)
│  ├─ LeaseLost          definite: the store says the lease id is gone
│  ├─ Compacted          definite: the revision asked for is no longer kept
│  └─ StoreFull          definite: NOSPACE; deletes still work
├─ EngineError                                      exit 1
│  ├─ StartFailed · NotReady · Rejected · Crashed
├─ NodeUnreachable                                  exit 1
├─ DeadlineExceeded                                 exit 4
├─ PartialFailure                                   exit 7
└─ InvariantBroken       a bug of ours              exit 70
"""

from __future__ import annotations


class InfctlError(Exception):
    """Base of every error that we raise on purpose."""

    reason = "Error"
    hint = ""
    recoverable = False
    exit_code = 1

    def __init__(self, message: str, *, reason: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if reason is not None:
            self.reason = reason
        if hint is not None:
            self.hint = hint


class UsageError(InfctlError):
    """The command line does not say what to do."""

    reason = "Usage"
    exit_code = 2


class ConfigError(InfctlError):
    """One or more values of a file are wrong; the message has one line for each, with file, key and line."""

    reason = "InvalidConfig"
    exit_code = 2


class NotFound(InfctlError):
    reason = "NotFound"
    exit_code = 5


class Conflict(InfctlError):
    """A guard refused, or somebody else was faster. Trying again is safe."""

    reason = "Conflict"
    recoverable = True
    exit_code = 6


class PermissionDenied(InfctlError):
    reason = "PermissionDenied"
    exit_code = 77


class StoreError(InfctlError):
    reason = "StoreError"
    exit_code = 3


class StoreUnavailable(StoreError):
    """No definite answer. What was sent may or may not have been applied; nothing may be fenced on it."""

    reason = "StoreUnavailable"
    recoverable = True
    hint = "is etcd running and reachable? infctl looks at --endpoints, INFCTL_ENDPOINTS, then the context"


class LeaseLost(StoreError):
    """The store says definitely that this lease no longer exists."""

    reason = "LeaseLost"


class Compacted(StoreError):
    """The asked revision is compacted away; list again. `compact_revision` is the oldest one kept."""

    reason = "Compacted"
    recoverable = True

    def __init__(self, message: str, *, compact_revision: int = 0) -> None:
        super().__init__(message)
        self.compact_revision = compact_revision


class StoreFull(StoreError):
    """etcd's space alarm (NOSPACE): puts and new leases are refused, deletes work."""

    reason = "StoreFull"
    hint = "compact, defragment and disarm the alarm: etcdctl alarm list"


class EngineError(InfctlError):
    reason = "EngineError"


class StartFailed(EngineError):
    reason = "StartFailed"
    recoverable = True


class NotReady(EngineError):
    reason = "NotReady"
    recoverable = True


class Rejected(EngineError):
    """The engine answered, and the answer is no."""

    reason = "Rejected"


class Crashed(EngineError):
    reason = "Crashed"
    recoverable = True


class NodeUnreachable(InfctlError):
    """A node's daemon does not answer; what runs there may go on."""

    reason = "NodeUnreachable"
    recoverable = True


class DeadlineExceeded(InfctlError):
    """Waiting ended; what was waited for may go on."""

    reason = "DeadlineExceeded"
    recoverable = True
    exit_code = 4


class PartialFailure(InfctlError):
    reason = "PartialFailure"
    exit_code = 7


class InvariantBroken(InfctlError):
    """A promise of our own code does not hold: a bug, never the operator's fault."""

    reason = "InvariantBroken"
    exit_code = 70
