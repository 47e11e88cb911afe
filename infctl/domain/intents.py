"""Whether an intent is still to be carried out. Pure; moments are epoch milliseconds.

Kept true: what nobody began in time is never begun; what was begun is taken up again by a restarted daemon only as long
as its own deadline has not passed; an intent that looked at another generation than the one there is speaks of
something that is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class IntentKind(StrEnum):
    DRAIN = "drain"
    UNDRAIN = "undrain"
    RESTART = "restart"
    CORDON = "cordon"
    UNCORDON = "uncordon"


class State(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"


CLOSED = frozenset({State.DONE, State.FAILED, State.EXPIRED})
# the daemons carry these out; a cordon is a wish that infctl writes down itself
FOR_DAEMONS = frozenset({IntentKind.DRAIN, IntentKind.UNDRAIN, IntentKind.RESTART})


@dataclass(frozen=True, slots=True)
class Begin:
    """Carry it out from its start."""


@dataclass(frozen=True, slots=True)
class Resume:
    """It was begun by an earlier life of ours."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Somebody is done with it already."""


@dataclass(frozen=True, slots=True)
class Expire:
    why: str


Verdict = Begin | Resume | Leave | Expire


def judge(
    *,
    generation: int,
    not_after_ms: float,
    now_ms: float,
    current: int,
    state: str = "",
    deadline_ms: float = 0.0,
) -> Verdict:
    """`generation` is what the intent saw, `current` what is there (0 for a node); `state` is our own last word."""
    if state in CLOSED:
        return Leave()
    if state == State.RUNNING:
        # the deadline that it was begun with; a late daemon must not stop what has long gone on
        if deadline_ms and now_ms > deadline_ms:
            return Expire(f"its deadline passed {_ago(now_ms - deadline_ms)} ago while nobody carried it out")
        return Resume()
    if now_ms > not_after_ms:
        return Expire(f"it was to be begun {_ago(now_ms - not_after_ms)} ago at the latest")
    if generation != current:
        return Expire(f"it was meant for generation {generation}, and {current} is registered")
    return Begin()


def _ago(ms: float) -> str:
    seconds = max(0.0, ms / 1000.0)
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
