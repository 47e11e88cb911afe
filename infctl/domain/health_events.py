"""What is learnt of a serving launch's health (events, past tense), and what is to be done about it (effects)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from infctl.domain.causes import Cause


class Layer(StrEnum):
    """PROCESS: the event loop answers, the scheduler moves. MODEL: what it says of itself. CANARY: what it says."""

    PROCESS = "process"
    MODEL = "model"
    CANARY = "canary"


class Reason(StrEnum):
    """Why a condition is as it is."""

    ANSWERS = "Answers"
    LOOP_SILENT = "EventLoopSilent"
    MOVES = "Moves"
    STANDS_STILL = "SchedulerStandsStill"
    SERVES = "Serves"
    NOT_READY = "EngineNotReady"
    WRONG_WEIGHTS = "WrongWeights"
    RANKS_MISSING = "RanksMissing"
    RIGHT = "RightAnswer"
    WRONG = "WrongAnswer"
    CANARY_SILENT = "CanarySilent"
    HELD = "Held"
    HOST_LOST = "HostLost"


# it seems to stand still and may only be busy; everything else says that what it gives is no good
MAY_BE_BUSY = frozenset({Reason.LOOP_SILENT, Reason.STANDS_STILL})


@dataclass(frozen=True, slots=True)
class Began:
    """The launch passed its first canary and is watched from now on."""


@dataclass(frozen=True, slots=True)
class Due:
    """The time to ask has come."""

    layer: Layer


@dataclass(frozen=True, slots=True)
class Polled:
    """One `/v1/loads`: the schedulers' stamps, None without an answer (`why`). Requests include a canary on its way.

    `hold`: at least half of four or more groups look bad at this moment (R6).
    """

    stamps: tuple[float, ...] | None
    running: int = 0
    waiting: int = 0
    why: str = ""
    hold: bool = False


@dataclass(frozen=True, slots=True)
class ModelSeen:
    """What the engine says of itself. `problem` is empty when it is ready, serves our weights and has its ranks."""

    problem: Reason | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class CanaryAnswered:
    """`agreed` of `length` tokens from the first on were those that the pool knows."""

    agreed: int
    length: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class CanaryShed:
    """The engine was full: no verdict."""


@dataclass(frozen=True, slots=True)
class Unasked:
    """We could not even ask: nothing is known of the engine by that."""

    layer: Layer


@dataclass(frozen=True, slots=True)
class CanarySilent:
    """No answer in time."""

    why: str


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What one gateway saw on the data path; `at` tells a new suspicion from the old one."""

    gateway: str
    kind: str
    at: str = ""


@dataclass(frozen=True, slots=True)
class Suspected:
    """The suspicions that gateways hold against the launch now."""

    by: tuple[Suspicion, ...]


@dataclass(frozen=True, slots=True)
class HostsSeen:
    """Of a launch over several hosts: those whose part the store does not have now."""

    lost: tuple[str, ...]


HealthEvent = (
    Began | Due | Polled | ModelSeen | CanaryAnswered | CanaryShed | CanarySilent | Suspected | Unasked | HostsSeen
)


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask now; the answer, or that there was none within `timeout` seconds, is an event of the layer."""

    layer: Layer
    timeout: float


@dataclass(frozen=True, slots=True)
class Wait:
    """`Due(layer)` after `delay` seconds; an earlier wait of the layer is forgotten."""

    layer: Layer
    delay: float


@dataclass(frozen=True, slots=True)
class Doubt:
    """One class of evidence: no new work."""

    reason: Reason
    why: str


@dataclass(frozen=True, slots=True)
class Trust:
    """Nothing speaks against it any more, or what does is held to be somebody else's fault."""


@dataclass(frozen=True, slots=True)
class End:
    """The launch is over: two classes of evidence, or two wrong answers. Said once."""

    cause: Cause
    evidence: str


HealthEffect = Ask | Wait | Doubt | Trust | End
