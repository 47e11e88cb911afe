"""What can happen to a worker group (events, past tense) and what may be done about it (effects, imperative)."""

from __future__ import annotations

from dataclasses import dataclass

from infctl.domain.causes import Cause


@dataclass(frozen=True, slots=True)
class SpecApplied:
    """The wanted state of the group changed; `digest` names this version of the specification."""

    digest: str


@dataclass(frozen=True, slots=True)
class SpecDeleted:
    reason: str = "deleted"


@dataclass(frozen=True, slots=True)
class GroupHeld:
    """No other launch is wanted until a specification is applied again; the one that serves goes on."""

    reason: str = "drained"


@dataclass(frozen=True, slots=True)
class LaunchDrained:
    """What was to finish has finished, or the time for it is over: the launch is stopped, with `grace` seconds to go.

    0 is a kill at once. No other launch starts until a specification is applied again.
    """

    launch: str
    reason: str
    grace: float


@dataclass(frozen=True, slots=True)
class LaunchFound:
    """The daemon starts, and the launch of its earlier life cannot go on: `reason` and `evidence` say why."""

    launch: str
    generation: int
    reason: str = Cause.DAEMON_RESTARTED
    evidence: str = "left by an earlier life of the daemon"


@dataclass(frozen=True, slots=True)
class LaunchAdopted:
    """The daemon starts, and the launch of its earlier life lives with every process that serves.

    `checked`: its canary had passed. `lease`: the node's lease under which its generation was taken. `digest` names
    the specification that it runs.
    """

    launch: str
    generation: int
    checked: bool
    lease: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class LaunchClaimed:
    """The store holds the new launch and the generation that registers it."""

    launch: str
    generation: int


@dataclass(frozen=True, slots=True)
class GenerationClaimed:
    """The store holds a new generation of the launch that runs (R7)."""

    launch: str
    generation: int


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """A definite no, read back: the store names another launch, or holds a fault notice for this one.

    A compare that failed while the store still names this launch, without a notice, is none of these: it is
    `GenerationClaimed` when the generation there is higher, and `StoreFailed` when our own lease was missing (R5).
    """

    launch: str
    why: str


@dataclass(frozen=True, slots=True)
class ClaimDeferred:
    """A launch cannot begin yet: something that it needs is not there. Nothing was asked of the store."""

    why: str


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """No definite answer for an effect (`what` is its name). Never a reason to kill."""

    what: str
    launch: str


@dataclass(frozen=True, slots=True)
class Spawned:
    launch: str
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    launch: str
    why: str
    cause: Cause = Cause.SPAWN_FAILED


@dataclass(frozen=True, slots=True)
class EngineLoaded:
    """The engine answers and every rank has loaded; `ranks` were seen."""

    launch: str
    ranks: int


@dataclass(frozen=True, slots=True)
class CanaryPassed:
    launch: str


@dataclass(frozen=True, slots=True)
class CanaryFailed:
    """A wrong answer: the first one of a launch, or a confirmed one while it serves."""

    launch: str
    why: str


@dataclass(frozen=True, slots=True)
class EndpointPublished:
    """`state` is what the store holds now."""

    launch: str
    generation: int
    state: str = "ready"


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """A pidfd became readable. `title` is what the process called itself; `status` is how it ended, where known."""

    launch: str
    pid: int
    title: str
    status: str = ""
    cause: Cause = Cause.CRASH


@dataclass(frozen=True, slots=True)
class LaunchGone:
    """Every process of the launch has been reaped or is known dead."""

    launch: str


@dataclass(frozen=True, slots=True)
class FaultWritten:
    """One transaction took the endpoint away and left the notice."""

    launch: str


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """Somebody else (a member daemon, an operator) wrote a fault notice for this launch."""

    launch: str
    reason: str


@dataclass(frozen=True, slots=True)
class HangConfirmed:
    """Two classes of evidence say that the engine makes no progress (R6)."""

    launch: str
    evidence: str


@dataclass(frozen=True, slots=True)
class HealthDoubted:
    """One class of evidence against a launch that serves: it leaves routing, nothing else (R6)."""

    launch: str
    reason: str
    why: str


@dataclass(frozen=True, slots=True)
class HealthTrusted:
    """Nothing speaks against it any more."""

    launch: str


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The store said definitely that the owner's lease is gone."""


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """The owner holds a lease (again)."""

    lease: int


@dataclass(frozen=True, slots=True)
class TimerFired:
    name: str
    launch: str


GroupEvent = (
    SpecApplied
    | SpecDeleted
    | GroupHeld
    | LaunchDrained
    | LaunchFound
    | LaunchAdopted
    | LaunchClaimed
    | GenerationClaimed
    | ClaimRefused
    | ClaimDeferred
    | StoreFailed
    | Spawned
    | SpawnFailed
    | EngineLoaded
    | CanaryPassed
    | CanaryFailed
    | EndpointPublished
    | ProcessExited
    | LaunchGone
    | FaultWritten
    | FaultSeen
    | HangConfirmed
    | HealthDoubted
    | HealthTrusted
    | LeaseEnded
    | LeaseHeld
    | TimerFired
)


@dataclass(frozen=True, slots=True)
class ClaimLaunch:
    """Take a new launch id and the next generation by compare-and-swap; `above` is the highest we know."""

    above: int


@dataclass(frozen=True, slots=True)
class ClaimGeneration:
    """Register the running launch anew; the store must still name it, without a fault (R7)."""

    launch: str
    above: int


@dataclass(frozen=True, slots=True)
class SpawnLaunch:
    launch: str


@dataclass(frozen=True, slots=True)
class AwaitLoad:
    """Tell us when the engine answers and every rank exists."""

    launch: str


@dataclass(frozen=True, slots=True)
class RunCanary:
    launch: str


@dataclass(frozen=True, slots=True)
class PublishEndpoint:
    """Compare generation, launch, own lease and the absence of a fault; then write the endpoint in this state."""

    launch: str
    generation: int
    state: str = "ready"


@dataclass(frozen=True, slots=True)
class WriteFault:
    """One transaction: compare the launch, delete the endpoint, write the notice."""

    launch: str
    reason: str
    evidence: str


@dataclass(frozen=True, slots=True)
class KillLaunch:
    """SIGKILL every process of the launch. Waits for nothing and nobody (R4)."""

    launch: str
    reason: str


@dataclass(frozen=True, slots=True)
class StopLaunch:
    """A planned end: withdraw, SIGTERM to the main process only, SIGKILL at the deadline."""

    launch: str
    deadline: float


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire `TimerFired(name, launch)` after `delay` seconds; a timer of the same name is replaced."""

    name: str
    launch: str
    delay: float


@dataclass(frozen=True, slots=True)
class Announce:
    """Write an event for people: `kind` is a stable word, `fault_launch` ties it to a fault."""

    kind: str
    launch: str
    message: str


GroupEffect = (
    ClaimLaunch
    | ClaimGeneration
    | SpawnLaunch
    | AwaitLoad
    | RunCanary
    | PublishEndpoint
    | WriteFault
    | KillLaunch
    | StopLaunch
    | SetTimer
    | Announce
)
