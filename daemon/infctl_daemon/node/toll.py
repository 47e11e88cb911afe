"""What a stop did to the streams that still ran, by their own records: moved to another group, finished, or cut."""

from __future__ import annotations

import asyncio

from infctl.domain.errors import StoreError
from infctl.ports.store import Get, Store
from infctl.store.codec import BadRecord, decode
from infctl.store.keys import Keys
from infctl.store.records import StreamRecord

ON_WORKER = frozenset({"ADMITTED", "PREFILLING", "TRANSFERRING", "DECODING"})
SETTLE = 5.0  # how long a stream may look for another worker before it is counted as cut
LOOK_EVERY = 0.25
BATCH = 100


async def streams_on(store: Store, keys: Keys, launch: str) -> list[str]:
    """Streams that run on the launch, by their last records. Raises StoreError."""
    found = []
    for kv in (await store.range(keys.streams)).kvs:
        try:
            record = decode(StreamRecord, kv.value)
        except BadRecord:
            continue
        if record.launch == launch and record.state in ON_WORKER:
            found.append(record.stream)
    return found


async def count(store: Store, keys: Keys, launch: str, streams: list[str]) -> tuple[int, int]:
    """(moved, cut) among `streams`, as soon as none is undecided. The rest have finished or were cancelled."""
    loop = asyncio.get_running_loop()
    until = loop.time() + SETTLE
    moved, open_ = 0, list(streams)
    cut = 0
    while open_:
        left: list[str] = []
        try:
            for start in range(0, len(open_), BATCH):
                part = open_[start : start + BATCH]
                done = await store.txn([], [Get(keys.stream(s)) for s in part])
                for stream, kvs in zip(part, done.gets, strict=True):
                    fate = _fate(kvs[0].value if kvs else None, launch)
                    moved += fate == "moved"
                    cut += fate == "cut"
                    if fate == "open":
                        left.append(stream)
        except StoreError:
            left = open_
        open_ = left
        if open_ and loop.time() >= until:
            return moved, cut + len(open_)
        if open_:
            await asyncio.sleep(LOOK_EVERY)
    return moved, cut


def _fate(value: bytes | None, launch: str) -> str:
    try:
        record = decode(StreamRecord, value) if value is not None else None
    except BadRecord:
        record = None
    if record is None or record.state in ("COMPLETED", "CANCELLED"):
        return "over"
    if record.state == "FAILED":
        return "cut"
    return "moved" if record.launch != launch and record.state in ON_WORKER else "open"
