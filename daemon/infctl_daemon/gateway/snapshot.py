"""The routing table on disk, for a gateway that starts while the store is away (R5).

Kept true: the file is private (it holds engine keys) and replaced whole, so a crash leaves the old one or the new one;
it is written at most once a second, and only with what the store itself said; whatever is wrong with a file, or whoever
it belongs to, it is refused with a reason and never stops a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from infctl.store import stamp
from infctl.store.records import EndpointRecord, FaultNotice, Generation, PoolSpec, Secret
from infctl_daemon.proc.state_file import write_durably

log = structlog.get_logger()
STATE_DIR = "/var/lib/infctl/gateway"
MAX_AGE = 900.0
SPACING = 1.0
REFRESH = 60.0  # also when nothing changed: its age is how long ago the store was heard
LARGEST = 256 * 1024 * 1024
CLOCK_SLACK_S = 60.0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`revision` and `cluster_id` name the state of the store; `taken_ms` (epoch) is when it last vouched for it."""

    v: int = 1
    cluster: str
    cluster_id: int
    revision: int
    taken_ms: float
    taken_at: str = ""
    endpoints: list[EndpointRecord]
    secrets: dict[str, Secret]
    generations: dict[str, Generation]
    faults: list[FaultNotice]
    pools: dict[str, PoolSpec]

    def age(self) -> float:
        """Seconds since the store vouched for it."""
        return max(0.0, (stamp.now_ms() - self.taken_ms) / 1000.0)


class Refused(Exception):
    """This file must not be served from; the text says why."""


class SnapshotFile:
    """One gateway's file. `max_age` seconds, 0: never start from a file."""

    def __init__(self, path: Path, cluster: str, max_age: float) -> None:
        self.path = path
        self.cluster = cluster
        self.max_age = max_age

    def write(self, snapshot: Snapshot) -> None:
        """Raises OSError."""
        write_durably(self.path, msgspec.json.encode(snapshot))

    def clean(self) -> None:
        """Remove what a write left behind that was killed half-way."""
        for left in self.path.parent.glob(f".{self.path.name}.*.tmp"):
            with contextlib.suppress(OSError):
                left.unlink()

    def read(self) -> Snapshot | None:
        """What an earlier life wrote, however old; None where there is no file. Raises Refused."""
        try:
            # not following links, not waiting for a pipe: whatever lies there must not hold up a start
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refused(f"it cannot be opened: {error.strerror}") from None
        try:
            self._check_owner(os.fstat(fd))
            with os.fdopen(fd, "rb", closefd=False) as file:
                data = file.read(LARGEST)
        except OSError as error:
            raise Refused(f"it cannot be read: {error.strerror}") from None
        finally:
            os.close(fd)
        return self._checked(data)

    def _check_owner(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise Refused("it is no file of ours")
        if found.st_mode & 0o077:
            raise Refused(f"others may read or write it (mode {stat.S_IMODE(found.st_mode):04o}, not 0600)")
        if found.st_uid != os.geteuid():
            raise Refused(f"it belongs to user {found.st_uid}")

    def _checked(self, data: bytes) -> Snapshot:
        try:
            snapshot = msgspec.json.decode(data, type=Snapshot)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"it is damaged: {error}") from None
        if snapshot.v != 1:
            raise Refused(f"version {snapshot.v} is not known here")
        if snapshot.cluster != self.cluster:
            raise Refused(f"it is of cluster {snapshot.cluster!r}, not {self.cluster!r}")
        if snapshot.taken_ms > stamp.now_ms() + CLOCK_SLACK_S * 1000.0:
            raise Refused("it is from the future")
        return snapshot


class Source(Protocol):
    """The routing table, as far as it is kept on disk."""

    changed: asyncio.Event
    source: str

    @property
    def replaced(self) -> str: ...

    def capture(self) -> Snapshot: ...


class SnapshotKeeper:
    """Writes the file while the store vouches for the table; a disk that fails costs the file and nothing else."""

    def __init__(self, table: Source, file: SnapshotFile) -> None:
        self._table = table
        self._file = file
        self._written: Snapshot | None = None
        self._failed = False

    async def run(self) -> None:
        if self._file.max_age == 0:
            return  # nobody will ever read it, and it holds keys
        self._file.clean()
        refresh = min(REFRESH, max(SPACING, self._file.max_age / 4))
        while True:
            changed = False
            with contextlib.suppress(TimeoutError):
                changed = await asyncio.wait_for(self._table.changed.wait(), refresh)
            self._table.changed.clear()
            await self._write(changed=changed)
            await asyncio.sleep(SPACING)

    async def _write(self, *, changed: bool) -> None:
        if self._table.source != "store" or self._table.replaced:
            return
        snapshot, old = self._table.capture(), self._written
        if not changed and old is not None and snapshot.taken_ms - old.taken_ms < SPACING * 1000.0:
            return  # the store was not heard since
        try:
            await asyncio.to_thread(self._file.write, snapshot)
        except OSError as error:
            if not self._failed:
                why = error.strerror or str(error)
                hint = "without it this gateway cannot start while the store is away; see stateDir"
                log.warning("snapshot.unwritable", file=str(self._file.path), why=why, hint=hint)
            self._failed = True
            return
        self._failed, self._written = False, snapshot
