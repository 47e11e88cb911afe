"""Keeps the routing table by the store: one list at one revision, then every change after it, for as long as we live.

Kept true: a store that is away changes nothing, the last table stays (R5); a gateway that starts meanwhile begins with
the table that it kept on disk, in which nobody is believed without a probe; the store's own word replaces it at once.
Another database than the one we knew is not believed, and said aloud.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from infctl.domain.errors import Compacted, ConfigError, StoreError
from infctl.ports.store import Alive, Events, Interrupted, KeyValue, Relist, Store, WatchItem
from infctl.store import stamp
from infctl.store.codec import BadRecord, decode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, FaultNotice, Generation, PoolSpec, Secret
from infctl_daemon.gateway.snapshot import Refused, Snapshot, SnapshotFile
from infctl_daemon.gateway.table import UNREGISTERED_GRACE, Table
from infctl_daemon.gateway.vocabulary import Vocabularies
from infctl_daemon.runtime.log import about, told

log = structlog.get_logger()
RETRY_FIRST = 0.2
RETRY_MOST = 5.0
SNAPSHOT_AFTER = 0.5  # how long a start waits for the store before it looks at its disk


class Fleet(Table):
    """`source` is "store", "snapshot" (the file, until the store answers) or "" (nothing was read yet)."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        vocabularies: Vocabularies,
        grace: float = UNREGISTERED_GRACE,
        file: SnapshotFile | None = None,
    ) -> None:
        super().__init__(vocabularies, grace)
        self._store = store
        self._keys = keys
        self._prefixes = (keys.endpoints, keys.secrets, keys.faults, keys.groups, keys.pools)
        self._file = file
        self._cut: set[str] = set()
        self._heard = False
        self._earlier: Snapshot | None = None
        self.source = ""
        self.cluster_id = 0
        self.revision = 0
        self.endpoints_revision = 0  # every change of an endpoint up to it is in the table
        self.endpoints_changed = asyncio.Event()
        self.fresh_at = 0.0
        self.ready = asyncio.Event()
        self.on_replaced: Callable[[str], None] = lambda message: None

    @property
    def away(self) -> bool:
        """The store does not tell us news at this moment."""
        return bool(self._cut)

    @property
    def replaced(self) -> str:
        """Why the store is held for another database; empty while it is not."""
        return self._store.replaced

    def capture(self) -> Snapshot:
        """The table as the store last vouched for it."""
        old_ms = (asyncio.get_running_loop().time() - self.fresh_at) * 1000.0
        taken_ms = stamp.now_ms() - old_ms
        return Snapshot(
            cluster=self._keys.cluster,
            cluster_id=self.cluster_id,
            revision=self.revision,
            taken_ms=taken_ms,
            taken_at=stamp.text_of(taken_ms),
            endpoints=list(self._records.values()),
            secrets=dict(self._secrets),
            generations=dict(self._generations),
            faults=list(self._faults.values()),
            pools=dict(self._pools),
        )

    async def run(self) -> None:
        """List once, then follow; both again after trouble. Ends only when cancelled."""
        delay, said = RETRY_FIRST, ""
        while True:
            try:
                revision = await (self._list() if self.source else self._begin())
            except StoreError as error:
                if error.reason != said:
                    log.warning("store.unavailable", **told(error))
                    said = error.reason
                self._lost("")
                await asyncio.sleep(delay)
                delay = min(RETRY_MOST, delay * 2)
                continue
            if said:
                log.info("store.available", revision=revision)
            delay, said = RETRY_FIRST, ""
            self._cut.clear()
            self.source = "store"
            self.ready.set()
            try:
                async with asyncio.TaskGroup() as group:
                    if self._earlier is not None:
                        earlier, self._earlier = self._earlier, None
                        group.create_task(self._compare(earlier))
                    for prefix in self._prefixes:
                        watch = self._store.watch(prefix, start_revision=revision + 1)
                        group.create_task(self._follow(prefix, watch))
            except* StoreError as errors:
                # a watch is not meant to end: list again rather than serve from a table nobody updates
                log.warning("watch.ended", why=str(errors.exceptions[0]))

    # beginning
    async def _begin(self) -> int:
        """The first list; where the store keeps us waiting, the file is served from meanwhile."""
        snapshot = self._read_file()
        listing = asyncio.ensure_future(self._list())
        try:
            await asyncio.wait({listing}, timeout=SNAPSHOT_AFTER)
            if snapshot is None:
                return await listing
            if not self._heard:
                await self._restore(snapshot)
                return await listing
            self._earlier = snapshot
            return await listing
        finally:
            listing.cancel()

    def _read_file(self) -> Snapshot | None:
        if self._file is None or self._file.max_age == 0:
            return None
        try:
            return self._file.read()
        except Refused as why:
            self._refuse(str(why))
            return None

    def _refuse(self, why: str) -> None:
        assert self._file is not None
        log.warning("snapshot.refused", file=str(self._file.path), why=why)
        self._file = None  # said once

    async def _restore(self, snapshot: Snapshot) -> None:
        """Begin with what an earlier life knew. Nothing in it is proven, and the store must be able to follow it."""
        assert self._file is not None  # it was read from there
        left = self._file.max_age - snapshot.age()
        if left <= 0:
            self._refuse(f"it is {snapshot.age():.0f} s old, more than {self._file.max_age:g} s")
            return
        now = asyncio.get_running_loop().time()
        # one go without a pause: the store's word may come at any moment, and must find all of it or nothing
        for group, generation in snapshot.generations.items():
            self.put_generation(group, generation)
        for notice in snapshot.faults:
            self.put_fault(notice)
        for pool, spec in snapshot.pools.items():
            self.put_pool(pool, spec)
        for group, secret in snapshot.secrets.items():
            self.put_secret(group, secret)
        for record in snapshot.endpoints:
            self.put_endpoint(record, proven=False, until=now + left)
        self._lost("")
        self._store.expect(snapshot.cluster_id, snapshot.revision)
        self.cluster_id, self.revision = snapshot.cluster_id, snapshot.revision
        self.fresh_at = now - snapshot.age()
        self.source = "snapshot"
        self.ready.set()
        log.warning(
            "snapshot.served",
            file=str(self._file.path),
            age_s=round(snapshot.age(), 1),
            revision=snapshot.revision,
            endpoints=len(snapshot.endpoints),
        )
        for record in snapshot.endpoints:
            await self._load_tokenizer(record)

    async def _compare(self, snapshot: Snapshot) -> None:
        """The store was there at once: our file only tells whether it still is the database that we knew."""
        try:
            why = await self._contradiction(snapshot)
        except StoreError as error:
            log.info("snapshot.not_compared", why=error.message)
            return
        if why:
            message = f"{why}: another database, or a restored one (known as of {snapshot.taken_at})"
            log.error("store.replaced", message=message, hint="check it; what it says is served from here on")
            self.on_replaced(message)

    async def _contradiction(self, snapshot: Snapshot) -> str:
        if snapshot.cluster_id != self.cluster_id:
            return f"the store's cluster id was {snapshot.cluster_id:x} and is {self.cluster_id:x}"
        if self.revision < snapshot.revision:
            return f"the store's revision was {snapshot.revision} and is {self.revision}"
        # it may have grown past what we knew; but what it held at that revision cannot have changed
        try:
            then = await self._store.range(self._keys.groups, revision=snapshot.revision)
        except Compacted:
            then = await self._store.range(self._keys.groups)
        held: dict[str, int] = {}
        for kv in then.kvs:
            parts = self._keys.parts(kv.key)
            if parts[2:] == ("generation",):
                with contextlib.suppress(BadRecord):
                    held[parts[1]] = decode(Generation, kv.value).generation
        for group, known in snapshot.generations.items():
            if held.get(group, 0) < known.generation:
                return f"group {group} had generation {known.generation} and has {held.get(group, 0)}"
        return ""

    # following
    async def _list(self) -> int:
        first = await self._store.range(self._prefixes[0])
        rest = [(p, await self._store.range(p, revision=first.revision)) for p in self._prefixes[1:]]
        self.cluster_id = (await self._store.status()).cluster_id
        self._heard = True
        # endpoints come last, when all that can speak against them is known
        for prefix, listed in (*rest, (self._prefixes[0], first)):
            await self._replace(prefix, listed.kvs)
        self._seen(first.revision)
        self._endpoints_seen(first.revision)
        return first.revision

    async def _replace(self, prefix: str, kvs: tuple[KeyValue, ...]) -> None:
        """The whole prefix as it is now."""
        kept = {kv.key for kv in kvs}
        for key in self._known(prefix) - kept:
            self._delete(key)
        for kv in kvs:
            await self._put(kv.key, kv.value)

    async def _follow(self, prefix: str, watch: AsyncIterator[WatchItem]) -> None:
        async for item in watch:
            if not isinstance(item, Interrupted):
                self._cut.discard(prefix)
            match item:
                case Events(events, revision):
                    for event in events:
                        if event.value is None:
                            self._delete(event.key)
                        else:
                            await self._put(event.key, event.value)
                    self._seen(revision)
                    if prefix == self._keys.endpoints:
                        self._endpoints_seen(revision)
                case Relist(kvs, revision):
                    await self._replace(prefix, kvs)
                    self._seen(revision)
                    if prefix == self._keys.endpoints:
                        self._endpoints_seen(revision)
                case Alive():
                    self.fresh_at = asyncio.get_running_loop().time()
                case Interrupted(reason):
                    self._lost(prefix)
                    log.warning("watch.interrupted", prefix=prefix, why=reason)

    def _lost(self, prefix: str) -> None:
        self._cut.add(prefix)
        self.doubts.added.set()  # while the store is away, the daemons are asked

    def _seen(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        self.fresh_at = asyncio.get_running_loop().time()

    def _endpoints_seen(self, revision: int) -> None:
        """Each prefix has a watch of its own, and only its own events say how far that one has come."""
        self.endpoints_revision = max(self.endpoints_revision, revision)
        self.endpoints_changed.set()

    def _known(self, prefix: str) -> set[str]:
        if prefix == self._keys.endpoints:
            return {self._keys.endpoint(g) for g in self._records}
        if prefix == self._keys.secrets:
            return {self._keys.secret(g) for g in self._secrets}
        if prefix == self._keys.pools:
            return {self._keys.pool_spec(p) for p in self._pools}
        return set()  # faults and generations are facts: a missing key does not undo them

    async def _put(self, key: str, value: bytes) -> None:
        try:
            match self._keys.parts(key):
                case ("endpoints", _):
                    record = decode(EndpointRecord, value)
                    self.put_endpoint(record)
                    await self._load_tokenizer(record)
                case ("secrets", group):
                    self.put_secret(group, decode(Secret, value))
                case ("faults", _, _):
                    self.put_fault(decode(FaultNotice, value))
                case ("pools", pool, "spec"):
                    self.put_pool(pool, decode(PoolSpec, value))
                case ("groups", group, "generation"):
                    self.put_generation(group, decode(Generation, value))
        except BadRecord as error:
            log.warning("store.bad_record", key=key, why=error.message)

    def _delete(self, key: str) -> None:
        match self._keys.parts(key):
            case ("endpoints", group):
                self.gone_endpoint(group)
            case ("secrets", group):
                self.gone_secret(group)
            case ("pools", pool, "spec"):
                self.gone_pool(pool)

    async def _load_tokenizer(self, record: EndpointRecord) -> None:
        if self._vocabularies.get(record.tokenizer_digest) is not None:
            return
        try:
            await self._vocabularies.load(record.tokenizer, record.tokenizer_digest)
        except ConfigError as error:
            log.error("endpoint.unroutable", **{**about(record), **told(error)})
