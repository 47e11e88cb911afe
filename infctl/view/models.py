"""The documents that `-o json|yaml` prints, as types: the schemas under `view/schemas` are made from them.

Kept true: camelCase; durations in seconds with the unit in the name; times RFC 3339 UTC; every field is always there,
null where it is not known. Fields are only ever added.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from infctl.view.group_models import ConditionView, FaultView, HostPartView
from infctl.view.kinds import Kind
from infctl.view.part import View
from infctl.view.specs import GroupSpecView, PoolSpecView

ApiVersion: TypeAlias = Literal["infctl/v1"]
API_VERSION: ApiVersion = "infctl/v1"


class Metadata(View, frozen=True, kw_only=True):
    """`createdAt` is null where nobody knows it."""

    name: str
    created_at: str | None


class ListMetadata(View, frozen=True, kw_only=True):
    """`revision`: the revision of the store at which all items were read; null where it is not known."""

    revision: int | None


class NodeSpecView(View, frozen=True, kw_only=True):
    """What operators want of a node."""

    cordoned: bool
    reason: str
    actor: str


class NodeStatusView(View, frozen=True, kw_only=True):
    """`phase`: Ready, Cordoned, Draining, Drained, or NotResponding: the daemon's lease is gone, which says nothing of
    its groups.
    """

    phase: str
    reason: str | None
    address: str | None
    boot_id: str | None
    version: str | None
    cpus: int | None
    memory_bytes: int | None
    groups: list[str]
    conditions: list[dict[str, Any]] | None
    updated_at: str | None


class NodeView(View, frozen=True, kw_only=True, tag_field="kind", tag="Node"):
    """A host with a node daemon."""

    api_version: ApiVersion
    metadata: Metadata
    spec: NodeSpecView
    status: NodeStatusView


class PoolStatusView(View, frozen=True, kw_only=True):
    """`phase`: Ready, Degraded (some ready, fewer than minReady) or NotReady. `revisions` are those served now."""

    phase: str
    groups: int
    ready: int
    revisions: list[str]


class PoolView(View, frozen=True, kw_only=True, tag_field="kind", tag="Pool"):
    """The groups that serve one model."""

    api_version: ApiVersion
    metadata: Metadata
    spec: PoolSpecView
    status: PoolStatusView


class GroupStatusView(View, frozen=True, kw_only=True):
    """What the owner, the daemon of its node, said last. `hint`: what helps.

    `ready`: an endpoint is there that takes new requests. `ownerHeard`: the owner's lease is alive; where it is not,
    `phase` is of the past. `observedSpec`: the owner knows the newest spec. `hosts`: those of the registered launch,
    the owner first; empty for a group of one host. `pid` and `processes` are those of the owner's host.
    """

    phase: str | None
    reason: str | None
    message: str | None
    hint: str | None
    ready: bool
    conditions: list[ConditionView] | None
    owner_heard: bool | None
    generation: int | None
    launch: str | None
    pid: int | None
    processes: int | None
    restarts: int | None
    hosts: list[HostPartView]
    url: str | None
    observed_spec: bool | None
    last_fault: FaultView | None
    updated_at: str | None


class GroupView(View, frozen=True, kw_only=True, tag_field="kind", tag="Group"):
    """One engine instance with all its ranks. `spec` is null where a group that was removed left records behind."""

    api_version: ApiVersion
    metadata: Metadata
    spec: GroupSpecView | None
    status: GroupStatusView


class EndpointStatusView(View, frozen=True, kw_only=True):
    """`phase`: Ready, Suspect (the last resort), Unfit or Draining (no new requests). The highest generation counts."""

    phase: str
    pool: str
    node: str
    generation: int
    launch: str
    url: str
    model: str
    revision: str | None
    tokenizer_digest: str | None
    context_length: int
    vocab_size: int
    max_running: int
    max_queued: int
    deterministic: bool


class EndpointView(View, frozen=True, kw_only=True, tag_field="kind", tag="Endpoint"):
    """A launch that takes requests; written by the owner of the group only."""

    api_version: ApiVersion
    metadata: Metadata
    spec: None
    status: EndpointStatusView


class StreamStatusView(View, frozen=True, kw_only=True):
    """`term` and `attempt` are the epoch. Tokens are those of the last record, written when the epoch changes."""

    phase: str
    owner: str
    term: int
    attempt: int
    model: str | None
    contract: str | None
    contract_reason: str | None
    group: str | None
    launch: str | None
    prompt_tokens: int
    committed_tokens: int
    migrations: int
    replayed_tokens: int
    finish_reason: str | None
    error: str | None
    detached: bool
    deadline_at: str | None
    updated_at: str | None


class StreamView(View, frozen=True, kw_only=True, tag_field="kind", tag="Stream"):
    """One request of a client, across every worker it was on."""

    api_version: ApiVersion
    metadata: Metadata
    spec: None
    status: StreamStatusView


class GatewayStatusView(View, frozen=True, kw_only=True):
    """`snapshotAgeSeconds`: how old the gateway's picture of the cluster was when it last wrote."""

    phase: str
    incarnation: str
    url: str
    peer: str | None
    admin: str | None
    version: str | None
    streams: int
    queued: int
    snapshot_revision: int | None
    snapshot_age_seconds: float
    updated_at: str | None


