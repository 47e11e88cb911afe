"""Reads what others write: groups, pools, faults and suspicions, from one revision on, for ever.

Kept true: one list at one revision, then every change after it in order; a relist replaces what it lists; while the
store is away the last view stays (R5), with one log line when it goes and one when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from infctl.domain.errors import StoreError
from infctl.ports.store import Interrupted, Relist, Store
from infctl_daemon.runtime.log import Logger, told

RETRY = 0.5

Put = Callable[[str, bytes | None, int], None]


class Observer:
    """Calls `changed(key, value or None, revision)` in the loop for each key, and `synced()` after the first list."""

    def __init__(self, store: Store, prefixes: tuple[str, ...], log: Logger, changed: Put) -> None:
        self._store = store
        self._prefixes = prefixes
        self._log = log
        self._changed = changed
        self._present: dict[str, set[str]] = {p: set() for p in prefixes}
        self._away: set[str] = set()

    async def list(self) -> int:
        """Everything at one revision, however long it takes to get it. Returns that revision."""
        said = ""
        while True:
            try:
                revision = 0
                lists = []
                for prefix in self._prefixes:
                    found = await self._store.range(prefix, revision=revision)
                    revision = revision or found.revision
                    lists.append((prefix, found.kvs))
                break
            except StoreError as error:
                if error.reason != said:
                    self._log.warning("store not reachable, trying on", **told(error))
                said = error.reason
                await asyncio.sleep(RETRY)
        if said:
            self._log.info("store reachable")
        for prefix, kvs in lists:
            for kv in kvs:
                self._tell(prefix, kv.key, kv.value, kv.mod_revision)
        return revision

    async def follow(self, revision: int) -> None:
        """Watch every prefix from after `revision` until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for prefix in self._prefixes:
                tasks.create_task(self._follow(prefix, revision + 1), name=f"watch {prefix}")

    async def _follow(self, prefix: str, start: int) -> None:
        watch = self._store.watch(prefix, start_revision=start)
        async for item in watch:
            if isinstance(item, Interrupted):
                if not self._away:
                    self._log.warning("store away: going on with the last view", why=item.reason)
                self._away.add(prefix)
                continue
            if prefix in self._away:
                self._away.discard(prefix)
                if not self._away:
                    self._log.info("store back")
            if isinstance(item, Relist):
                listed = {kv.key for kv in item.kvs}
                for key in self._present[prefix] - listed:
                    self._tell(prefix, key, None, item.revision)
                for kv in item.kvs:
                    self._tell(prefix, kv.key, kv.value, kv.mod_revision)
            elif (events := getattr(item, "events", None)) is not None:
                for event in events:
                    self._tell(prefix, event.key, event.value, event.mod_revision)

    def _tell(self, prefix: str, key: str, value: bytes | None, revision: int) -> None:
        if value is None:
            self._present[prefix].discard(key)
        else:
            self._present[prefix].add(key)
        try:
            self._changed(key, value, revision)
        except Exception:
            self._log.exception("a change could not be handled", key=key)
