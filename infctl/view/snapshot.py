"""One moment of the cluster: every record, by name, as it was at one revision of the store."""

from __future__ import annotations

from dataclasses import dataclass, field

from infctl.store.intent_records import Hold, Intent, IntentStatus
from infctl.store.records import (
    EndpointRecord,
    EventRecord,
    FaultNotice,
    GatewayRecord,
    Generation,
    GroupSpec,
    GroupStatus,
    KnownAnswer,
    LaunchPlan,
    LaunchRecord,
    NodeLease,
    NodeSpec,
    NodeStatus,
    PoolSpec,
    RankPart,
    StreamRecord,
    Suspicion,
)


@dataclass(slots=True)
class Snapshot:
    """Records by name, all as they were at `revision`. `unreadable` are keys whose value we could not decode."""

    revision: int = 0
    unreadable: tuple[str, ...] = ()
    node_leases: dict[str, NodeLease] = field(default_factory=dict)
    node_status: dict[str, NodeStatus] = field(default_factory=dict)
    node_specs: dict[str, NodeSpec] = field(default_factory=dict)
    pools: dict[str, PoolSpec] = field(default_factory=dict)
    answers: dict[str, KnownAnswer] = field(default_factory=dict)
    groups: dict[str, GroupSpec] = field(default_factory=dict)
    spec_revisions: dict[str, int] = field(default_factory=dict)
    group_status: dict[str, GroupStatus] = field(default_factory=dict)
    generations: dict[str, Generation] = field(default_factory=dict)
    launches: dict[str, LaunchRecord] = field(default_factory=dict)
    plans: dict[str, LaunchPlan] = field(default_factory=dict)
    # of launches over several hosts: by launch, then by host
    parts: dict[str, dict[str, RankPart]] = field(default_factory=dict)
    endpoints: dict[str, EndpointRecord] = field(default_factory=dict)
    faults: dict[tuple[str, str], FaultNotice] = field(default_factory=dict)
    suspicions: dict[tuple[str, str, str], Suspicion] = field(default_factory=dict)
    streams: dict[str, StreamRecord] = field(default_factory=dict)
    gateways: dict[str, GatewayRecord] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    intents: dict[str, Intent] = field(default_factory=dict)
    intent_status: dict[tuple[str, str], IntentStatus] = field(default_factory=dict)
    events: dict[str, EventRecord] = field(default_factory=dict)
