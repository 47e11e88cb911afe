"""Draining, drained, cordoned: what holds a group or a node back on purpose, for every front end alike."""

from __future__ import annotations

from collections.abc import Mapping

from infctl.domain.intents import CLOSED
from infctl.store.intent_records import Intent, IntentStatus
from infctl.view.snapshot import Snapshot

AT_REST = frozenset({"idle", "drained", "failed"})  # nothing of it runs on any host


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
    return "Drained" if all(group_phase(s, g) in AT_REST for g in groups_on(s, name)) else "Draining"


def groups_on(s: Snapshot, node: str) -> list[str]:
    """Groups with a part on the node, as they are wanted or as they run, whoever owns them."""
    wanted = {g.name for g in s.groups.values() if any(host.node == node for host in g.placement)}
    run = {hosts[node].group for hosts in s.parts.values() if node in hosts}
    return sorted(wanted | (run & s.groups.keys()))


def executors(s: Snapshot, node: str) -> list[str]:
    """Whose daemons carry out a drain of the node and its undrain: itself, and the owners of groups with a part there.

    Also of groups that its drain still holds, wherever they are wanted by now.
    """
    groups = {*groups_on(s, node), *(g for g, hold in s.holds.items() if hold.by == f"node/{node}" and g in s.groups)}
    return [node, *sorted({s.groups[group].node for group in groups} - {node})]


def why_held(s: Snapshot, name: str) -> str:
    """Who holds the group back and why; empty where nobody does."""
    hold = s.holds.get(name)
    return f"by {hold.actor}{f': {hold.reason}' if hold.reason else ''}" if hold else ""


def open_intents(s: Snapshot, *targets: str) -> list[tuple[Intent, list[IntentStatus]]]:
    """Intents for these addresses that are not closed, oldest first, with what their executors said."""
    found = []
    for name, intent in sorted(s.intents.items()):
        words = {executor: status for (of, executor), status in sorted(s.intent_status.items()) if of == name}
        if intent.target in targets and not is_over(intent, words):
            found.append((intent, list(words.values())))
    return found


def is_over(intent: Intent, words: Mapping[str, IntentStatus]) -> bool:
    """Every executor has said its last word; `words` are by executor. Where the intent names none, one is enough."""
    closed = {executor for executor, word in words.items() if word.state in CLOSED}
    return closed.issuperset(intent.executors) if intent.executors else bool(closed)


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
        away = [f"node/{node}" for node in intent.executors if all(word.executor != f"node/{node}" for word in words)]
        if away and lines:
            rows.append((*head, "not taken up", "-", ", ".join(away), "-"))
    return rows
