"""What a drain looks at beyond its own group: gateways, endpoints, disruptions, pools; watched while somebody drains.

Kept true: nothing is said before one whole list was read; while the store is away the last view stays (R5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from infctl.ports.store import Store
from infctl.store.codec import BadRecord, decode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, GatewayRecord
from infctl_daemon.node.observer import Observer
from infctl_daemon.runtime.log import Logger

T = TypeVar("T")


class Surroundings:
    """Listeners run in the loop: `on_gateways` when a gateway spoke or went, `on_rules` when a rule may differ."""

    def __init__(self, store: Store, keys: Keys, log: Logger) -> None:
        self._store = store
        self._keys = keys
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._users = 0
        self.synced = False
        self.gateways: dict[str, GatewayRecord] = {}
        self.endpoints: dict[str, EndpointRecord] = {}
        self.on_gateways: set[Callable[[], None]] = set()
        self.on_rules: set[Callable[[], None]] = set()

    def enter(self) -> None:
        """One more drain looks."""
        self._users += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="drain surroundings")

    def leave(self) -> None:
        """One fewer; after the last one nothing is watched any more."""
        self._users -= 1
        if not self._users and self._task is not None:
            self._task.cancel()
            self._task = None
            self.synced = False
            self.gateways.clear()
            self.endpoints.clear()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        k = self._keys
        prefixes = (k.gateways, k.endpoints, k.disruptions, k.pools)
        observer = Observer(self._store, prefixes, self._log, self._changed)
        revision = await observer.list()
        self.synced = True
        self._tell(self.on_gateways)
        self._tell(self.on_rules)
        await observer.follow(revision)

    def _changed(self, key: str, value: bytes | None, revision: int) -> None:
        try:
            match self._keys.parts(key):
                case ("gateways", name):
                    self._keep(self.gateways, name, decode(GatewayRecord, value) if value is not None else None)
                    self._tell(self.on_gateways)
                case ("endpoints", name):
                    self._keep(self.endpoints, name, decode(EndpointRecord, value) if value is not None else None)
                    self._tell(self.on_rules)
                case ("disruptions", _) | ("pools", _, "spec"):
                    self._tell(self.on_rules)
        except BadRecord as error:
            self._log.error("a record cannot be read: left as it was", key=key, why=error.message)

    @staticmethod
    def _keep(known: dict[str, T], name: str, record: T | None) -> None:
        if record is None:
            known.pop(name, None)
        else:
            known[name] = record

    def _tell(self, listeners: set[Callable[[], None]]) -> None:
        if self.synced:
            for tell in tuple(listeners):
                tell()
