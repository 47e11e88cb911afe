"""One backend for each store that keeps the contract: in memory, and every etcd program found here."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from infctl.adapters.etcd import EtcdStore
from infctl.adapters.memory_store import MemoryStore
from infctl.ports.store import Store
from tests.support.etcd import BINARIES, LiveEtcd

_BACKENDS = ["memory", *(f"etcd-{binary.version_text}" for binary in BINARIES)]
_names = itertools.count()


@dataclass
class Backend:
    """A store and the means to cut it off; `prefix` is this test's own."""

    store: Any
    prefix: str
    etcd: LiveEtcd | None = None

    def key(self, name: str = "") -> str:
        return self.prefix + name

    def another(self) -> Store:
        """A second client of the same data."""
        return EtcdStore([self.etcd.endpoint]) if self.etcd else self.store

    def cut(self) -> None:
        if self.etcd:
            self.etcd.freeze()
        else:
            self.store.unavailable = True

    def heal(self) -> None:
        if self.etcd:
            self.etcd.thaw()
        else:
            self.store.unavailable = False


@pytest.fixture(scope="session")
def etcds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LiveEtcd]]:
    """Each etcd program once for the whole run; tests share it under prefixes of their own."""
    running: dict[str, LiveEtcd] = {}
    try:
        for binary in BINARIES:
            etcd = LiveEtcd(binary, tmp_path_factory.mktemp("etcd"))
            running[f"etcd-{binary.version_text}"] = etcd
            asyncio.run(etcd.start())
        yield running
    finally:
        for etcd in running.values():
            asyncio.run(etcd.close())


@pytest.fixture(params=_BACKENDS)
async def backend(request: pytest.FixtureRequest, etcds: dict[str, LiveEtcd]) -> AsyncIterator[Backend]:
    prefix = f"/t{next(_names)}/"
    if request.param == "memory":
        made = Backend(MemoryStore(), prefix)
    else:
        etcd = etcds[request.param]
        made = Backend(EtcdStore([etcd.endpoint]), prefix, etcd)
    yield made
    await made.store.close()


@pytest.fixture
async def store(backend: Backend) -> Any:
    return backend.store
