"""What `/ready` says: whether new requests are served now, and on whose word."""

from __future__ import annotations

from typing import Any

from infctl_daemon.gateway.fleet import Fleet


def store_state(fleet: Fleet) -> str:
    if fleet.replaced:
        return "replaced"
    return "away" if fleet.away or fleet.source != "store" else "ok"


def readiness(fleet: Fleet, now: float) -> tuple[dict[str, Any], int]:
    """The body and its status: 200 when the table was read and some group is ready; 503 says what is missing."""
    groups = sorted(e.group for e in fleet.endpoints())
    known = fleet.ready.is_set()
    reason = None if groups else ("no group is ready" if known else "store not read yet")
    if not groups and fleet.source == "snapshot":
        reason = "from snapshot: no worker in it has answered a probe"
    body = {
        "ready": bool(known and groups),
        "groups": groups,
        "store": store_state(fleet),
        "from_snapshot": fleet.source == "snapshot",
        "snapshot_revision": fleet.revision,
        "snapshot_age_ms": round((now - fleet.fresh_at) * 1000.0, 1) if known else None,
        "reason": reason,
    }
    if fleet.replaced:
        body["store_replaced"] = fleet.replaced
    return body, 200 if body["ready"] else 503
