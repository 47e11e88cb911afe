"""Listing: everything of a snapshot is of one revision, whatever is written or compacted while it is read."""

from __future__ import annotations

from typing import Any

import pytest

from infctl.adapters.memory_store import MemoryStore
from infctl.client.listing import EVERYTHING, read_prefixes, read_snapshot
from infctl.domain.errors import Compacted
from infctl.ports.store import RangeResult
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import EventRecord, PoolSpec
from infctl.view.kinds import Kind

K = Keys("c")


class Busy(MemoryStore):
    """Before each range somebody writes another event; the first `gone` ranges at an old revision find it compacted."""

    def __init__(self, gone: int = 0) -> None:
        super().__init__()
        self.ranges = 0
        self._gone = gone

    async def range(self, prefix: str, **options: Any) -> RangeResult:
        self.ranges += 1
        event = EventRecord(at="t", kind="k", subject="s", actor="a")
        await self.put(K.event(f"e{self.ranges}"), encode(event))
        if options.get("revision") and self._gone:
            self._gone -= 1
            raise Compacted("gone", compact_revision=1)
        return await super().range(prefix, **options)


async def test_what_is_written_meanwhile_is_not_in_it() -> None:
    store = Busy()
    await store.put(K.pool_spec("p"), encode(PoolSpec(name="p", model="m")))
    snapshot = await read_snapshot(store, K, [Kind.POOL, Kind.EVENT])
    assert list(snapshot.pools) == ["p"]
    assert list(snapshot.events) == ["e1"]
    assert store.ranges == 4
    assert snapshot.revision < await store.put("x", b"")


async def test_a_revision_that_was_compacted_is_read_again_at_a_newer_one() -> None:
    snapshot = await read_prefixes(Busy(gone=2), K, EVERYTHING)
    assert len(snapshot.events) == 5
    with pytest.raises(Compacted):
        await read_prefixes(Busy(gone=3), K, EVERYTHING)


async def test_a_value_that_does_not_decode_is_named_and_left_out() -> None:
    store = MemoryStore()
    await store.put(K.pool_spec("bad"), b"{}")
    await store.put(K.pool_spec("good"), encode(PoolSpec(name="good", model="m")))
    snapshot = await read_snapshot(store, K, [Kind.POOL])
    assert list(snapshot.pools) == ["good"]
    assert snapshot.unreadable == (K.pool_spec("bad"),)
