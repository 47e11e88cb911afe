"""One moment of the cluster, and the documents made from it. Front ends show these; they compute no state.

Documents are what `-o json` prints: `apiVersion`, `kind`, `metadata`, `spec`, `status`; camelCase; durations in
seconds with the unit in the name; what is not known is null, never left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from infctl.store.records import (
    EndpointRecord,
    EventRecord,
    FaultNotice,
    GatewayRecord,
    Generation,
    GroupSpec,
    GroupStatus,
    NodeLease,
    NodeSpec,
    NodeStatus,
    PoolSpec,
    StreamRecord,
)
from infctl.view.kinds import Kind

API_VERSION = "infctl/v1"

Doc = dict[str, Any]


@dataclass(slots=True)
class Snapshot:
    """Records by name, all as they were at `revision`. `unreadable` are keys whose value we could not decode."""

    revision: int = 0
    unreadable: tuple[str, ...] = ()
    node_leases: dict[str, NodeLease] = field(default_factory=dict)
    node_status: dict[str, NodeStatus] = field(default_factory=dict)
    node_specs: dict[str, NodeSpec] = field(default_factory=dict)
    pools: dict[str, PoolSpec] = field(default_factory=dict)
    groups: dict[str, GroupSpec] = field(default_factory=dict)
    spec_revisions: dict[str, int] = field(default_factory=dict)
    group_status: dict[str, GroupStatus] = field(default_factory=dict)
    generations: dict[str, Generation] = field(default_factory=dict)
    endpoints: dict[str, EndpointRecord] = field(default_factory=dict)
    faults: dict[tuple[str, str], FaultNotice] = field(default_factory=dict)
    streams: dict[str, StreamRecord] = field(default_factory=dict)
    gateways: dict[str, GatewayRecord] = field(default_factory=dict)
    events: dict[str, EventRecord] = field(default_factory=dict)


def documents(snapshot: Snapshot, kind: Kind) -> list[Doc]:
    """Every object of one kind, by name (events by time)."""
    return {
        Kind.NODE: _nodes,
        Kind.POOL: _pools,
        Kind.GROUP: _groups,
        Kind.ENDPOINT: _endpoints,
        Kind.STREAM: _streams,
        Kind.GATEWAY: _gateways,
        Kind.EVENT: _events,
    }[kind](snapshot)


def as_list(kind: Kind, items: list[Doc], revision: int) -> Doc:
    """The list document; a list also for one object, so that scripts see one form."""
    return {"apiVersion": API_VERSION, "kind": f"{kind.title}List", "metadata": {"revision": revision}, "items": items}


def _doc(kind: Kind, name: str, spec: Doc | None, status: Doc | None, created: str | None = None) -> Doc:
    return {
        "apiVersion": API_VERSION,
        "kind": kind.title,
        "metadata": {"name": name, "createdAt": created},
        "spec": spec,
        "status": status,
    }


def _or_null(value: Any) -> Any:
    """Empty text and 0 stand for "not known" where a record has no other word for it."""
    return value if value not in ("", 0) else None


def _nodes(s: Snapshot) -> list[Doc]:
    names = sorted({*s.node_leases, *s.node_status, *s.node_specs})
    return [_node(s, name) for name in names]


def _node(s: Snapshot, name: str) -> Doc:
    lease, status, spec = s.node_leases.get(name), s.node_status.get(name), s.node_specs.get(name)
    cordoned = spec.cordoned if spec else False
    phase = "NotResponding" if lease is None else ("Cordoned" if cordoned else "Ready")
    reason = "LeaseGone" if lease is None else (spec.reason if spec and cordoned else "")
    return _doc(
        Kind.NODE,
        name,
        {"cordoned": cordoned, "reason": spec.reason if spec else "", "actor": spec.actor if spec else ""},
        {
            "phase": phase,
            "reason": _or_null(reason),
            "address": lease.address if lease else None,
            "bootId": lease.boot_id if lease else None,
            "version": lease.version if lease else None,
            "cpus": _or_null(status.cpus) if status else None,
            "memoryBytes": _or_null(status.memory_bytes) if status else None,
            "groups": sorted(g.name for g in s.groups.values() if g.node == name),
            "conditions": status.conditions if status else None,
            "updatedAt": _or_null(status.updated_at) if status else None,
        },
        _or_null(lease.started_at) if lease else None,
    )


def _pools(s: Snapshot) -> list[Doc]:
    found = []
    for name, pool in sorted(s.pools.items()):
        members = [g for g in s.groups.values() if g.pool == name]
        ready = [e for e in s.endpoints.values() if e.pool == name and e.state == "ready"]
        enough = len(ready) >= pool.min_ready
        found.append(
            _doc(
                Kind.POOL,
                name,
                {
                    "model": pool.model,
                    "minReady": pool.min_ready,
                    "canary": {"prompt": pool.canary_prompt, "tokens": pool.canary_tokens},
                },
                {
                    "phase": "Ready" if enough and ready else ("Degraded" if ready else "NotReady"),
                    "groups": len(members),
                    "ready": len(ready),
                    "revisions": sorted({e.revision for e in ready}),
                },
            )
        )
    return found


def _groups(s: Snapshot) -> list[Doc]:
    names = sorted({*s.groups, *s.group_status, *s.generations})
    return [_group(s, name) for name in names]


def _group(s: Snapshot, name: str) -> Doc:
    spec, status, generation = s.groups.get(name), s.group_status.get(name), s.generations.get(name)
    endpoint = s.endpoints.get(name)
    faults = sorted((f for (g, _), f in s.faults.items() if g == name), key=lambda f: f.at_ms)
    wanted = s.spec_revisions.get(name)
    return _doc(
        Kind.GROUP,
        name,
        _group_spec(spec) if spec else None,
        {
            "phase": status.phase.capitalize() if status else None,
            "reason": _or_null(status.reason) if status else None,
            "message": _or_null(status.message) if status else None,
            "ready": endpoint is not None and endpoint.state == "ready",
            "generation": generation.generation if generation else None,
            "launch": generation.launch if generation else None,
            "pid": _or_null(status.pid) if status else None,
            "processes": status.processes if status else None,
            "restarts": status.restarts if status else None,
            "url": endpoint.url if endpoint else None,
            "observedSpec": status.spec_revision == wanted if status and wanted and status.spec_revision else None,
            "lastFault": {"reason": faults[-1].reason, "launch": faults[-1].launch, "at": faults[-1].at}
            if faults
            else None,
            "updatedAt": _or_null(status.updated_at) if status else None,
        },
        _or_null(generation.at) if generation else None,
    )


def _group_spec(spec: GroupSpec) -> Doc:
    restart = spec.restart
    return {
        "pool": spec.pool,
        "node": spec.node,
        "engine": spec.engine,
        "python": spec.python,
        "modelPath": spec.model_path,
        "tokenizer": spec.tokenizer,
        "revision": spec.revision,
        "tensorParallel": spec.tp,
        "maxRunning": spec.max_running,
        "maxQueued": spec.max_queued,
        "contextLength": spec.context_length,
        "deterministic": spec.deterministic,
        "port": spec.port,
        "engineArgs": list(spec.engine_args),
        "env": dict(spec.env),
        "restart": {
            "firstDelaySeconds": restart.first_delay,
            "maxDelaySeconds": restart.max_delay,
            "attempts": restart.attempts,
            "intervalSeconds": restart.interval,
            "loadDeadlineSeconds": restart.load_deadline,
            "canaryDeadlineSeconds": restart.canary_deadline,
        },
    }


def _endpoints(s: Snapshot) -> list[Doc]:
    return [
        _doc(
            Kind.ENDPOINT,
            name,
            None,
            {
                "phase": e.state.capitalize(),
                "pool": e.pool,
                "node": e.node,
                "generation": e.generation,
                "launch": e.launch,
                "url": e.url,
                "model": e.model,
                "revision": _or_null(e.revision),
                "tokenizerDigest": _or_null(e.tokenizer_digest),
                "contextLength": e.context_length,
                "vocabSize": e.vocab_size,
                "maxRunning": e.max_running,
                "maxQueued": e.max_queued,
                "deterministic": e.deterministic,
            },
            _or_null(e.published_at),
        )
        for name, e in sorted(s.endpoints.items())
    ]


def _streams(s: Snapshot) -> list[Doc]:
    return [
        _doc(
            Kind.STREAM,
            name,
            None,
            {
                "phase": r.state,
                "owner": r.owner,
                "term": r.term,
                "attempt": r.attempt,
                "model": _or_null(r.model),
                "contract": _or_null(r.contract),
                "contractReason": _or_null(r.contract_reason),
                "group": _or_null(r.group),
                "launch": _or_null(r.launch),
                "promptTokens": r.prompt_tokens,
                "committedTokens": r.committed,
                "migrations": r.migrations,
                "replayedTokens": r.replayed_tokens,
                "finishReason": _or_null(r.finish_reason),
                "error": _or_null(r.error),
                "detached": r.detached,
                "deadlineAt": _or_null(r.deadline_at),
                "updatedAt": _or_null(r.updated_at),
            },
            _or_null(r.started_at),
        )
        for name, r in sorted(s.streams.items())
    ]


def _gateways(s: Snapshot) -> list[Doc]:
    return [
        _doc(
            Kind.GATEWAY,
            name,
            None,
            {
                "phase": "Ready",
                "incarnation": g.incarnation,
                "url": g.url,
                "peer": _or_null(g.peer),
                "admin": _or_null(g.stats.get("admin", "")),
                "version": _or_null(g.version),
                "streams": g.streams,
                "queued": g.queued,
                "snapshotRevision": _or_null(g.snapshot_revision),
                "snapshotAgeSeconds": round(g.snapshot_age_ms / 1000.0, 3),
                "updatedAt": _or_null(g.updated_at),
            },
            _or_null(g.started_at),
        )
        for name, g in sorted(s.gateways.items())
    ]


def _events(s: Snapshot) -> list[Doc]:
    return [
        _doc(
            Kind.EVENT,
            name,
            None,
            {
                "type": e.kind,
                "subject": e.subject,
                "actor": e.actor,
                "reason": _or_null(e.reason),
                "faultId": _or_null(e.fault_id),
                "message": _or_null(e.message),
                "fields": e.fields,
            },
            e.at,
        )
        for name, e in sorted(s.events.items(), key=lambda item: (item[1].at, item[0]))
    ]
