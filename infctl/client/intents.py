"""Intents as infctl writes and follows them: what is wanted goes into etcd, what becomes of it comes back from there.

Kept true: infctl makes no daemon do anything directly, so whoever stops following stops nothing; an intent names the
generation that the operator's view had, and the moment after which nobody may begin it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from infctl.client.apply import actor
from infctl.client.listing import read_prefixes
from infctl.client.outcome import node_of
from infctl.domain.errors import Conflict, NotFound, StoreError
from infctl.domain.intents import IntentKind, State
from infctl.ports.store import Compare, Events, Get, Put, Relist, Store
from infctl.store.codec import decode, decode_stored, encode
from infctl.store.intent_records import Intent, IntentStatus
from infctl.store.keys import Keys
from infctl.store.records import EventRecord, Generation, GroupSpec, NodeSpec
from infctl.store.stamp import event_id, intent_id, now_ms, now_text
from infctl.view.drains import executors, is_over

NOT_AFTER = 600.0
KEPT = 6 * 3600.0
BY_INFCTL = "@infctl"
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Written:
    """An intent that is in the store; `executors` are the nodes whose daemons carry it out."""

    intent: Intent
    executors: tuple[str, ...]
    revision: int


async def write_intent(
    store: Store, keys: Keys, kind: IntentKind, target: str, *, reason: str = "", parameters: dict[str, Any]
) -> Written:
    """Write what is wanted of `group/x` or `node/n`. Raises NotFound and StoreError."""
    what, _, name = target.partition("/")
    generation, nodes = 0, [name]
    if what == "group":
        seen = await store.txn([], [Get(keys.group_spec(name)), Get(keys.group_generation(name))])
        if not seen.gets[0]:
            raise NotFound(f"{target} not found", hint="infctl get groups")
        nodes = [decode(GroupSpec, seen.gets[0][0].value).node]
        if seen.gets[1]:
            generation = decode(Generation, seen.gets[1][0].value).generation
    else:
        await _check_node(store, keys, name)
        nodes = executors(await read_prefixes(store, keys, ("groups",)), name)
    intent = Intent(
        intent=intent_id(),
        kind=str(kind),
        target=target,
        generation=generation,
        actor=actor(),
        reason=reason,
        at=now_text(),
        not_after_ms=now_ms() + NOT_AFTER * 1000.0,
        executors=nodes if what == "node" else [],
        parameters=parameters,
    )
    revision = await store.put(keys.intent(intent.intent), encode(intent))
    return Written(intent, tuple(nodes), revision)


async def _check_node(store: Store, keys: Keys, name: str) -> None:
    seen = await store.txn([], [Get(keys.node_lease(name)), Get(keys.node_status(name)), Get(keys.node_spec(name))])
    if not any(seen.gets):
        raise NotFound(f"node/{name} not found", hint="infctl get nodes")


async def unheard(store: Store, keys: Keys, nodes: Iterable[str]) -> list[str]:
    """Those of the nodes whose daemons are not there to carry anything out."""
    return [node for node in nodes if await store.get(keys.node_lease(node)) is None]


async def follow(store: Store, keys: Keys, written: Written) -> AsyncIterator[IntentStatus]:
    """Every status of the intent as it is written, until all of its executors have closed theirs."""
    said: dict[str, IntentStatus] = {}
    watch = store.watch(keys.intent_statuses(written.intent.intent), start_revision=written.revision)
    try:
        async for item in watch:
            values: list[bytes | None] = []
            if isinstance(item, Events):
                values = [event.value for event in item.events]
            elif isinstance(item, Relist):
                values = [kv.value for kv in item.kvs]
            for value in values:
                if value is None:
                    continue
                status = decode(IntentStatus, value)
                said[node_of(status)] = status
                yield status
                if is_over(written.intent, said):
                    return
    finally:
        if (close := getattr(watch, "aclose", None)) is not None:
            await close()


@dataclass(frozen=True, slots=True)
class Cordoned:
    """What became of a cordon or uncordon; `drained`: groups of the node stay held by its drain."""

    changed: bool
    drained: bool = False


async def set_cordon(store: Store, keys: Keys, node: str, *, cordoned: bool, reason: str = "") -> Cordoned:
    """Write the node's record, and the intent that is done with it, in one transaction.

    A cordon is a wish about a record of ours: it holds at once, also while the node's daemon is away. Raises NotFound,
    Conflict and StoreError.
    """
    await _check_node(store, keys, node)
    kind = IntentKind.CORDON if cordoned else IntentKind.UNCORDON
    key = keys.node_spec(node)
    who = actor()
    for _ in range(_TRIES):
        kv = await store.get(key)
        stored = decode_stored(NodeSpec, kv.value if kv else encode(NodeSpec()), kv.mod_revision if kv else 0)
        if stored.record.cordoned == cordoned:
            return Cordoned(False, bool(stored.record.drain))
        spec = msgspec.structs.replace(stored.record, cordoned=cordoned, reason=reason, actor=who)
        address = f"node/{node}"
        intent = Intent(intent=intent_id(), kind=str(kind), target=address, actor=who, reason=reason, at=now_text())
        status = IntentStatus(
            intent=intent.intent, executor="infctl", state=str(State.DONE), outcome=f"{kind}ed", updated_at=intent.at
        )
        lease = (await store.grant(KEPT)).id
        done = await store.txn(
            [Compare.unchanged(key, stored.mod_revision)],
            [
                Put(key, stored.encode(spec)),
                Put(keys.intent(intent.intent), encode(intent), lease),
                Put(keys.intent_status(intent.intent, BY_INFCTL), encode(status), lease),
                Put(keys.event(event_id()), encode(_event(intent, f"{kind}ed")), lease),
            ],
        )
        if done.succeeded:
            return Cordoned(True, bool(stored.record.drain))
        with contextlib.suppress(StoreError):
            await store.revoke(lease)
        await asyncio.sleep(0.05)
    raise Conflict(f"node/{node} is being changed by somebody else", hint="run the command again")


def _event(intent: Intent, outcome: str) -> EventRecord:
    return EventRecord(
        at=intent.at, kind=f"node.{outcome}", subject=intent.target, actor=intent.actor, message=intent.reason
    )
