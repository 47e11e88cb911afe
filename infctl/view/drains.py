"""Draining, drained, cordoned: what holds a group or a node back on purpose, for every front end alike."""

from __future__ import annotations

from infctl.domain.intents import CLOSED
from infctl.store.intent_records import Intent, IntentStatus
from infctl.view.snapshot import Snapshot


def group_phase(s: Snapshot, name: str) -> str:
    """The owner's word, or what operators did where that says more."""
    status, hold, endpoint = s.group_status.get(name), s.holds.get(name), s.endpoints.get(name)
    if status is None:
        return ""
    if hold is not None and hold.state == "drained" and status.phase == "idle":
        return "drained"
    if endpoint is not None and endpoint.state == "draining" and status.phase == "ready":
        return "draining"
    return status.phase


def node_phase(s: Snapshot, name: str) -> str:
    """Of a node whose daemon is heard."""
    spec = s.node_specs.get(name)
    if spec is None or not spec.cordoned:
        return "Ready"
    if not spec.drain:
        return "Cordoned"
    groups = [g.name for g in s.groups.values() if g.node == name]
    return "Drained" if all(group_phase(s, g) == "drained" for g in groups) else "Draining"


def why_held(s: Snapshot, name: str) -> str:
    """Who holds the group back and why; empty where nobody does."""
    hold = s.holds.get(name)
    return f"by {hold.actor}{f': {hold.reason}' if hold.reason else ''}" if hold else ""


def open_intents(s: Snapshot, *targets: str) -> list[tuple[Intent, list[IntentStatus]]]:
    """Intents for these addresses that are not closed, oldest first, with what their executors said."""
    found = []
    for name, intent in sorted(s.intents.items()):
        words = [status for (of, _), status in sorted(s.intent_status.items()) if of == name]
        if intent.target in targets and not any(word.state in CLOSED for word in words):
            found.append((intent, words))
    return found


INTENT_HEADS = ("INTENT", "KIND", "TARGET", "BY", "STATE", "STREAMS", "WAITS FOR", "NEXT")


def intent_rows(s: Snapshot, *targets: str) -> list[tuple[str, ...]]:
    """One row for each group that an open intent is about."""
    rows: list[tuple[str, ...]] = []
    for intent, words in open_intents(s, *targets):
        head = (intent.intent, intent.kind, intent.target, intent.actor)
        lines = [line for word in words for line in word.groups]
        if not lines:
            rows.append((*head, words[0].state if words else "not taken up", "-", "-", "-"))
        for line in lines:
            then = f"{line.next} at {line.next_at}" if line.next else "-"
            rows.append(
                (*head, line.outcome or f"{line.group} {line.stage}", str(line.streams), line.waits_for or "-", then)
            )
    return rows
