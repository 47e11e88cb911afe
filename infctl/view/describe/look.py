"""A snapshot looked at from one moment: ages, events about a thing, and what belongs to what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from infctl.store.records import EventRecord, FaultNotice, StreamRecord, Suspicion
from infctl.view.describe.page import Line, Page
from infctl.view.humanize import clock, duration, reason_and_message, seconds_since
from infctl.view.snapshot import Snapshot

MOST_EVENTS = 20
MOST_ROWS = 10
# a gateway writes every 2 s
GATEWAY_SILENT = 10.0
# the events that say why a launch was left
_ENDS = frozenset({"fault.written", "worker.suspected"})
# as domain.request has them, which takes long to load; a test compares
TERMINAL = frozenset({"COMPLETED", "CANCELLED", "FAILED"})


@dataclass(frozen=True, slots=True)
class Look:
    """`now` is aware; times are shown in its zone."""

    snapshot: Snapshot
    now: datetime

    def ago(self, text: str | None) -> str:
        """`3m12s ago`, or "" where the time is not known."""
        seconds = seconds_since(text, self.now) if text else None
        return "" if seconds is None else f"{duration(seconds)} ago"

    def since(self, text: str | None) -> float | None:
        return seconds_since(text, self.now) if text else None

    def tell(
        self, page: Page, own: str, *others: str, actor: str = "", faults: Iterable[str] = (), lost: Iterable[str] = ()
    ) -> None:
        """Put the last events of these subjects on the page, oldest first.

        Also those by `actor`, those of these faults, and what ended these launches or cast doubt on them.
        """
        subjects, fault_ids = frozenset((own, *others)), frozenset(f for f in faults if f)
        launches = frozenset(launch for launch in lost if launch)
        found = [
            e
            for _, e in sorted(self.snapshot.events.items(), key=lambda item: (item[1].at, item[0]))
            if e.subject in subjects
            or (actor and e.actor == actor)
            or (e.fault_id and e.fault_id in fault_ids)
            or (e.kind in _ENDS and e.fields.get("launch") in launches)
        ]
        page.events = [self._line(e, own) for e in found[-MOST_EVENTS:]]
        page.earlier = len(found) - len(page.events)
        page.zone = self.now.tzname() or ""

    def _line(self, event: EventRecord, own: str) -> Line:
        """What an event says on the page of `own`, which need not be said again."""
        said = reason_and_message(event.reason, event.message)
        subject = "" if event.subject == own else event.subject
        by = "" if event.actor in (own, event.subject) else f" ({event.actor})"
        text = ": ".join(part for part in (subject, said) if part) + by
        return Line(clock(event.at, self.now), self.ago(event.at), event.kind, text.strip())

    # what belongs to what
    def node_is_heard(self, node: str) -> bool:
        return node in self.snapshot.node_leases

    def gateway_is_heard(self, gateway: str) -> bool:
        return gateway in self.snapshot.gateways

    def faults_of(self, group: str) -> list[FaultNotice]:
        """Oldest first."""
        return sorted((f for (g, _), f in self.snapshot.faults.items() if g == group), key=lambda f: f.at_ms)

    def is_over(self, group: str, launch: str) -> bool:
        """The launch has a fault notice, or another one is registered."""
        generation = self.snapshot.generations.get(group)
        return (group, launch) in self.snapshot.faults or generation is None or generation.launch != launch

    def suspicions_of(self, launch: str) -> list[Suspicion]:
        return [s for (_, found, _), s in sorted(self.snapshot.suspicions.items()) if found == launch]

    def live_streams(self, *, launch: str = "", owner: str = "") -> list[StreamRecord]:
        """Streams that have not ended, oldest first."""
        found = [
            r
            for r in self.snapshot.streams.values()
            if r.state not in TERMINAL and (not launch or r.launch == launch) and (not owner or r.owner == owner)
        ]
        return sorted(found, key=lambda r: (r.started_at, r.stream))

    def ready_in(self, pool: str) -> int:
        return sum(e.pool == pool and e.state == "ready" for e in self.snapshot.endpoints.values())


def is_live(stream: StreamRecord) -> bool:
    return stream.state not in TERMINAL


def count(n: int, what: str, many: str = "") -> str:
    """`1 stream`, `3 streams`, `no streams`."""
    return f"{n or 'no'} {what if n == 1 else many or what + 's'}"


def stream_rows(look: Look, streams: list[StreamRecord]) -> list[tuple[str, ...]]:
    return [
        (r.stream, r.state, r.group or "-", str(r.committed), str(r.migrations), look.ago(r.started_at) or "-")
        for r in streams[:MOST_ROWS]
    ]


STREAM_HEADS = ("STREAM", "STATE", "GROUP", "TOKENS", "MOVES", "STARTED")
