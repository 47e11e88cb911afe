"""Judges one engine's heartbeat: moved, or unmoved for so long (class *engine progress* of R6). Pure.

The stamps are the engine's own clock, so they are only compared with each other. A poll that got no answer counts as
unmoved. One unmoved poll proves nothing (idle engines beat about once a second), so two are the least.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Heartbeat:
    """`stall` seconds without movement, over at least two polls, make the engine suspect."""

    stall: float
    stamps: tuple[float, ...] = ()
    moved_at: float = 0.0
    unmoved: int = 0
    why: str = field(default="")

    def polled(self, stamps: tuple[float, ...] | None, now: float, why: str = "") -> None:
        """One poll: the stamps, or None and the reason when there was no answer. All ranks must have moved."""
        if not self.moved_at:
            self.moved_at = now
        if stamps and (
            len(stamps) != len(self.stamps) or all(a != b for a, b in zip(stamps, self.stamps, strict=True))
        ):
            self.stamps, self.moved_at, self.unmoved, self.why = stamps, now, 0, ""
            return
        self.unmoved += 1
        self.why = why or "/v1/loads: the scheduler's time stamp stands still"

    def suspect(self, now: float) -> bool:
        return self.unmoved >= 2 and now - self.moved_at >= self.stall

    def evidence(self, now: float) -> str:
        return f"no engine progress for {now - self.moved_at:.1f} s ({self.why})"


def _all_moved(now: tuple[float, ...], before: tuple[float, ...]) -> bool:
    return len(now) != len(before) or all(a != b for a, b in zip(now, before, strict=True))
