"""`infctl apply`: the only writer of pool and group specs; `infctl diff` is the same up to the writing.

Kept true: everything is read and checked before the first write; each write compares the revision it was decided on;
fields that this version does not know survive; a second apply of the same file changes nothing.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from infctl.client.diff import Change, changes, unified
from infctl.client.specs import Spec, address
from infctl.domain.errors import Conflict, NotFound, StoreError
from infctl.ports.store import Compare, KeyValue, Put, Store
from infctl.store.codec import Stored, decode_stored, encode
from infctl.store.keys import Keys
from infctl.store.records import EventRecord, GroupSpec, PoolSpec
from infctl.store.stamp import event_id, now_text

_TRIES = 4
_EVENT_TTL = 3600.0


class Outcome(StrEnum):
    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Applied:
    """What became, or would become, of one document. `lines`: the unified diff of its canonical form."""

    address: str
    outcome: Outcome
    changes: tuple[Change, ...] = ()
    lines: tuple[str, ...] = ()


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
    key = keys.pool_spec(spec.name) if isinstance(spec, PoolSpec) else keys.group_spec(spec.name)
    for _ in range(_TRIES):
        have = await store.get(key)
        stored = _stored(spec, have)
        applied = _outcome(spec, stored)
        if dry_run or applied.outcome is Outcome.UNCHANGED:
            return applied
        value = stored.encode(spec) if stored is not None else encode(spec)
        compare = Compare.unchanged(key, have.mod_revision if have else 0)
        done = await store.txn([compare], [Put(key, value)])
        if done.succeeded:
            await _announce(store, keys, applied)
            return applied
    raise Conflict(f"{address(spec)} is being changed by somebody else", hint="run the command again")


def _stored(spec: Spec, have: KeyValue | None) -> Stored[Spec] | None:
    return decode_stored(type(spec), have.value, have.mod_revision) if have else None


def _outcome(spec: Spec, stored: Stored[Spec] | None) -> Applied:
    before = stored.record if stored is not None else None
    if before == spec:
        return Applied(address(spec), Outcome.UNCHANGED)
    outcome = Outcome.CONFIGURED if before is not None else Outcome.CREATED
    return Applied(address(spec), outcome, changes(before, spec), tuple(unified(before, spec)))


async def _announce(store: Store, keys: Keys, applied: Applied) -> None:
    """The event is for people: when it cannot be written, what was applied stands all the same."""
    changed = ", ".join(change.field for change in applied.changes)
    record = EventRecord(
        at=now_text(),
        kind=f"spec.{applied.outcome}",
        subject=applied.address,
        actor=actor(),
        reason="Applied",
        message=f"changed: {changed}" if changed else "",
    )
    try:
        lease = await store.grant(_EVENT_TTL)
        await store.put(keys.event(event_id()), encode(record), lease=lease.id)
    except StoreError:
        return
