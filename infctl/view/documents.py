"""From a snapshot to the documents that front ends show; nobody else works out a phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from infctl.view import models as m
from infctl.view.drains import group_phase, groups_on, node_phase, why_held
from infctl.view.group_models import ConditionView, FaultView, HostPartView
from infctl.view.hosts import HostPart, host_parts
from infctl.view.kinds import Kind
from infctl.view.snapshot import Snapshot
from infctl.view.specs import group_spec, pool_spec

Doc = dict[str, Any]
T = TypeVar("T")


def documents(snapshot: Snapshot, kind: Kind) -> list[Doc]:
    """Every object of one kind, by name (events by time)."""
    return [as_document(view) for view in _MAKERS[kind](snapshot)]


def as_document(view: m.AnyView) -> Doc:
    plain: Doc = msgspec.to_builtins(view)
    return {"apiVersion": plain.pop("apiVersion"), **plain}


def as_list(kind: Kind | None, items: list[Doc], revision: int | None) -> Doc:
    """The list document, also for one object, so that scripts see one form. `kind` None: several kinds."""
    title = kind.title if kind else ""
    return {"apiVersion": m.API_VERSION, "kind": f"{title}List", "metadata": {"revision": revision}, "items": items}


def kind_of(document: Doc) -> Kind:
    return Kind(str(document["kind"]).lower())


def _or_null(value: T) -> T | None:
    """Empty text and 0 stand for "not known" where a record has no other word for it."""
    return value if value not in ("", 0) else None


def _meta(name: str, created: str | None = None) -> m.Metadata:
    return m.Metadata(name=name, created_at=_or_null(created))


def _nodes(s: Snapshot) -> list[m.NodeView]:
    return [_node(s, name) for name in sorted({*s.node_leases, *s.node_status, *s.node_specs})]


def _node(s: Snapshot, name: str) -> m.NodeView:
    lease, status, spec = s.node_leases.get(name), s.node_status.get(name), s.node_specs.get(name)
    cordoned = spec.cordoned if spec else False
    phase = "NotResponding" if lease is None else node_phase(s, name)
    reason = "LeaseGone" if lease is None else (spec.reason if spec and cordoned else "")
    return m.NodeView(
        api_version=m.API_VERSION,
        metadata=_meta(name, lease.started_at if lease else None),
        spec=m.NodeSpecView(cordoned=cordoned, reason=spec.reason if spec else "", actor=spec.actor if spec else ""),
        status=m.NodeStatusView(
            phase=phase,
            reason=_or_null(reason),
            address=lease.address if lease else None,
            boot_id=lease.boot_id if lease else None,
            version=lease.version if lease else None,
            cpus=_or_null(status.cpus) if status else None,
            memory_bytes=_or_null(status.memory_bytes) if status else None,
            groups=groups_on(s, name),
            conditions=status.conditions if status else None,
            updated_at=_or_null(status.updated_at) if status else None,
        ),
    )


def _pools(s: Snapshot) -> list[m.PoolView]:
    found = []
    for name, pool in sorted(s.pools.items()):
        ready = [e for e in s.endpoints.values() if e.pool == name and e.state == "ready"]
        enough = len(ready) >= pool.min_ready
        found.append(
            m.PoolView(
                api_version=m.API_VERSION,
                metadata=_meta(name),
                spec=pool_spec(pool),
                status=m.PoolStatusView(
                    phase="Ready" if enough and ready else ("Degraded" if ready else "NotReady"),
                    groups=sum(g.pool == name for g in s.groups.values()),
                    ready=len(ready),
                    revisions=sorted({e.revision for e in ready}),
                ),
            )
        )
    return found


def _groups(s: Snapshot) -> list[m.GroupView]:
    return [_group(s, name) for name in sorted({*s.groups, *s.group_status, *s.generations})]


def _group(s: Snapshot, name: str) -> m.GroupView:
    spec, status, generation = s.groups.get(name), s.group_status.get(name), s.generations.get(name)
    endpoint = s.endpoints.get(name)
    faults = sorted((f for (g, _), f in s.faults.items() if g == name), key=lambda f: f.at_ms)
    wanted = s.spec_revisions.get(name)
    return m.GroupView(
        api_version=m.API_VERSION,
        metadata=_meta(name, generation.at if generation else None),
        spec=group_spec(spec) if spec else None,
        status=m.GroupStatusView(
            phase=group_phase(s, name).capitalize() if status else None,
            reason=_or_null(status.reason) if status else None,
            message=_or_null(status.message or why_held(s, name)) if status else None,
            hint=_or_null(status.hint) if status else None,
            owner_heard=status.node in s.node_leases if status else None,
            ready=endpoint is not None and endpoint.state == "ready",
            conditions=[
                ConditionView(
                    type=c.type,
                    status=c.status,
                    reason=_or_null(c.reason),
                    message=_or_null(c.message),
                    since=_or_null(c.since),
                )
                for c in status.conditions
            ]
            if status
            else None,
            generation=generation.generation if generation else None,
            launch=generation.launch if generation else None,
            pid=_or_null(status.pid) if status else None,
            processes=status.processes if status else None,
            restarts=status.restarts if status else None,
            hosts=[_host_part(part) for part in host_parts(s, name)],
            url=endpoint.url if endpoint else None,
            observed_spec=status.spec_revision == wanted if status and wanted and status.spec_revision else None,
            last_fault=FaultView(reason=faults[-1].reason, launch=faults[-1].launch, at=faults[-1].at)
            if faults
            else None,
            updated_at=_or_null(status.updated_at) if status else None,
        ),
    )


def _host_part(host: HostPart) -> HostPartView:
    part = host.part
    return HostPartView(
        node=host.node,
        node_rank=host.node_rank,
        heard=host.heard,
        state=part.state if part else None,
        message=_or_null(part.message) if part else None,
        ranks=part.ranks if part else None,
        wanted_ranks=host.wanted,
        pid=_or_null(part.pid) if part else None,
        gpus=list(host.gpus),
        since=_or_null(part.at) if part else None,
    )


def _endpoints(s: Snapshot) -> list[m.EndpointView]:
    return [
        m.EndpointView(
            api_version=m.API_VERSION,
            metadata=_meta(name, e.published_at),
            spec=None,
            status=m.EndpointStatusView(
                phase=e.state.capitalize(),
                pool=e.pool,
                node=e.node,
                generation=e.generation,
                launch=e.launch,
                url=e.url,
                model=e.model,
                revision=_or_null(e.revision),
                tokenizer_digest=_or_null(e.tokenizer_digest),
                context_length=e.context_length,
                vocab_size=e.vocab_size,
                max_running=e.max_running,
                max_queued=e.max_queued,
                deterministic=e.deterministic,
            ),
        )
        for name, e in sorted(s.endpoints.items())
    ]


def _streams(s: Snapshot) -> list[m.StreamView]:
    return [
        m.StreamView(
            api_version=m.API_VERSION,
            metadata=_meta(name, r.started_at),
            spec=None,
            status=m.StreamStatusView(
                phase=r.state,
                owner=r.owner,
                term=r.term,
                attempt=r.attempt,
                model=_or_null(r.model),
                contract=_or_null(r.contract),
                contract_reason=_or_null(r.contract_reason),
                group=_or_null(r.group),
                launch=_or_null(r.launch),
                prompt_tokens=r.prompt_tokens,
                committed_tokens=r.committed,
                migrations=r.migrations,
                replayed_tokens=r.replayed_tokens,
                finish_reason=_or_null(r.finish_reason),
                error=_or_null(r.error),
                detached=r.detached,
                deadline_at=_or_null(r.deadline_at),
                updated_at=_or_null(r.updated_at),
            ),
        )
        for name, r in sorted(s.streams.items())
    ]


def _gateways(s: Snapshot) -> list[m.GatewayView]:
    return [
        m.GatewayView(
            api_version=m.API_VERSION,
            metadata=_meta(name, g.started_at),
            spec=None,
            status=m.GatewayStatusView(
                phase="Ready",
                incarnation=g.incarnation,
                url=g.url,
                peer=_or_null(g.peer),
                admin=_or_null(g.stats.get("admin", "")),
                version=_or_null(g.version),
                streams=g.streams,
                queued=g.queued,
                snapshot_revision=_or_null(g.snapshot_revision),
                snapshot_age_seconds=round(g.snapshot_age_ms / 1000.0, 3),
                updated_at=_or_null(g.updated_at),
            ),
        )
        for name, g in sorted(s.gateways.items())
    ]


def _events(s: Snapshot) -> list[m.EventView]:
    return [
        m.EventView(
            api_version=m.API_VERSION,
            metadata=_meta(name, e.at),
            spec=None,
            status=m.EventStatusView(
                type=e.kind,
                subject=e.subject,
                actor=e.actor,
                reason=_or_null(e.reason),
                fault_id=_or_null(e.fault_id),
                message=_or_null(e.message),
                fields=e.fields,
            ),
        )
        for name, e in sorted(s.events.items(), key=lambda item: (item[1].at, item[0]))
    ]


_MAKERS: dict[Kind, Callable[[Snapshot], list[Any]]] = {
    Kind.NODE: _nodes,
    Kind.POOL: _pools,
    Kind.GROUP: _groups,
    Kind.ENDPOINT: _endpoints,
    Kind.STREAM: _streams,
    Kind.GATEWAY: _gateways,
    Kind.EVENT: _events,
}