class GatewayView(View, frozen=True, kw_only=True, tag_field="kind", tag="Gateway"):
    """A frontend process."""

    api_version: ApiVersion
    metadata: Metadata
    spec: None
    status: GatewayStatusView


class EventStatusView(View, frozen=True, kw_only=True):
    """`subject` and `actor` are addresses such as `group/a`. Inside `fields` names are snake_case."""

    type: str
    subject: str
    actor: str
    reason: str | None
    fault_id: str | None
    message: str | None
    fields: dict[str, Any]


class EventView(View, frozen=True, kw_only=True, tag_field="kind", tag="Event"):
    """What happened, to whom, why and by whom; kept for some minutes."""

    api_version: ApiVersion
    metadata: Metadata
    spec: None
    status: EventStatusView


AnyView: TypeAlias = NodeView | PoolView | GroupView | EndpointView | StreamView | GatewayView | EventView


class VersionView(View, frozen=True, kw_only=True, tag_field="kind", tag="Version"):
    """`infctl version -o json`."""

    api_version: ApiVersion
    version: str
    python: str
    platform: str


class ChangeView(View, frozen=True, kw_only=True):
    """One field that differs; null where it is not there. `takesEffect`: now, next-launch or moves-the-group."""

    field: str
    before: Any
    after: Any
    takes_effect: str


class DiffView(View, frozen=True, kw_only=True, tag_field="kind", tag="Diff"):
    """What applying a document would do. `outcome`: created, configured or unchanged."""

    api_version: ApiVersion
    address: str
    outcome: str
    changes: list[ChangeView]


class EtcdTlsView(View, frozen=True, kw_only=True):
    """Paths of PEM files, never what is in them; null where none is given."""

    ca: str | None
    cert: str | None
    key: str | None
    server_name: str | None


class ContextSpecView(View, frozen=True, kw_only=True):
    """Where a cluster is. `etcdTls` is null where no TLS files are given, `readTokenFile` where no token is."""

    endpoints: list[str]
    cluster: str
    etcd_tls: EtcdTlsView | None
    read_token_file: str | None


class ContextStatusView(View, frozen=True, kw_only=True):
    """`current`: chosen in the file; flags and the environment may still say otherwise."""

    current: bool


class ContextView(View, frozen=True, kw_only=True, tag_field="kind", tag="Context"):
    """A cluster that the command line knows."""

    api_version: ApiVersion
    metadata: Metadata
    spec: ContextSpecView
    status: ContextStatusView


class EffectiveView(View, frozen=True, kw_only=True):
    """The cluster a command would speak to now, and what says so."""

    endpoints: list[str]
    cluster: str
    origin: str
    etcd_tls: EtcdTlsView | None
    read_token_file: str | None


class ConfigView(View, frozen=True, kw_only=True, tag_field="kind", tag="Config"):
    """`infctl config view -o json`. `effective` is null where no cluster is chosen."""

    api_version: ApiVersion
    path: str
    current_context: str | None
    contexts: list[ContextView]
    effective: EffectiveView | None


OF_KIND: dict[Kind, type[AnyView]] = {
    Kind.NODE: NodeView,
    Kind.POOL: PoolView,
    Kind.GROUP: GroupView,
    Kind.ENDPOINT: EndpointView,
    Kind.STREAM: StreamView,
    Kind.GATEWAY: GatewayView,
    Kind.EVENT: EventView,
}
