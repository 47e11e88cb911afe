"""The store port: what we ask of etcd, and nothing that only one implementation could give.

Promises every implementation keeps (tests/contract/test_store_contract.py runs on each of them):

* an answer that is not definite raises `StoreUnavailable`; the write may or may not have been applied;
* `LeaseLost`, `Compacted` and `StoreFull` are raised only on a definite answer;
* a watch delivers each event after its start revision once and in order; where that cannot be done because
  the history was compacted, the caller gets one `Relist` with the whole prefix, and events go on from there;
* a watch never ends by itself: it reconnects until it is closed. While it is cut off from every member
  it yields `Interrupted` once, so that a reader can show how old its view is;
* a database that is certainly another one (cluster id, or a revision that fell) is never read or written: `replaced`;
* every call ends within its `timeout` (seconds);
* a database that was replaced under us (restored, wiped, another cluster at the address) is not served: calls raise
  `StoreUnavailable` with the reason `StoreReplaced` until this process restarts, and no lease is lost on its word.

Keys are `str`, values `bytes`. Revisions are the store's own, strictly rising.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key at one revision. `lease` is 0 where the key is durable."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Keys in ascending order, as they were at `revision`; `more` when `limit` cut the list."""

    kvs: tuple[KeyValue, ...]
    revision: int
    more: bool = False


class Target(StrEnum):
    """What a comparison looks at. An absent key counts as 0, and no comparison with its VALUE holds (not even !=)."""

    VALUE = "value"
    MOD = "mod_revision"
    CREATE = "create_revision"
    VERSION = "version"
    LEASE = "lease"


class Relation(StrEnum):
    EQUAL = "="
    NOT_EQUAL = "!="
    GREATER = ">"
    LESS = "<"


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition of a transaction. With `prefix` it must hold for every key that exists under `key`,
    and where there is none, for an absent key."""

    key: str
    target: Target
    relation: Relation
    operand: int | bytes
    prefix: bool = False

    @staticmethod
    def absent(key: str) -> Compare:
        return Compare(key, Target.CREATE, Relation.EQUAL, 0)

    @staticmethod
    def present(key: str) -> Compare:
        return Compare(key, Target.CREATE, Relation.GREATER, 0)

    @staticmethod
    def unchanged(key: str, mod_revision: int) -> Compare:
        """The key still is as it was at `mod_revision` (0: still absent)."""
        return Compare(key, Target.MOD, Relation.EQUAL, mod_revision)

    @staticmethod
    def held_by(key: str, lease: int) -> Compare:
        """The key still carries this lease."""
        return Compare(key, Target.LEASE, Relation.EQUAL, lease)


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key. `keep_lease` leaves the key on the lease it has (the key must exist)."""

    key: str
    value: bytes
    lease: int = 0
    keep_lease: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    key: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Get:
    key: str
    prefix: bool = False
    limit: int = 0


Op = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """`gets` has one tuple of keys for each `Get` of the branch that ran, in their order; `deleted` counts keys."""

    succeeded: bool
    revision: int
    gets: tuple[tuple[KeyValue, ...], ...] = ()
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """`ttl_s` is what the store granted (at least its own minimum)."""

    id: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A put (`value` set) or a delete (`value` None) of one key."""

    key: str
    value: bytes | None
    mod_revision: int
    create_revision: int = 0
    lease: int = 0

    @property
    def is_delete(self) -> bool:
        return self.value is None


@dataclass(frozen=True, slots=True)
class Events:
    """All events of one answer, in order; `revision` is the last event's."""

    events: tuple[WatchEvent, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Relist:
    """The history between was compacted: this is the whole prefix now; forget what is not in it."""

    kvs: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The watch lost its member and is looking for one; what we know gets older from now on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Alive:
    """Nothing new, but the member answered: the view is as fresh as this moment. Never a resume point."""

    revision: int


WatchItem = Events | Relist | Interrupted | Alive


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """`leader` 0 means no quorum as far as the asked member knows; sizes in bytes."""

    version: str
    cluster_id: int
    member_id: int
    leader: int
    revision: int
    db_size: int
    db_size_in_use: int


class Store(Protocol):
    """See the module docstring for the promises. All timeouts are seconds."""

    async def get(self, key: str, *, timeout: float = 5.0) -> KeyValue | None: ...

    async def range(
        self,
        prefix: str,
        *,
        limit: int = 0,
        revision: int = 0,
        keys_only: bool = False,
        timeout: float = 10.0,
    ) -> RangeResult: ...

    async def put(self, key: str, value: bytes, *, lease: int = 0, timeout: float = 5.0) -> int:
        """Write one key; returns the revision. Raises LeaseLost when the lease is gone."""
        ...

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Op],
        orelse: Sequence[Op] = (),
        *,
        timeout: float = 5.0,
    ) -> TxnResult:
        """All or nothing. Raises LeaseLost when a put names a lease that is gone."""
        ...

    async def grant(self, ttl_s: float, *, timeout: float = 5.0) -> Lease: ...

    async def keep_alive(self, lease_id: int, *, timeout: float = 1.5) -> float:
        """Renew once; returns the TTL granted anew in seconds. Raises LeaseLost when it is gone."""
        ...

    async def revoke(self, lease_id: int, *, timeout: float = 5.0) -> None:
        """End a lease and its keys; a lease that is gone already is fine."""
        ...

    def watch(self, prefix: str, *, start_revision: int) -> AsyncIterator[WatchItem]:
        """Everything under `prefix` from `start_revision` on (that one included). Close it with `aclose()`."""
        ...

    @property
    def replaced(self) -> str:
        """Why this store is held for another database than it was; every call is refused from then on. Empty if not."""
        ...

    def expect(self, cluster_id: int, revision: int) -> None:
        """What is known from an earlier life: another database, or an older state of it, is not believed."""
        ...

    async def compact(self, revision: int, *, timeout: float = 5.0) -> None: ...

    async def status(self, *, timeout: float = 5.0) -> StoreStatus: ...

    async def close(self) -> None: ...
