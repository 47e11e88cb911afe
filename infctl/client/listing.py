"""What `infctl get` and `describe` show: one snapshot, all of it read at one revision of the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from infctl.domain.errors import Compacted, NotFound
from infctl.ports.store import Store
from infctl.store.codec import BadRecord, Record, decode
from infctl.store.intent_records import Hold, Intent, IntentStatus
from infctl.store.keys import Keys
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
from infctl.view.documents import Doc
from infctl.view.kinds import Kind, nearest
from infctl.view.snapshot import Snapshot

R = TypeVar("R", bound=Record)

# which prefixes each kind is made from
_NEEDS: dict[Kind, tuple[str, ...]] = {
    Kind.NODE: ("nodes", "groups", "endpoints"),
    Kind.POOL: ("pools", "groups", "endpoints"),
    Kind.GROUP: ("groups", "endpoints", "faults", "nodes"),
    Kind.ENDPOINT: ("endpoints",),
    Kind.STREAM: ("streams",),
    Kind.GATEWAY: ("gateways",),
    Kind.EVENT: ("events",),
}
# what a description looks at, whatever it describes
EVERYTHING = (
    "nodes",
    "pools",
    "groups",
    "endpoints",
    "faults",
    "suspicions",
    "gateways",
    "streams",
    "intents",
    "events",
)
# gateways compact every minute: a slow reader may find its revision gone
_TRIES = 3


@dataclass(slots=True)
class _Filling:
    """A snapshot under construction, and the keys that did not decode."""

    snapshot: Snapshot
    bad: list[str] = field(default_factory=list)


async def read_snapshot(store: Store, keys: Keys, kinds: Iterable[Kind]) -> Snapshot:
    """Everything that the documents of `kinds` need, as it was at one revision. Raises StoreError."""
    return await read_prefixes(store, keys, tuple(dict.fromkeys(name for kind in kinds for name in _NEEDS[kind])))


async def read_prefixes(store: Store, keys: Keys, names: tuple[str, ...]) -> Snapshot:
    """The records under these prefixes of `Keys`, as they were at one revision. Raises StoreError."""
    for _ in range(_TRIES - 1):
        try:
            return await _read(store, keys, names)
        except Compacted:
            continue
    return await _read(store, keys, names)


async def _read(store: Store, keys: Keys, names: tuple[str, ...]) -> Snapshot:
    revision = 0
    filling = _Filling(Snapshot())
    for name in names:
        result = await store.range(getattr(keys, name), revision=revision)
        revision = revision or result.revision
        for kv in result.kvs:
            try:
                _put(filling.snapshot, keys.parts(kv.key), kv.value, kv.mod_revision)
            except BadRecord:
                filling.bad.append(kv.key)
    filling.snapshot.revision = revision
    filling.snapshot.unreadable = tuple(filling.bad)
    return filling.snapshot


def _put(s: Snapshot, parts: tuple[str, ...], value: bytes, revision: int) -> None:
    match parts:
        case ("nodes", name, "lease"):
            s.node_leases[name] = decode(NodeLease, value)
        case ("nodes", name, "status"):
            s.node_status[name] = decode(NodeStatus, value)
        case ("nodes", name, "spec"):
            s.node_specs[name] = decode(NodeSpec, value)
        case ("pools", name, "spec"):
            s.pools[name] = decode(PoolSpec, value)
        case ("pools", name, "answer"):
            s.answers[name] = decode(KnownAnswer, value)
        case ("groups", name, "spec"):
            s.groups[name] = decode(GroupSpec, value)
            s.spec_revisions[name] = revision
        case ("groups", name, "status"):
            s.group_status[name] = decode(GroupStatus, value)
        case ("groups", name, "hold"):
            s.holds[name] = decode(Hold, value)
        case ("groups", name, "generation"):
            s.generations[name] = decode(Generation, value)
        case ("groups", _, "launches", launch):
            s.launches[launch] = decode(LaunchRecord, value)
        case ("groups", _, "launches", launch, "plan"):
            s.plans[launch] = decode(LaunchPlan, value)
        case ("groups", _, "ranks", launch, host):
            s.parts.setdefault(launch, {})[host] = decode(RankPart, value)
        case ("endpoints", name):
            s.endpoints[name] = decode(EndpointRecord, value)
        case ("faults", name, launch):
            s.faults[(name, launch)] = decode(FaultNotice, value)
        case ("suspicions", name, launch, gateway):
            s.suspicions[(name, launch, gateway)] = decode(Suspicion, value)
        case ("streams", name):
            s.streams[name] = decode(StreamRecord, value)
        case ("gateways", name):
            s.gateways[name] = decode(GatewayRecord, value)
        case ("intents", name):
            s.intents[name] = decode(Intent, value)
        case ("intents", name, "status", executor):
            s.intent_status[(name, executor)] = decode(IntentStatus, value)
        case ("events", name):
            s.events[name] = decode(EventRecord, value)


def pick(documents: list[Doc], kind: Kind, names: list[str]) -> tuple[list[Doc], NotFound | None]:
    """The documents with these names, in the order asked for (all without names), and the error of those not there.

    The error is returned: who asks for five objects in an incident wants to see the four that exist.
    """
    if not names:
        return documents, None
    by_name = {str(d["metadata"]["name"]): d for d in documents}
    wanted = list(dict.fromkeys(names))
    found = [by_name[n] for n in wanted if n in by_name]
    missing = [n for n in wanted if n not in by_name]
    if not missing:
        return found, None
    near = nearest(missing[0], list(by_name))
    return found, NotFound(
        "\n".join(f"{kind.value}/{name} not found" for name in missing),
        hint=f"did you mean {kind.value}/{near}?" if near else f"infctl get {kind.plural}",
    )


def first_of(errors: Iterable[NotFound | None]) -> NotFound | None:
    """One error that names everything that is missing, with the hint of the first."""
    found = [error for error in errors if error is not None]
    if not found:
        return None
    return NotFound("\n".join(error.message for error in found), hint=found[0].hint)
