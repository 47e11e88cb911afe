"""One backend for each store that keeps the contract: in memory, and every etcd program found here."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from infctl.adapters.etcd import EtcdStore
from infctl.adapters.memory_store import MemoryStore
from infctl.domain.errors import StoreUnavailable
from infctl.ports.store import Lease
from tests.support.etcd import BINARIES, LiveEtcd

_BACKENDS = ["memory", *(f"etcd-{binary.version_text}" for binary in BINARIES)]
_names = itertools.count()


@dataclass
class Backend:
    """A store and the means to cut it off; `prefix` is this test's own."""

    store: Any
    prefix: str
    etcd: LiveEtcd | None = None
    leases: list[int] = field(default_factory=list)

    async def grant(self, ttl_s: float) -> Lease:
        """A lease that ends with the test: one that expired later would change the revision under another test."""
        lease: Lease = await self.store.grant(ttl_s)
        self.leases.append(lease.id)
        return lease

    def key(self, name: str = "") -> str:
        return self.prefix + name

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
    with contextlib.suppress(StoreUnavailable):  # closed by the test
        for lease in made.leases:
            await made.store.revoke(lease)
    await made.store.close()


@pytest.fixture
async def store(backend: Backend) -> Any:
    return backend.store
