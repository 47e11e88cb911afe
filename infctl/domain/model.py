"""What the cluster is made of: specs (wanted), registrations (durable facts) and views for routing.

Plain frozen data. Durations are seconds unless the name says `_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a group does. `unified` serves both halves of a request."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class EndpointState(StrEnum):
    """Which endpoint gets new work; the streams that any of them has go on.

    One class of evidence (R6) makes it suspect, where it seems to stand still and may only be busy: the last resort.
    Or it makes it unfit, where what it gives is no good: it gets nothing.
    """

    READY = "ready"
    SUSPECT = "suspect"
    UNFIT = "unfit"
    DRAINING = "draining"


class Contract(StrEnum):
    """What a request is promised at admission (docs/design.md)."""

    EXACT = "exact"
    CONTINUABLE = "continuable"
    RESTART_ONLY = "restart-only"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One group as the gateway routes to it: the registration of one launch."""

    group: str
    pool: str
    generation: int
    launch: str
    url: str
    model: str
    revision: str
    tokenizer_digest: str
    context_length: int
    vocab_size: int
    max_running: int
    max_queued: int
    state: EndpointState = EndpointState.READY
    deterministic: bool = False
    node: str = ""

    @property
    def capacity(self) -> int:
        """Requests this endpoint may hold, running and queued."""
        return self.max_running + self.max_queued


@dataclass(frozen=True, slots=True)
class Limits:
    """The timers of one cluster; see `problems` for how they bind each other (R4)."""

    loads_poll: float = 1.0
    stall: float = 2.0
    probe: float = 0.5
    lease_ttl: float = 10.0
    hand_over: float = 120.0
    sigterm: float = 870.0
    drain_deadline: float = 900.0
    detach_grace: float = 15.0
    resume_window: float = 120.0
    request_deadline: float = 600.0
    relaunch_delay: float = 2.0
    migrations: int = 3

    def problems(self) -> list[tuple[str, str]]:
        """Every broken rule between the timers, as (field, sentence); empty when they fit together."""
        found: list[tuple[str, str]] = []
        for name in self.__slots__:
            if not getattr(self, name) >= 0:
                found.append((name, f"{name} must be a number that is not negative"))
        for low, high in (
            ("probe", "stall"),
            ("loads_poll", "stall"),
            ("stall", "lease_ttl"),
            ("hand_over", "sigterm"),
            ("sigterm", "drain_deadline"),
        ):
            if not getattr(self, low) < getattr(self, high):
                found.append(
                    (
                        low,
                        f"{low} ({getattr(self, low):g} s) must be shorter than {high} ({getattr(self, high):g} s)",
                    )
                )
        if not self.detach_grace <= self.resume_window:
            found.append(
                (
                    "detach_grace",
                    f"detach_grace ({self.detach_grace:g} s) must not exceed resume_window ({self.resume_window:g} s)",
                )
            )
        return found
