"""What can happen to one host's part of a launch (events, past tense) and what may be done about it (effects).

The part of node-rank 0 belongs to the owner and is driven by `domain.group`; this is every other one.
"""

from __future__ import annotations

from dataclasses import dataclass

from infctl.domain.causes import Cause


@dataclass(frozen=True, slots=True)
class PlanSeen:
    """The owner planned a launch with a part for us. `load` and `leave`: seconds to load, seconds to leave in order."""

    launch: str
    load: float = 900.0
    leave: float = 35.0


@dataclass(frozen=True, slots=True)
class LaunchClosed:
    """The store does not have the launch any more, or has it as ended: whatever runs of it is left over."""

    launch: str
    why: str


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """Somebody wrote a notice for the launch."""

    launch: str
    reason: str


@dataclass(frozen=True, slots=True)
class OwnerAway:
    """The store does not have the owner's part: `lost`, its lease ended or it has left; else it was not written yet."""

    launch: str
    lost: bool = True


@dataclass(frozen=True, slots=True)
class OwnerBack:
    launch: str


@dataclass(frozen=True, slots=True)
class LeaderProbed:
    """Whether the engine at node-rank 0 answered anything at all; `why` it did not."""

    launch: str
    reached: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class PartSpawned:
    launch: str
    pid: int


@dataclass(frozen=True, slots=True)
class PartRefused:
    """It could not be started."""

    launch: str
    why: str
    cause: Cause = Cause.SPAWN_FAILED


@dataclass(frozen=True, slots=True)
class PartLoaded:
    launch: str
    ranks: int


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """As in `group_events`."""

    launch: str
    pid: int
    title: str
    status: str = ""
    cause: Cause = Cause.CRASH


@dataclass(frozen=True, slots=True)
class PartGone:
    """None of its processes lives."""

    launch: str


@dataclass(frozen=True, slots=True)
class PartFound:
    """The daemon starts, and the part of its earlier life cannot go on."""

    launch: str
    reason: str
    evidence: str


@dataclass(frozen=True, slots=True)
class PartAdopted:
    """The daemon starts, and the part of its earlier life lives with every process that serves."""

    launch: str
    loaded: bool
    load: float = 900.0
    leave: float = 35.0


@dataclass(frozen=True, slots=True)
class FaultWritten:
    """The notice is there, ours or another's; or it is not needed, since another launch is registered."""

    launch: str


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """No definite answer for the notice. Never a reason to kill."""

    launch: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    name: str
    launch: str


MemberEvent = (
    PlanSeen
    | LaunchClosed
    | FaultSeen
    | OwnerAway
    | OwnerBack
    | LeaderProbed
    | PartSpawned
    | PartRefused
    | PartLoaded
    | ProcessExited
    | PartGone
    | PartFound
    | PartAdopted
    | FaultWritten
    | StoreFailed
    | TimerFired
)


@dataclass(frozen=True, slots=True)
class SpawnPart:
    launch: str


@dataclass(frozen=True, slots=True)
class AwaitPart:
    """Tell us when our ranks have loaded."""

    launch: str


@dataclass(frozen=True, slots=True)
class SayPart:
    """Our rank key says this from now on, under whatever lease we hold; "" takes the key away."""

    launch: str
    state: str


@dataclass(frozen=True, slots=True)
class KillPart:
    """SIGKILL every process of it. Waits for nothing and nobody (R4)."""

    launch: str
    reason: str


@dataclass(frozen=True, slots=True)
class WriteFault:
    """One transaction: compare the launch, delete the endpoint, write the notice."""

    launch: str
    reason: str
    evidence: str


@dataclass(frozen=True, slots=True)
class ProbeLeader:
    """Ask the engine at node-rank 0 whether it is there."""

    launch: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """`TimerFired(name, launch)` after `delay` seconds; a timer of the same name is replaced."""

    name: str
    launch: str
    delay: float


@dataclass(frozen=True, slots=True)
class Announce:
    """Write an event for people."""

    kind: str
    launch: str
    message: str


MemberEffect = SpawnPart | AwaitPart | SayPart | KillPart | WriteFault | ProbeLeader | SetTimer | Announce
