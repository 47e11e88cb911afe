"""Makes the report, the problems and the timeline out of what was seen. Pure: the same facts give the same verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infctl.client.demo.fault import Struck
from infctl.client.demo.report import Arrivals, Outcome, Report, first, number, worst
from infctl.client.demo.traffic import Tally
from infctl.store.records import EventRecord, FaultNotice


@dataclass(frozen=True, slots=True)
class Side:
    """A group's registration at one moment."""

    group: str
    launch: str
    generation: int


@dataclass(slots=True)
class Seen:
    """Everything that the verdict rests on. `verdict` is the witness's, one entry for each stream."""

    arrivals: list[Arrivals]
    verdict: list[dict[str, Any]]
    before: Side
    struck: Struck | None
    after: Side | None = None
    dispatched: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    dispatched_at_notice: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    events: list[EventRecord] = field(default_factory=list)
    noticed: dict[str, tuple[FaultNotice, float]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)


def assemble(engine: str, fault: str, tokens: int, seen: Seen) -> Outcome:
    report = Report(engine, fault)
    outcome = Outcome(report)
    _count(outcome, tokens, seen)
    report.launch_before, report.generation_before = seen.before.launch, seen.before.generation
    if seen.after is not None:
        report.launch_after, report.generation_after = seen.after.launch, seen.after.generation
    if seen.struck is not None:
        _measure(outcome, seen, seen.struck)
        outcome.timeline = _timeline(seen, seen.struck)
    return outcome


def _count(outcome: Outcome, tokens: int, seen: Seen) -> None:
    report, problems = outcome.report, outcome.problems
    many = len(seen.arrivals) > 1
    report.exact = bool(seen.verdict)
    for n, count in enumerate(seen.verdict):
        who = f"stream {n}: " if many else ""
        report.tokens += count["tokens"]
        report.lost += count["lost"]
        report.repeated += count["repeated"]
        report.exact = report.exact and count["exact"]
        if count["lost"] or count["repeated"]:
            problems.append(f"{who}{count['lost']} tokens lost, {count['repeated']} repeated")
        if not count["exact"]:
            at = count["differs_at"]
            place = f" from token {at} on" if at >= 0 else ""
            problems.append(f"{who}not what the uninterrupted run says{place}")
        if count["tokens"] != tokens:
            problems.append(f"{who}{count['tokens']} tokens where {tokens} were asked for")
        problems.extend(f"{who}{fault}" for fault in count["faults"])
    if len(seen.verdict) != len(seen.arrivals):
        problems.append(f"a verdict for {len(seen.verdict)} of {len(seen.arrivals)} streams")


def _measure(outcome: Outcome, seen: Seen, struck: Struck) -> None:
    report = outcome.report
    gaps: list[float | None] = []
    nets: list[float | None] = []
    prefills: list[float | None] = []
    detects: list[float | None] = []
    moved = 0
    for arrivals in seen.arrivals:
        subject = f"stream/{arrivals.id}"
        migrating = first(seen.events, "stream.migrating", subject)
        resumed = first(seen.events, "stream.resumed", subject)
        if migrating is None:
            continue
        moved += 1
        committed = int(number(migrating, "committed") or 0)
        gap, prefill = arrivals.gap_ms(struck.at, committed), number(resumed, "prefill_ms")
        at_ms = number(migrating, "at_ms")
        gaps.append(gap)
        prefills.append(prefill)
        nets.append(gap - prefill if gap is not None and prefill is not None else None)
        detects.append(at_ms - struck.at_ms if at_ms is not None else None)
        report.replayed_tokens += int(number(resumed, "replayed_tokens") or 0)
    report.gap_ms, report.net_gap_ms = worst(gaps), worst(nets)
    report.prefill_ms, report.detect_ms = worst(prefills), worst(detects)
    if not moved:
        outcome.problems.append("no stream was moved: the fault came too late, or nobody saw it")
    notice = seen.noticed.get(seen.before.launch)
    sent, last_at = seen.dispatched.get(seen.before.launch, (0, 0.0))
    known, _ = seen.dispatched_at_notice.get(seen.before.launch, (sent, 0.0))
    if notice is not None and last_at > notice[1]:
        # the moment when our own watch saw it is after the commit: what was sent later went to a launch known as dead
        report.requests_after_notice = max(1, sent - known)


def _timeline(seen: Seen, struck: Struck) -> list[str]:
    """Milliseconds from the fault on; clients' arrivals by the client's clock, the rest by the time in the record."""
    rows: list[tuple[float, str]] = [(0.0, struck.what + f" of group/{seen.before.group}")]
    arrivals = seen.arrivals[0]
    subject = f"stream/{arrivals.id}"
    migrating = first(seen.events, "stream.migrating", subject)
    resumed = first(seen.events, "stream.resumed", subject)
    if (found := seen.noticed.get(seen.before.launch)) is not None:
        notice = found[0]
        rows.append((notice.at_ms - struck.at_ms, f"fault notice for launch {notice.launch}: {notice.reason}"))
    if migrating is not None and (at := number(migrating, "at_ms")) is not None:
        term, attempt = migrating.fields.get("term"), migrating.fields.get("attempt")
        rows.append(
            (at - struck.at_ms, f"gateway froze the stream: new epoch ({term}, {attempt}); {migrating.message}")
        )
        committed = int(number(migrating, "committed") or 0)
        before = [t for total, t in arrivals.frames if total <= committed]
        after = [t for total, t in arrivals.frames if total > committed]
        if before:
            rows.append(
                ((before[-1] - struck.at) * 1000.0, f"client got token {committed}, the last of the old launch")
            )
        if after:
            rows.append(((after[0] - struck.at) * 1000.0, f"client got token {committed + 1}, the first of the new"))
    if resumed is not None and (at := number(resumed, "at_ms")) is not None:
        launch = resumed.fields.get("launch", "")
        prefill = number(resumed, "prefill_ms")
        replayed = resumed.fields.get("replayed_tokens")
        spent = f"prefill {prefill:.0f} ms, " if prefill is not None else ""
        rows.append((at - struck.at_ms, f"first new token, from launch {launch} ({spent}{replayed} tokens replayed)"))
    lines = [f"{at:>9.1f} ms  {what}" for at, what in sorted(rows)]
    if seen.after is not None and seen.after.launch != seen.before.launch:
        lines.append(f"            later  group/{seen.after.group} comes back as launch {seen.after.launch}, "
                     f"generation {seen.after.generation}")  # fmt: skip
    lines.append(f"            {seen.tally.served} of {seen.tally.sent} small requests sent meanwhile were served")
    return lines
