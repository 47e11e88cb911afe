"""The node's lease and its key `nodes/<node>/lease`: who we are, for as long as the store knows us.

Kept true: `held` is said only when the key is written under the lease, so whatever compares the key may rely on it; a
lease is called ended only on the store's word (R5), and then a new one is taken; the lease of an earlier life is taken
over where it still lives; a key that another lease holds is never overwritten, so that of two daemons with one name
only the first one acts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

import msgspec

from infctl import __version__
from infctl.domain.errors import LeaseLost, StoreError
from infctl.domain.lease import Holding
from infctl.ports.store import Compare, Get, Put, Store
from infctl.store.codec import BadRecord, decode, encode
from infctl.store.keys import Keys
from infctl.store.lease_keeper import LeaseKeeper
from infctl.store.records import NodeLease
from infctl.store.stamp import now_text
from infctl_daemon.proc.procfs import boot_id
from infctl_daemon.runtime.log import Logger, told

RETRY = 0.5


class Membership:
    """Runs until cancelled. `held(lease)` and `ended()` are called in the loop."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        node: str,
        ttl: float,
        log: Logger,
        held: Callable[[int], None],
        ended: Callable[[], None],
        earlier: int = 0,
        keep: Callable[[int], None] = lambda lease: None,
        engines_at: str = "",
    ) -> None:
        """`earlier` is the lease of an earlier life; `keep` writes ours down for a later one, and may block."""
        self._store = store
        self._keys = keys
        self._ttl = ttl
        self._log = log
        self._held = held
        self._ended = ended
        self._earlier = earlier
        self._keep = keep
        self._keeper: LeaseKeeper | None = None
        self._stopping = False
        self._moved = asyncio.Event()
        self.lease = 0
        self.record = NodeLease(
            node=node,
            boot_id=boot_id(),
            incarnation=os.urandom(4).hex(),
            engines_at=engines_at,
            version=__version__,
            started_at=now_text(),
        )

    async def run(self) -> None:
        said = ""
        while not self._stopping:
            keeper = LeaseKeeper(self._store, self._ttl, on_change=self._changed)
            try:
                lease = await keeper.start(resume=self._earlier)
                self._keeper = keeper
                await asyncio.to_thread(self._keep, lease)
                await self._write_key(keeper, lease)
            except StoreError as error:
                await keeper.stop(revoke=False)
                if self._earlier and isinstance(error, LeaseLost):
                    self._log.info("the lease of the earlier life is gone", lease=f"{self._earlier:x}")
                    self._earlier = 0
                    continue
                if error.reason != said:
                    self._log.warning("no lease yet, trying on", **told(error))
                said = error.reason
                await asyncio.sleep(RETRY)
                continue
            said = ""
            self.lease = lease
            self._log.info("lease held", lease=f"{lease:x}", ttl_s=keeper.ttl_s, resumed=bool(self._earlier))
            self._earlier = 0
            self._held(lease)
            await self._until_lost(keeper, lease)
            self.lease = 0
            self._log.warning("lease lost: the store says that it is gone", lease=f"{lease:x}")
            self._ended()
            await keeper.stop(revoke=False)

    async def _write_key(self, keeper: LeaseKeeper, lease: int) -> None:
        """Until it is ours. Raises LeaseLost when the lease went meanwhile."""
        key = self._keys.node_lease(self.record.node)
        said = False
        while True:
            self._moved.clear()
            value = encode(self.record)
            try:
                done = await self._store.txn([Compare.absent(key)], [Put(key, value, lease)], [Get(key)])
                there = None if done.succeeded or not done.gets[0] else done.gets[0][0]
                if done.succeeded:
                    return
                if there is not None and there.lease == lease:
                    if (await self._store.txn([Compare.held_by(key, lease)], [Put(key, value, lease)])).succeeded:
                        return
                elif there is not None and not said:
                    said = True
                    self._say_taken(there.value)
            except LeaseLost:
                raise
            except StoreError:
                pass
            if keeper.lost.is_set():
                raise LeaseLost("gone before it was used")
            await asyncio.sleep(RETRY)

    def _say_taken(self, value: bytes) -> None:
        try:
            other = decode(NodeLease, value)
        except BadRecord:
            other = NodeLease(node=self.record.node, boot_id="", incarnation="?")
        self._log.warning(
            "another daemon has this node's name, or had it until moments ago: waiting for the end of its lease",
            incarnation=other.incarnation,
            started_at=other.started_at,
            this_boot=other.boot_id == self.record.boot_id,
            hint="two daemons must not have one name: see node: in node.yaml",
        )

    async def _until_lost(self, keeper: LeaseKeeper, lease: int) -> None:
        """Wait for the lease's end; an address that came meanwhile is written when it comes."""
        lost = asyncio.ensure_future(keeper.lost.wait())
        try:
            while not lost.done():
                moved = asyncio.ensure_future(self._moved.wait())
                await asyncio.wait({lost, moved}, return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
                if self._moved.is_set() and not lost.done():
                    with contextlib.suppress(LeaseLost):
                        await self._write_key(keeper, lease)
        finally:
            lost.cancel()

    def reached_at(self, address: str) -> None:
        """Where our read-only API is; said in our key from now on."""
        if address != self.record.address:
            self.record = msgspec.structs.replace(self.record, address=address)
            self._moved.set()

    @property
    def holding(self) -> str:
        """`held`, `uncertain`, `lost` (the store said so; the next one is being taken), or `none` before the first."""
        keeper = self._keeper
        return str(keeper.holding) if keeper is not None else "none"

    def _changed(self, holding: Holding) -> None:
        if holding is Holding.UNCERTAIN:
            self._log.warning("lease uncertain: nothing new is published, nothing is stopped")
        elif holding is Holding.HELD:
            self._log.info("lease renewed again")

    async def stop(self, *, revoke: bool = True) -> None:
        """Give the lease back, and its keys go at once; or leave it to a later life, which has until its end."""
        self._stopping = True
        if self._keeper is not None:
            await self._keeper.stop(revoke=revoke)
