"""The demo's verdict is a function of what was seen: what speaks against the promise is named, nothing is guessed."""

from __future__ import annotations

from typing import Any

import pytest

from infctl.client.demo.fault import Struck
from infctl.client.demo.findings import Seen, Side, assemble
from infctl.client.demo.report import Arrivals
from infctl.store.records import EventRecord, FaultNotice

BEFORE, AFTER = Side("a", "a-old", 1), Side("a", "a-new", 2)
GOOD: dict[str, Any] = {"tokens": 20, "lost": 0, "repeated": 0, "exact": True, "differs_at": -1, "faults": []}


def event(kind: str, **fields: Any) -> EventRecord:
    return EventRecord(at="t", kind=kind, subject="stream/r1", actor="gateway/g", fields=fields)


def seen(**verdict: Any) -> Seen:
    """Tokens every 50 ms; the fault after the tenth at 0.5 s; the eleventh at 0.80 s."""
    frames = [(i + 1, 0.05 * (i + 1)) for i in range(10)] + [(11 + i, 0.80 + 0.05 * i) for i in range(10)]
    found = Seen([Arrivals("r1", frames)], [{**GOOD, **verdict}], BEFORE, Struck("SIGKILL", 0.51, 1000.0), AFTER)
    found.events = [
        event("stream.migrating", at_ms=1012.0, committed=10, term=1, attempt=2),
        event("stream.resumed", at_ms=1100.0, prefill_ms=40.0, replayed_tokens=15, launch="b-x"),
    ]
    notice = FaultNotice(fault_id="f", group="a", launch="a-old", generation=1, reason="process-exited", at_ms=1005.0)
    found.noticed = {"a-old": (notice, 1010.0)}
    found.dispatched = {"a-old": (5, 1004.0)}
    return found


def test_a_kept_promise() -> None:
    outcome = assemble("sim", "kill-rank", 20, seen())
    assert outcome.kept
    report = outcome.report.to_dict()
    assert report == {
        "engine": "sim", "fault": "kill-rank", "tokens": 20, "lost": 0, "repeated": 0, "exact": True,
        "gap_ms": 250.0, "net_gap_ms": 210.0, "prefill_ms": 40.0, "detect_ms": 12.0, "replayed_tokens": 15,
        "launch_before": "a-old", "launch_after": "a-new", "generation_before": 1, "generation_after": 2,
        "requests_after_notice": 0,
    }  # fmt: skip
    assert [float(line.split()[0]) for line in outcome.timeline[:6]] == [-10.0, 0.0, 5.0, 12.0, 100.0, 290.0]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ({"lost": 1, "exact": False}, "1 tokens lost"),
        ({"repeated": 2, "exact": False}, "2 repeated"),
        ({"exact": False, "differs_at": 12}, "from token 12 on"),
        ({"tokens": 21}, "21 tokens where 20 were asked for"),
        ({"faults": ["the stream ended without [DONE]"]}, "without [DONE]"),
    ],
)
def test_each_thing_that_speaks_against_it(verdict: dict[str, Any], words: str) -> None:
    outcome = assemble("sim", "kill-rank", 20, seen(**verdict))
    assert not outcome.kept
    assert any(words in problem for problem in outcome.problems)


def test_no_verdict_and_no_migration_are_no_success() -> None:
    nothing = seen()
    nothing.verdict = []
    assert not assemble("sim", "kill-rank", 20, nothing).kept
    unmoved = seen()
    unmoved.events = []
    outcome = assemble("sim", "kill-rank", 20, unmoved)
    assert any("no stream was moved" in p for p in outcome.problems)
    assert outcome.report.gap_ms is None


def test_requests_after_the_notice_are_counted() -> None:
    late = seen()
    late.dispatched_at_notice = {"a-old": (5, 1004.0)}
    late.dispatched = {"a-old": (8, 1100.0)}
    assert assemble("sim", "kill-rank", 20, late).report.requests_after_notice == 3
    late.dispatched_at_notice = {}
    assert assemble("sim", "kill-rank", 20, late).report.requests_after_notice == 1
