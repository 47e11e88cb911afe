"""Judges one engine's heartbeat: moved, or unmoved for so long (class *progress* of R6). Pure.

The stamps are the engine's own clock, so they are only compared with each other. A poll that got no answer counts as
unmoved. One unmoved poll proves nothing (idle engines beat about once a second, and a watcher that was frozen itself
finds an old stamp once), so two are the least.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Progress:
    """`stall` seconds without movement, over at least two polls, make the engine suspect."""

    stall: float
    stamps: tuple[float, ...] = ()
    moved_at: float | None = None
    unmoved: int = 0
    why: str = ""

    def polled(self, stamps: tuple[float, ...] | None, now: float, why: str = "") -> Progress:
        """After one poll: the stamps, or None and the reason when there was no answer. All ranks must have moved."""
        if stamps and _all_moved(stamps, self.stamps):
            return replace(self, stamps=stamps, moved_at=now, unmoved=0, why="")
        return replace(
            self,
            moved_at=now if self.moved_at is None else self.moved_at,
            unmoved=self.unmoved + 1,
            why=why or "/v1/loads: the scheduler's time stamp stands still",
        )

    def suspect(self, now: float) -> bool:
        return self.unmoved >= 2 and self.moved_at is not None and now - self.moved_at >= self.stall

    def evidence(self, now: float) -> str:
        still = now - self.moved_at if self.moved_at is not None else 0.0
        return f"no engine progress for {still:.1f} s ({self.why})"


def _all_moved(now: tuple[float, ...], before: tuple[float, ...]) -> bool:
    return len(now) != len(before) or all(a != b for a, b in zip(now, before, strict=True))
