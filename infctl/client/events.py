"""Events of the cluster, oldest first: the raw material of timelines."""

from __future__ import annotations

from infctl.ports.store import Store
from infctl.store.codec import BadRecord, decode
from infctl.store.keys import Keys
from infctl.store.records import EventRecord


async def list_events(store: Store, keys: Keys, *, subject: str = "", since: str = "") -> list[EventRecord]:
    """Events about `subject` (all without one) at or after `since` (RFC 3339 UTC), in the order of their time."""
    result = await store.range(keys.events)
    found: list[EventRecord] = []
    for kv in result.kvs:
        try:
            event = decode(EventRecord, kv.value)
        except BadRecord:
            continue
        if (not subject or event.subject == subject) and event.at >= since:
            found.append(event)
    return sorted(found, key=lambda e: e.at)
