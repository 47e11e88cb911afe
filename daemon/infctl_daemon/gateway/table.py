"""The routing table: endpoints, keys, generations, faults and pools as last told by the store, minus what failed here.

An endpoint is routable when its launch is the one that the highest generation seen of its group registers, no fault
notice names it, its daemon does not call it over, its key is known, its tokenizer is loaded and checked, and it is not
quarantined here. One that leaves without a notice lost its lease and nothing else: it stays for as long as it proves
that it lives, until its owner registers it again (R7, `vigil`). A generation never falls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from tokenizers import Tokenizer

from infctl.domain.model import Endpoint, EndpointState
from infctl.store.records import EndpointRecord, FaultNotice, Generation, PoolSpec, Secret
from infctl_daemon.gateway.vigil import FOREVER, Doubts
from infctl_daemon.gateway.vocabulary import Vocabularies

FAULTS_KEPT = 4096
LAUNCHES_KEPT = 1024
UNREGISTERED_GRACE = 20.0


class Table:
    """`on_fault(notice)` runs as soon as a notice is seen; `changed` is set whenever the store's word is new."""

    def __init__(self, vocabularies: Vocabularies, grace: float = UNREGISTERED_GRACE) -> None:
        """`grace`: how long (seconds) a launch without an endpoint in a store that answers is waited for."""
        self._vocabularies = vocabularies
        self._grace = grace
        self._records: dict[str, EndpointRecord] = {}
        self._views: dict[str, Endpoint] = {}
        self._launches: dict[str, EndpointRecord] = {}
        self._secrets: dict[str, Secret] = {}
        self._generations: dict[str, Generation] = {}
        self._faults: dict[str, FaultNotice] = {}
        self._pools: dict[str, PoolSpec] = {}
        self._quarantine: dict[str, str] = {}
        self._over: set[str] = set()
        self.doubts = Doubts()
        self.load: dict[str, int] = {}
        self.dispatched: dict[str, tuple[int, float]] = {}
        self.changed = asyncio.Event()
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
            and launch not in self._over
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
        return any(p.model == model for p in self._pools.values()) or any(
            r.model == model for r in self._records.values()
        )

    def example(self, model: str) -> EndpointRecord | None:
        """Some routable endpoint of the model: what a prompt is checked against."""
        routable = (r for r in self._records.values() if r.model == model and self._routable(r))
        return min(routable, key=lambda r: r.context_length, default=None)

    def record(self, launch: str) -> EndpointRecord | None:
        return self._launches.get(launch)

    def api_key(self, launch: str) -> str:
        record = self._launches.get(launch)
        secret = self._secrets.get(record.group) if record else None
        return secret.api_key if secret is not None and secret.launch == launch else ""

    def address(self, launch: str) -> tuple[str, str] | None:
        """Url and key."""
        record = self._launches.get(launch)
        return (record.url, self.api_key(launch)) if record else None

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

    def over(self, launch: str) -> bool:
        """Its own daemon says that it was ended, and the store will when it is heard; False when that was known."""
        if launch in self._over or launch not in self._launches:
            return False
        self._over.add(launch)
        return True

    def unproven(self) -> list[str]:
        """Launches that get work on the store's last word alone."""
        return [launch for launch in self._launches if launch not in self._over and launch not in self.doubts]

    def quarantined(self) -> dict[str, str]:
        return dict(self._quarantine)

    # what is told
    def put_endpoint(self, record: EndpointRecord, *, proven: bool = True, until: float = FOREVER) -> None:
        """The store says so; with `until` (monotonic seconds) an old snapshot does, and a probe must confirm it."""
        before = self._records.get(record.group)
        if before is not None and before.launch != record.launch:
            self._forget_launch(before.launch)
        self._records[record.group] = self._launches[record.launch] = record
        self._views[record.group] = _endpoint(record)
        if until == FOREVER:
            self.doubts.settle(record.launch)
            self._over.discard(record.launch)
        else:
            self.doubts.add(record.launch, self._grace, proven=proven, until=until)
        self.changed.set()

    def put_secret(self, group: str, secret: Secret) -> None:
        self._secrets[group] = secret
        self.changed.set()

    def put_pool(self, pool: str, spec: PoolSpec) -> None:
        self._pools[pool] = spec
        self.changed.set()

    def put_generation(self, group: str, generation: Generation) -> None:
        known = self._generations.get(group)
        if known is None or generation.generation > known.generation:
            self._generations[group] = generation
            self._drop_if_over(group)
            self.changed.set()

    def put_fault(self, notice: FaultNotice) -> None:
        if notice.launch in self._faults:
            return
        self._faults[notice.launch] = notice
        if len(self._faults) > FAULTS_KEPT:
            self._faults.pop(next(iter(self._faults)))
        self.on_fault(notice)
        self._drop_if_over(notice.group)
        self.changed.set()

    def gone_endpoint(self, group: str) -> None:
        """The key is gone: with its lease, or because the launch is over."""
        if (record := self._records.get(group)) is None:
            return
        if self._may_live(record):
            self.doubts.add(record.launch, self._grace, proven=True)
        else:
            self._drop(group)
        self.changed.set()

    def gone_secret(self, group: str) -> None:
        """It goes with the endpoint's lease, and is needed for as long as the endpoint is."""
        record = self._records.get(group)
        if record is None or not self._may_live(record):
            self._secrets.pop(group, None)
            self.changed.set()

    def gone_pool(self, pool: str) -> None:
        self._pools.pop(pool, None)
        self.changed.set()

    def forget(self, launch: str) -> None:
        """Nobody vouches for the launch any more."""
        if (record := self._launches.get(launch)) is not None:
            self._drop(record.group)
        self.doubts.settle(launch)

    def _may_live(self, record: EndpointRecord) -> bool:
        """Nothing that the store said means the end of this launch."""
        registered = self._generations.get(record.group)
        return registered is not None and registered.launch == record.launch and record.launch not in self._faults

    def _drop_if_over(self, group: str) -> None:
        """What no key in the store stands for goes as soon as the store says something against it."""
        record = self._records.get(group)
        if record is not None and record.launch in self.doubts and not self._may_live(record):
            self._drop(group)

    def _drop(self, group: str) -> None:
        record = self._records.pop(group)
        self._views.pop(group)
        self._forget_launch(record.launch)
        if (secret := self._secrets.get(group)) is not None and secret.launch == record.launch:
            del self._secrets[group]

    def _forget_launch(self, launch: str) -> None:
        self._launches.pop(launch, None)
        self._quarantine.pop(launch, None)
        self._over.discard(launch)
        self.doubts.settle(launch)


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
        state=_state(record.state),
        deterministic=record.deterministic,
        node=record.node,
    )


def _state(word: str) -> EndpointState:
    """A state that this version does not know is one that gets no new work."""
    try:
        return EndpointState(word)
    except ValueError:
        return EndpointState.UNFIT
