"""What the values under `store.keys` hold. Field names are the ones in etcd (snake_case); times are RFC 3339 UTC.

Durations are seconds unless the name ends in `_ms`. Adding a field with a default is compatible; anything else
raises `v`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from infctl.store.codec import Record


class NodeLease(Record, frozen=True, kw_only=True):
    """`nodes/<node>/lease`, leased by the daemon. `address` is the URL of its read-only API, `engines_at` the IP
    address that its engines listen on."""

    node: str
    boot_id: str
    incarnation: str
    address: str = ""
    engines_at: str = ""
    version: str = ""
    started_at: str = ""


class NodeStatus(Record, frozen=True, kw_only=True):
    """`nodes/<node>/status`, durable."""

    node: str
    cpus: int = 0
    memory_bytes: int = 0
    groups: list[str] = msgspec.field(default_factory=list)
    conditions: list[dict[str, Any]] = msgspec.field(default_factory=list)
    updated_at: str = ""


class NodeSpec(Record, frozen=True, kw_only=True):
    """`nodes/<node>/spec`, durable, written by infctl."""

    cordoned: bool = False
    reason: str = ""
    actor: str = ""
    # the intent that drained it; its groups are held as long as this stands
    drain: str = ""


class PoolSpec(Record, frozen=True, kw_only=True):
    """`pools/<p>/spec`: `model` is the name clients ask for.

    `disruptions`: how many of its groups may be down on purpose at once. `recovery_tokens`: how many tokens may be
    prefilled again after faults at once (R8); 0: as many as its largest group holds. `canary_answer` is the
    operator's own word on the answer, of the revision `canary_revision` alone where that is not empty.
    """

    name: str
    model: str
    min_ready: int = 1
    disruptions: int = 1
    recovery_tokens: int = 0
    canary_prompt: str = "The quick brown fox jumps over"
    canary_tokens: int = 8
    canary_answer: list[int] = msgspec.field(default_factory=list)
    canary_revision: str = ""


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """What one group answered last."""

    group: str
    output_ids: list[int]
    at: str = ""


class KnownAnswer(Record, frozen=True, kw_only=True):
    """`pools/<p>/answer`: what the canary must give, for one model revision and prompt.

    `output_ids` is provisional until two groups or the operator have said it. `voices` gave it, `refused` gave others.
    """

    revision: str
    input_ids: list[int]
    output_ids: list[int]
    confirmed: bool = False
    by_operator: bool = False
    voices: list[Voice] = msgspec.field(default_factory=list)
    refused: list[Voice] = msgspec.field(default_factory=list)
    recorded_by: str = ""
    recorded_at: str = ""


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    first_delay: float = 2.0
    max_delay: float = 60.0
    attempts: int = 5
    interval: float = 600.0
    load_deadline: float = 900.0
    canary_deadline: float = 60.0


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """Instants of a drain from its start: hand over from `hand_over`, SIGTERM at `sigterm`, SIGKILL at `deadline`.

    `kill_grace` is the time between the two signals, also where a group is stopped without a drain.
    """

    hand_over: float = 120.0
    deadline: float = 900.0
    kill_grace: float = 30.0

    @property
    def sigterm(self) -> float:
        return self.deadline - self.kill_grace


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One host's part of a group: its GPUs by UUID or by index, in the order of its ranks; none named: not pinned."""

    node: str
    gpus: list[str] = msgspec.field(default_factory=list)


class GroupSpec(Record, frozen=True, kw_only=True):
    """`groups/<g>/spec`: one worker group. `engine` is "sglang" or "sim"; `python` the interpreter that has it.

    `node` is the owner, the host of node-rank 0. `hosts` is empty for one host whose GPUs are not named.
    """

    name: str
    pool: str
    node: str
    hosts: list[Host] = msgspec.field(default_factory=list)
    role: str = "unified"
    engine: str = "sglang"
    python: str = ""
    model_path: str
    tokenizer: str = ""
    revision: str = ""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    max_running: int
    max_queued: int
    context_length: int = 0
    deterministic: bool = False
    port: int = 0
    engine_args: list[str] = msgspec.field(default_factory=list)
    env: dict[str, str] = msgspec.field(default_factory=dict)
    restart: Restart = msgspec.field(default_factory=Restart)
    drain: Drain = msgspec.field(default_factory=Drain)

    @property
    def ranks(self) -> int:
        """Scheduler processes of the whole group, one for each GPU. Expert parallelism adds none."""
        return self.tp * self.pp * self.dp

    @property
    def ranks_per_host(self) -> int:
        return self.ranks // len(self.placement)

    @property
    def placement(self) -> tuple[Host, ...]:
        """Every host, the owner first."""
        return tuple(self.hosts) or (Host(node=self.node),)


class Generation(Record, frozen=True, kw_only=True):
    """`groups/<g>/generation`: the highest generation ever and the launch it registers. Never deleted (R1)."""

    generation: int
    launch: str
    owner: str = ""
    at: str = ""


