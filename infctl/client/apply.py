"""`infctl apply`: the only writer of pool and group specs.

Kept true: everything is read and checked before the first write; each write compares the revision it was decided on;
fields that this version does not know survive; a second apply of the same file changes nothing.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from infctl.domain.errors import Conflict, NotFound, StoreError
from infctl.ports.store import Compare, Put, Store
from infctl.store.codec import Stored, decode_stored, encode
from infctl.store.keys import Keys
from infctl.store.records import EventRecord, GroupSpec, PoolSpec, Restart
from infctl.store.stamp import event_id, now_text

if TYPE_CHECKING:
    from infctl.config.documents import GroupDocument, PoolDocument
    from infctl.config.load import Located

_TRIES = 4
_EVENT_TTL = 3600.0

Spec = PoolSpec | GroupSpec


class Outcome(StrEnum):
    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of one document; `changed` names the fields that differ."""

    address: str
    outcome: Outcome
    changed: tuple[str, ...] = ()


def pool_spec(document: PoolDocument) -> PoolSpec:
    spec = document.spec
    return PoolSpec(
        name=document.metadata.name,
        model=spec.model,
        min_ready=spec.min_ready,
        canary_prompt=spec.canary.prompt,
        canary_tokens=spec.canary.tokens,
    )


def group_spec(document: GroupDocument) -> GroupSpec:
    spec = document.spec
    restart = spec.restart
    return GroupSpec(
        name=document.metadata.name,
        pool=spec.pool,
        node=spec.node,
        engine=spec.engine,
        python=spec.python,
        model_path=spec.model_path,
        tokenizer=spec.tokenizer,
        revision=spec.revision,
        tp=spec.tensor_parallel,
        max_running=spec.max_running,
        max_queued=spec.max_queued,
        context_length=spec.context_length,
        deterministic=spec.deterministic,
        port=spec.port,
        engine_args=list(spec.engine_args),
        env=dict(spec.env),
        restart=Restart(
            first_delay=restart.first_delay_seconds,
            max_delay=restart.max_delay_seconds,
            attempts=restart.attempts,
            interval=restart.interval_seconds,
            load_deadline=restart.load_deadline_seconds,
            canary_deadline=restart.canary_deadline_seconds,
        ),
    )


def to_specs(documents: Iterable[Located]) -> list[Spec]:
    """Stored specs from checked documents, pools first: a group is never there before its pool."""
    specs: list[Spec] = []
    for located in documents:
        document = located.document
        specs.append(pool_spec(document) if document.kind == "Pool" else group_spec(document))
    return sorted(specs, key=lambda s: isinstance(s, GroupSpec))


def address(spec: Spec) -> str:
    return f"{'pool' if isinstance(spec, PoolSpec) else 'group'}/{spec.name}"


def actor() -> str:
    """Who speaks, for events: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


async def apply_specs(
    store: Store, keys: Keys, specs: Sequence[Spec], *, dry_run: bool = False
) -> AsyncIterator[Applied]:
    """Write each spec that differs; yields the outcome of each as it is done. Raises NotFound for a missing pool."""
    await _check_pools(store, keys, specs)
    for spec in specs:
        yield await _apply(store, keys, spec, dry_run)


async def _check_pools(store: Store, keys: Keys, specs: Sequence[Spec]) -> None:
    here = {s.name for s in specs if isinstance(s, PoolSpec)}
    for spec in specs:
        if isinstance(spec, GroupSpec) and spec.pool not in here:
            if await store.get(keys.pool_spec(spec.pool)) is None:
                raise NotFound(
                    f"{address(spec)} belongs to pool/{spec.pool}, which does not exist",
                    reason="PoolNotFound",
                    hint="apply the pool first, or put both documents into one file",
                )
            here.add(spec.pool)


async def _apply(store: Store, keys: Keys, spec: Spec, dry_run: bool) -> Applied:
    kind = type(spec)
    key = keys.pool_spec(spec.name) if isinstance(spec, PoolSpec) else keys.group_spec(spec.name)
    for _ in range(_TRIES):
        have = await store.get(key)
        stored: Stored[Spec] | None = decode_stored(kind, have.value, have.mod_revision) if have else None
        if stored is not None and stored.record == spec:
            return Applied(address(spec), Outcome.UNCHANGED)
        changed = _changed(stored.record, spec) if stored is not None else ()
        outcome = Outcome.CONFIGURED if stored is not None else Outcome.CREATED
        if dry_run:
            return Applied(address(spec), outcome, changed)
        value = stored.encode(spec) if stored is not None else encode(spec)
        compare = Compare.unchanged(key, have.mod_revision if have else 0)
        done = await store.txn([compare], [Put(key, value)])
        if done.succeeded:
            await _announce(store, keys, spec, outcome, changed)
            return Applied(address(spec), outcome, changed)
    raise Conflict(f"{address(spec)} is being changed by somebody else", hint="run the command again")


def _changed(old: Spec, new: Spec) -> tuple[str, ...]:
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    return tuple(k for k in after if before.get(k) != after[k])


async def _announce(store: Store, keys: Keys, spec: Spec, outcome: Outcome, changed: tuple[str, ...]) -> None:
    """The event is for people: when it cannot be written, what was applied stands all the same."""
    record = EventRecord(
        at=now_text(),
        kind=f"spec.{outcome}",
        subject=address(spec),
        actor=actor(),
        reason="Applied",
        message=f"changed: {', '.join(changed)}" if changed else "",
    )
    try:
        lease = await store.grant(_EVENT_TTL)
        await store.put(keys.event(event_id()), encode(record), lease=lease.id)
    except StoreError:
        return
