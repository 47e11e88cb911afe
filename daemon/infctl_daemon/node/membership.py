"""The node's lease and its key `nodes/<node>/lease`: who we are, for as long as the store knows us.

Kept true: `held` is said only when the key is written under the lease, so whatever compares the key may rely on it; a
lease is called ended only on the store's word (R5), and then a new one is taken.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from infctl import __version__
from infctl.domain.errors import LeaseLost, StoreError
from infctl.domain.lease import Holding
from infctl.ports.store import Store
from infctl.store.codec import encode
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
    ) -> None:
        self._store = store
        self._keys = keys
        self._ttl = ttl
        self._log = log
        self._held = held
        self._ended = ended
        self._keeper: LeaseKeeper | None = None
        self._stopping = False
        self.lease = 0
        self._record = NodeLease(
            node=node, boot_id=boot_id(), incarnation=os.urandom(4).hex(), version=__version__, started_at=now_text()
        )

    async def run(self) -> None:
        said = ""
        while not self._stopping:
            keeper = LeaseKeeper(self._store, self._ttl, on_change=self._changed)
            try:
                lease = await keeper.start()
                self._keeper = keeper
                await self._write_key(keeper, lease)
            except StoreError as error:
                if error.reason != said:
                    self._log.warning("no lease yet, trying on", **told(error))
                said = error.reason
                await keeper.stop(revoke=False)
                await asyncio.sleep(RETRY)
                continue
            said = ""
            self.lease = lease
            self._log.info("lease held", lease=f"{lease:x}", ttl_s=keeper.ttl_s)
            self._held(lease)
            await keeper.lost.wait()
            self.lease = 0
            self._log.warning("lease lost: the store says that it is gone", lease=f"{lease:x}")
            self._ended()
            await keeper.stop(revoke=False)

    async def _write_key(self, keeper: LeaseKeeper, lease: int) -> None:
        """Until it is written. Raises LeaseLost when the lease went meanwhile."""
        key = self._keys.node_lease(self._record.node)
        while True:
            try:
                await self._store.put(key, encode(self._record), lease=lease)
                return
            except LeaseLost:
                raise
            except StoreError:
                if keeper.lost.is_set():
                    raise LeaseLost("gone before it was used") from None
                await asyncio.sleep(RETRY)

    def _changed(self, holding: Holding) -> None:
        if holding is Holding.UNCERTAIN:
            self._log.warning("lease uncertain: nothing new is published, nothing is stopped")
        elif holding is Holding.HELD:
            self._log.info("lease renewed again")

    async def stop(self) -> None:
        """Give the lease back: its keys go at once."""
        self._stopping = True
        if self._keeper is not None:
            await self._keeper.stop(revoke=True)
