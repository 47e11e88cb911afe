"""Lease arithmetic: what its holder may believe, from the moments it sent and what was answered (R5, R7).

A lease is ours until `deadline` = the moment the last successful renewal was *sent* + the TTL it was granted,
on our own monotonic clock. The store may keep it longer (it hands back a full TTL after a restart), never shorter.
An unknown answer changes nothing; only a definite one loses the lease.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Holding(StrEnum):
    """What the holder may do now."""

    HELD = "held"  # inside the deadline: act as owner
    UNCERTAIN = "uncertain"  # past the deadline without a definite answer: start nothing new, fence nothing
    LOST = "lost"  # the store said so


@dataclass(frozen=True, slots=True)
class LeaseClock:
    """One lease as its holder knows it. Times are monotonic seconds."""

    lease: int
    ttl: float
    deadline: float
    lost: bool = False

    @staticmethod
    def granted(lease: int, ttl: float, sent_at: float) -> LeaseClock:
        return LeaseClock(lease, ttl, sent_at + ttl)

    def renewed(self, ttl: float, sent_at: float) -> LeaseClock:
        """A renewal was answered. An answer that comes late and out of order never shortens the deadline."""
        if self.lost or ttl <= 0:
            return self
        return replace(self, ttl=ttl, deadline=max(self.deadline, sent_at + ttl))

    def answered_gone(self) -> LeaseClock:
        """The store said definitely that the lease does not exist."""
        return replace(self, lost=True)

    def holding(self, now: float) -> Holding:
        if self.lost:
            return Holding.LOST
        return Holding.HELD if now < self.deadline else Holding.UNCERTAIN

    def next_renewal(self, now: float, floor: float = 0.1) -> float:
        """Seconds to wait before renewing: half of what remains, so that a slow answer still leaves a second try."""
        return max(floor, (self.deadline - now) / 2)