class LaunchRecord(Record, frozen=True, kw_only=True):
    """`groups/<g>/launches/<launch>`."""

    launch: str
    group: str
    node: str
    tp: int = 1
    started_at: str = ""
    ended_at: str = ""
    ended_by: str = ""
    ended_why: str = ""


class LaunchPlan(Record, frozen=True, kw_only=True):
    """`groups/<g>/launches/<launch>/plan`, durable until the launch is replaced: what every host of it starts.

    `leader` is the IP address of node-rank 0, whose engine answers at `url`; its ranks meet at `rendezvous` there.
    """

    launch: str
    group: str
    owner: str
    spec: GroupSpec
    served_model: str
    revision: str
    leader: str
    rendezvous: int
    url: str
    at: str = ""


class RankPart(Record, frozen=True, kw_only=True):
    """`groups/<g>/ranks/<launch>/<node>`, leased by that host: its part of a launch over several hosts.

    `state` is waiting, loading, loaded or stuck; `ranks` were seen of the `wanted` ones.
    """

    launch: str
    group: str
    node: str
    node_rank: int
    state: str
    pid: int = 0
    ranks: int = 0
    wanted: int = 0
    message: str = ""
    at: str = ""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One answer about a group's health since `since`: `status` is True, False or Unknown, as text."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: str = ""


class GroupStatus(Record, frozen=True, kw_only=True):
    """`groups/<g>/status`: the owner's last word on its group. `hint`: what helps, or what makes it begin again."""

    group: str
    node: str
    phase: str
    generation: int = 0
    launch: str = ""
    pid: int = 0
    processes: int = 0
    restarts: int = 0
    reason: str = ""
    message: str = ""
    hint: str = ""
    conditions: list[Condition] = msgspec.field(default_factory=list)
    spec_revision: int = 0
    updated_at: str = ""


class EndpointRecord(Record, frozen=True, kw_only=True):
    """`endpoints/<g>`, leased and written by the owner only. `read_api` is the URL of its daemon's read-only API."""

    group: str
    pool: str
    node: str
    generation: int
    launch: str
    url: str
    model: str
    revision: str
    tokenizer: str
    tokenizer_digest: str
    context_length: int
    vocab_size: int
    eos_ids: list[int] = msgspec.field(default_factory=list)
    sampling_defaults: dict[str, float] = msgspec.field(default_factory=dict)
    max_running: int
    max_queued: int
    state: str = "ready"
    deterministic: bool = False
    read_api: str = ""
    published_at: str = ""


class Secret(Record, frozen=True, kw_only=True):
    """`secrets/<g>`: the key of one launch's engine."""

    launch: str
    api_key: str


class FaultNotice(Record, frozen=True, kw_only=True):
    """`faults/<g>/<launch>`: this launch is over; its streams move at once. `at_ms` is epoch milliseconds."""

    fault_id: str
    group: str
    launch: str
    generation: int
    reason: str
    evidence: str = ""
    by: str = ""
    at: str = ""
    at_ms: float = 0.0


class Suspicion(Record, frozen=True, kw_only=True):
    """`suspicions/<g>/<launch>/<gw>`: what a gateway saw on the data path."""

    group: str
    launch: str
    gateway: str
    kind: str
    why: str = ""
    at: str = ""


class LaunchLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway has on one launch: running streams, their tokens so far, and since when the oldest runs."""

    streams: int = 0
    tokens: int = 0
    oldest_at_ms: float = 0.0


class GatewayRecord(Record, frozen=True, kw_only=True):
    """`gateways/<gw>`, leased; refreshed every 2 s."""

    gateway: str
    incarnation: str
    url: str
    peer: str = ""
    version: str = ""
    streams: int = 0
    queued: int = 0
    snapshot_revision: int = 0
    snapshot_age_ms: float = 0.0
    # every change of an endpoint up to this revision is in the gateway's routing table
    endpoints_revision: int = 0
    launches: dict[str, LaunchLoad] = msgspec.field(default_factory=dict)
    started_at: str = ""
    updated_at: str = ""
    stats: dict[str, Any] = msgspec.field(default_factory=dict)


class StreamRecord(Record, frozen=True, kw_only=True):
    """`streams/<id>`: written at admission, at each change of epoch and at the end. `chain` is [(term, upto)]."""

    stream: str
    owner: str
    term: int
    attempt: int
    state: str
    model: str = ""
    contract: str = ""
    contract_reason: str = ""
    rid: str = ""
    group: str = ""
    launch: str = ""
    prompt_tokens: int = 0
    committed: int = 0
    migrations: int = 0
    replayed_tokens: int = 0
    finish_reason: str = ""
    error: str = ""
    detached: bool = False
    chain: list[tuple[int, int]] = msgspec.field(default_factory=list)
    started_at: str = ""
    updated_at: str = ""
    deadline_at: str = ""


class EventRecord(Record, frozen=True, kw_only=True):
    """`events/<id>`: what happened, to whom, why and by whom. `subject` is an address such as `group/a`."""

    at: str
    kind: str
    subject: str
    actor: str
    reason: str = ""
    fault_id: str = ""
    message: str = ""
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
