"""What can happen while a group is drained (events, past tense) and what may be done about it (effects, imperative)."""

from __future__ import annotations

from dataclasses import dataclass

from infctl.domain.disruption import Rule


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """What one live gateway published: the revision of its routing table, and what it has on the launch.

    `oldest_at` is on the clock of `now`; 0 where there is no stream.
    """

    gateway: str
    revision: int
    streams: int = 0
    tokens: int = 0
    oldest_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Began:
    """`launch` is to be stopped ("": none runs); `serving`: gateways may route to it; `ending`: it ends already."""

    launch: str
    serving: bool
    ending: bool = False


@dataclass(frozen=True, slots=True)
class Permitted:
    """No rule speaks against the disruption, and it is entered where others see it."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A rule has to be waited for."""

    rule: Rule
    why: str


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """Something that a rule looks at is not what it was."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The endpoint says `draining` from `revision` of the store on."""

    revision: int


@dataclass(frozen=True, slots=True)
class GatewaysTold:
    """Every gateway whose lease lives, as it published itself last."""

    gateways: tuple[GatewayLoad, ...]


@dataclass(frozen=True, slots=True)
class EngineCounted:
    """Requests that the engine says it has, with its schedulers' time stamps; None: no answer."""

    requests: int | None
    stamps: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """No definite answer for an effect (`what` is its name). It is tried again."""

    what: str


@dataclass(frozen=True, slots=True)
class UndrainAsked:
    by: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The endpoint says `ready` again."""


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """No process of the launch is left and its notice is written; `why` as its notice says."""

    why: str


@dataclass(frozen=True, slots=True)
class GroupReady:
    """A launch of the group serves (again)."""

    launch: str


@dataclass(frozen=True, slots=True)
class GroupFailed:
    """The daemon has given up starting the group."""

    why: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    name: str


DrainEvent = (
    Began
    | Permitted
    | Blocked
    | RulesChanged
    | Withdrawn
    | GatewaysTold
    | EngineCounted
    | StoreFailed
    | UndrainAsked
    | Returned
    | LaunchEnded
    | GroupReady
    | GroupFailed
    | TimerFired
)


@dataclass(frozen=True, slots=True)
class HoldGroup:
    """No other launch is started until the group is let go."""


@dataclass(frozen=True, slots=True)
class AskPermission:
    """Enter the disruption where every drainer looks, if minReady and the budget allow it."""


@dataclass(frozen=True, slots=True)
class GiveBackPermission:
    """Take the disruption out again."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Rewrite the endpoint as `draining`: same generation, by compare-and-swap."""

    launch: str


@dataclass(frozen=True, slots=True)
class CountEngine:
    """Ask the engine what it has."""

    launch: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """The instant from which gateways may move running streams to other groups. Nobody acts on it yet."""

    launch: str


@dataclass(frozen=True, slots=True)
class StopLaunch:
    """Notice, SIGTERM to the main process, and SIGKILL of what is left after `grace` seconds."""

    launch: str
    grace: float


@dataclass(frozen=True, slots=True)
class Return:
    """Rewrite the endpoint as `ready`, and let the group be started again when it ends."""

    launch: str


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Let the group go: it starts again."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire `TimerFired(name)` after `delay` seconds; a timer of the same name is replaced."""

    name: str
    delay: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The drain is over; its state holds how it ended."""


DrainEffect = (
    HoldGroup
    | AskPermission
    | GiveBackPermission
    | Withdraw
    | CountEngine
    | HandOver
    | StopLaunch
    | Return
    | Relaunch
    | SetTimer
    | Finish
)
