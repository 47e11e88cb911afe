"""The demo's findings as one object with a fixed set of keys, and as lines of a timeline. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from infctl.store.records import EventRecord


@dataclass(slots=True)
class Report:
    """`--json` prints exactly these; milliseconds are null where the fault did not concern them."""

    engine: str
    fault: str
    tokens: int = 0
    lost: int = 0
    repeated: int = 0
    exact: bool = False
    gap_ms: float | None = None
    net_gap_ms: float | None = None
    prefill_ms: float | None = None
    detect_ms: float | None = None
    replayed_tokens: int = 0
    launch_before: str | None = None
    launch_after: str | None = None
    generation_before: int | None = None
    generation_after: int | None = None
    requests_after_notice: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Outcome:
    """A report, what speaks against it (empty: the promise was kept), and the timeline in words."""

    report: Report
    problems: list[str] = field(default_factory=list)
    timeline: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return not self.problems


@dataclass(slots=True)
class Arrivals:
    """When the tokens of one stream arrived: (total tokens so far, monotonic seconds)."""

    id: str = ""
    frames: list[tuple[int, float]] = field(default_factory=list)
    error: str = ""

    def spacing(self, until: float) -> float:
        """Median seconds between two frames before the fault."""
        times = [t for _, t in self.frames if t <= until]
        steps = [b - a for a, b in itertools.pairwise(times)]
        return statistics.median(steps) if steps else 0.0

    def gap_ms(self, fault_at: float, committed: int) -> float | None:
        """Arrival of the first token after the fault, less the last before it, less the median spacing.

        `committed` is how far the dead worker had got: its last tokens may still arrive after the fault.
        """
        before = [t for total, t in self.frames if total <= committed]
        after = [t for total, t in self.frames if total > committed]
        if not before or not after:
            return None
        return max(0.0, (after[0] - before[-1] - self.spacing(fault_at)) * 1000.0)


def first(events: Sequence[EventRecord], kind: str, subject: str) -> EventRecord | None:
    return next((e for e in events if e.kind == kind and e.subject == subject), None)


def number(event: EventRecord | None, name: str) -> float | None:
    """A number out of an event's fields; None when it is not there."""
    value = event.fields.get(name) if event is not None else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def worst(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return round(max(known), 1) if known else None
