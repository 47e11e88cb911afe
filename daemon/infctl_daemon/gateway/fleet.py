"""The routing table: what the store says about endpoints, kept by watches, minus what this gateway saw fail.

An endpoint is routable when its launch is the one that the highest generation seen of its group registers, no fault
notice names it, its key is known, its tokenizer is loaded and checked, and it is not quarantined here. A store that is
away changes nothing: the last table stays (R5). An endpoint that leaves without a notice lost its lease and nothing
else: it stays for as long as it proves that it lives, until its owner registers it again (R7, `vigil`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import structlog
from tokenizers import Tokenizer

from infctl.domain.errors import ConfigError, StoreError
from infctl.domain.model import Endpoint, EndpointState
from infctl.ports.store import Alive, Events, Interrupted, KeyValue, Relist, Store, WatchItem
from infctl.store.codec import BadRecord, decode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, FaultNotice, Generation, PoolSpec, Secret
from infctl_daemon.gateway.vigil import Doubts
from infctl_daemon.gateway.vocabulary import Vocabularies

log = structlog.get_logger()
RETRY_FIRST = 0.2
RETRY_MOST = 5.0
FAULTS_KEPT = 4096
LAUNCHES_KEPT = 1024
UNREGISTERED_GRACE = 20.0


class Fleet:
    """`on_fault(launch, reason, fault_id)` runs in the watch's own task, as soon as a notice is seen."""

    def __init__(self, store: Store, keys: Keys, vocabularies: Vocabularies, grace: float = UNREGISTERED_GRACE) -> None:
        """`grace`: how long (seconds) a launch without an endpoint in a store that answers is waited for."""
        self._store = store
        self._keys = keys
        self._prefixes = (keys.endpoints, keys.secrets, keys.faults, keys.groups, keys.pools)
        self._vocabularies = vocabularies
        self._records: dict[str, EndpointRecord] = {}
        self._secrets: dict[str, Secret] = {}
        self._views: dict[str, Endpoint] = {}
        self._generations: dict[str, Generation] = {}
        self._faults: dict[str, FaultNotice] = {}
        self._pools: dict[str, PoolSpec] = {}
        self._quarantine: dict[str, str] = {}
        self._cut: set[str] = set()
        self._grace = grace
        self.doubts = Doubts()
        self.load: dict[str, int] = {}
        self.dispatched: dict[str, tuple[int, float]] = {}
        self.revision = 0
        self.fresh_at = 0.0
        self.ready = asyncio.Event()
        self.on_fault: Callable[[FaultNotice], None] = lambda notice: None

    # what routing sees
    def endpoints(self) -> Iterator[Endpoint]:
        """Every endpoint that may get work now."""
        for record in self._records.values():
            if self._routable(record):
                yield self._views[record.group]

    def _routable(self, record: EndpointRecord) -> bool:
        launch = record.launch
        registered = self._generations.get(record.group)
        return (
            # between a raised generation and its endpoint the launch is the registered one all the same
            (registered is None or record.generation >= registered.generation or launch == registered.launch)
            and launch not in self._faults
            and self.doubts.allows(launch)
            and launch not in self._quarantine
            and (secret := self._secrets.get(record.group)) is not None
            and secret.launch == launch
            and self._vocabularies.get(record.tokenizer_digest) is not None
        )

    def models(self) -> list[str]:
        """Every model of a pool, whether a group is ready for it or not."""
        return sorted({p.model for p in self._pools.values()} | {r.model for r in self._records.values()})

    def serves(self, model: str) -> bool:
        return model in self.models()

    def example(self, model: str) -> EndpointRecord | None:
        """Some routable endpoint of the model: what a prompt is checked against."""
        routable = [r for r in self._records.values() if r.model == model and self._routable(r)]
        return min(routable, key=lambda r: r.context_length, default=None)

    def record(self, launch: str) -> EndpointRecord | None:
        return next((r for r in self._records.values() if r.launch == launch), None)

    def api_key(self, launch: str) -> str:
        return next((s.api_key for s in self._secrets.values() if s.launch == launch), "")

    def tokenizer(self, digest: str) -> Tokenizer | None:
        return self._vocabularies.get(digest)

    def faulted(self, launch: str) -> FaultNotice | None:
        return self._faults.get(launch)

    def note_dispatch(self, launch: str, count: int, at_ms: float) -> None:
        """`count` attempts were sent to the launch by now, the last at `at_ms`; the oldest launches are forgotten."""
        self.dispatched[launch] = (count, at_ms)
        if len(self.dispatched) > LAUNCHES_KEPT:
            self.dispatched.pop(next(iter(self.dispatched)))

    # what this gateway saw itself
    def quarantine(self, launch: str, why: str) -> bool:
        """Keep new work away from a launch until it proves itself; False when it already was kept away."""
        if launch in self._quarantine:
            return False
        self._quarantine[launch] = why
        return True

    def release(self, launch: str) -> None:
        self._quarantine.pop(launch, None)

    def quarantined(self) -> dict[str, str]:
        return dict(self._quarantine)

    # what the store does not vouch for now
    @property
    def away(self) -> bool:
        """The store does not tell us news at this moment."""
        return bool(self._cut)

    def address(self, launch: str) -> tuple[str, str] | None:
        record = self.record(launch)
        return (record.url, self.api_key(launch)) if record else None

    def forget(self, launch: str) -> None:
        """Nobody vouches for the launch any more."""
        if (record := self.record(launch)) is not None:
            self._drop(record.group)
        self.doubts.settle(launch)

    # keeping the table
    async def run(self) -> None:
        """List once, then follow; both again after trouble. Ends only when cancelled."""
        delay, told = RETRY_FIRST, False
        while True:
            try:
                revision = await self._list()
            except StoreError as error:
                if not told:
                    log.warning("store.unavailable", why=error.message, hint=error.hint)
                    told = True
                self._cut.add("")
                await asyncio.sleep(delay)
                delay = min(RETRY_MOST, delay * 2)
                continue
            if told:
                log.info("store.available", revision=revision)
            delay, told = RETRY_FIRST, False
            self._cut.clear()
            self.ready.set()
            try:
                async with asyncio.TaskGroup() as group:
                    for prefix in self._prefixes:
                        watch = self._store.watch(prefix, start_revision=revision + 1)
                        group.create_task(self._follow(prefix, watch))
            except* StoreError as errors:
                # a watch is not meant to end: list again rather than serve from a table nobody updates
                log.warning("watch.ended", why=str(errors.exceptions[0]))

    async def _list(self) -> int:
        first = await self._store.range(self._prefixes[0])
        rest = [(p, await self._store.range(p, revision=first.revision)) for p in self._prefixes[1:]]
        # endpoints come last, when all that can speak against them is known
        for prefix, listed in (*rest, (self._prefixes[0], first)):
            await self._replace(prefix, listed.kvs)
        self._seen(first.revision)
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
                case Relist(kvs, revision):
                    await self._replace(prefix, kvs)
                    self._seen(revision)
                case Alive():
                    self.fresh_at = asyncio.get_running_loop().time()
                case Interrupted(reason):
                    self._cut.add(prefix)
                    log.warning("watch.interrupted", prefix=prefix, why=reason)

    def _seen(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        self.fresh_at = asyncio.get_running_loop().time()

    def _known(self, prefix: str) -> set[str]:
        if prefix == self._keys.endpoints:
            return {self._keys.endpoint(g) for g in self._records}
        if prefix == self._keys.secrets:
            return {self._keys.secret(g) for g in self._secrets}
        if prefix == self._keys.pools:
            return {self._keys.pool_spec(p) for p in self._pools}
        return set()  # faults and generations are facts: a missing key does not undo them

    async def _put(self, key: str, value: bytes) -> None:
        parts = self._keys.parts(key)
        try:
            match parts:
                case ("endpoints", group):
                    record = decode(EndpointRecord, value)
                    before = self._records.get(group)
                    if before is not None and before.launch != record.launch:
                        self._quarantine.pop(before.launch, None)
                        self.doubts.settle(before.launch)
                    self._records[group] = record
                    self._views[group] = _endpoint(record)
                    self.doubts.settle(record.launch)
                    await self._load_tokenizer(record)
                case ("secrets", group):
                    self._secrets[group] = decode(Secret, value)
                case ("faults", _, _):
                    self._fault(decode(FaultNotice, value))
                case ("pools", pool, "spec"):
                    self._pools[pool] = decode(PoolSpec, value)
                case ("groups", group, "generation"):
                    self._registered(group, decode(Generation, value))
        except BadRecord as error:
            log.warning("store.bad_record", key=key, why=error.message)

    def _delete(self, key: str) -> None:
        match self._keys.parts(key):
            case ("endpoints", group) if (record := self._records.get(group)) is not None:
                if self._may_live(record):
                    self.doubts.add(record.launch, self._grace, proven=True)
                else:
                    self._drop(group)
            case ("secrets", group):
                record = self._records.get(group)
                # it goes with the endpoint's lease, and is needed for as long as the endpoint is
                if record is None or not self._may_live(record):
                    self._secrets.pop(group, None)
            case ("pools", pool, "spec"):
                self._pools.pop(pool, None)

    def _may_live(self, record: EndpointRecord) -> bool:
        """Nothing that the store said means the end of this launch."""
        registered = self._generations.get(record.group)
        return registered is not None and registered.launch == record.launch and record.launch not in self._faults

    def _drop(self, group: str) -> None:
        record = self._records.pop(group)
        self._views.pop(group)
        self._quarantine.pop(record.launch, None)
        self.doubts.settle(record.launch)
        if (secret := self._secrets.get(group)) is not None and secret.launch == record.launch:
            del self._secrets[group]

    def _drop_doubted(self, group: str) -> None:
        """What no key in the store stands for goes as soon as the store says something against it."""
        record = self._records.get(group)
        if record is not None and record.launch in self.doubts and not self._may_live(record):
            self._drop(group)

    def _registered(self, group: str, generation: Generation) -> None:
        known = self._generations.get(group)
        if known is None or generation.generation > known.generation:
            self._generations[group] = generation
            self._drop_doubted(group)

    def _fault(self, notice: FaultNotice) -> None:
        if notice.launch in self._faults:
            return
        self._faults[notice.launch] = notice
        if len(self._faults) > FAULTS_KEPT:
            self._faults.pop(next(iter(self._faults)))
        self.on_fault(notice)
        self._drop_doubted(notice.group)

    async def _load_tokenizer(self, record: EndpointRecord) -> None:
        if self._vocabularies.get(record.tokenizer_digest) is not None:
            return
        try:
            await self._vocabularies.load(record.tokenizer, record.tokenizer_digest)
        except ConfigError as error:
            log.error("endpoint.unroutable", group=record.group, reason=error.reason, why=error.message)


def _endpoint(record: EndpointRecord) -> Endpoint:
    return Endpoint(
        group=record.group,
        pool=record.pool,
        generation=record.generation,
        launch=record.launch,
        url=record.url,
        model=record.model,
        revision=record.revision,
        tokenizer_digest=record.tokenizer_digest,
        context_length=record.context_length,
        vocab_size=record.vocab_size,
        max_running=record.max_running,
        max_queued=record.max_queued,
        state=EndpointState.DRAINING if record.state == "draining" else EndpointState.READY,
        deterministic=record.deterministic,
        node=record.node,
    )
