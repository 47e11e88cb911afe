"""Is this worker frozen? Two witnesses are needed (docs/design.md).

A worker is frozen when none of its streams moved for the stall time *and* its scheduler's own heartbeat
(`loads[].timestamp`) did not move either at a probe asked for at that moment. Streams that wait for their first
token count as quiet, never as witnesses of progress; one that has moved clears the worker at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class StallVerdict(StrEnum):
    FINE = "fine"
    ASK = "ask"  # silent long enough: probe the heartbeat now
    FROZEN = "frozen"  # silent, and the heartbeat stands still or does not answer


@dataclass(frozen=True, slots=True)
class WorkerPulse:
    """What one gateway saw of one launch. Times are monotonic seconds, heartbeats the worker's own numbers."""

    last_token: float
    heartbeat: float | None = None
    heartbeat_at: float = 0.0
    asked_at: float | None = None
    streams: int = 0

    def token(self, now: float) -> WorkerPulse:
        return replace(self, last_token=now, asked_at=None)

    def streams_now(self, count: int, now: float) -> WorkerPulse:
        """The number of streams on the launch changed; the silence of an idle worker is not counted."""
        fresh = now if self.streams == 0 and count > 0 else self.last_token
        return replace(self, streams=count, last_token=fresh, asked_at=None if count == 0 else self.asked_at)

    def asked(self, now: float) -> WorkerPulse:
        return replace(self, asked_at=now)

    def beat(self, value: float | None, now: float) -> tuple[WorkerPulse, StallVerdict]:
        """A probe ended: `value` is the newest `loads[].timestamp`, None when it did not answer in time."""
        if value is not None and value != self.heartbeat:
            return replace(self, heartbeat=value, heartbeat_at=now, asked_at=None), StallVerdict.FINE
        silent_since_asked = self.asked_at is not None and self.last_token <= self.asked_at
        if self.streams and silent_since_asked:
            return self, StallVerdict.FROZEN
        return replace(self, asked_at=None), StallVerdict.FINE

    def check(self, now: float, stall: float) -> StallVerdict:
        """Called at any time: has every stream been quiet for `stall` seconds?"""
        if not self.streams or now - self.last_token < stall:
            return StallVerdict.FINE
        return StallVerdict.ASK
