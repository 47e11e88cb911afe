"""Where the cluster is: `--endpoints`, then `INFCTL_ENDPOINTS`, then the context.

Each answer says where it came from. A context has its own certificates; endpoints from a flag or the environment are
spoken to with those of the environment (INFCTL_ETCD_CA and so on). The token for the read-only APIs of daemons is that
of INFCTL_READ_TOKEN_FILE, else of the context.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infctl.config.context import Context, load_contexts, unknown_context
from infctl.config.store_tls import check_files, from_environment
from infctl.domain.errors import UsageError
from infctl.ports.tls import TlsFiles

if TYPE_CHECKING:  # completion reads this file, too
    from infctl.ports.store import Store
    from infctl.store.keys import Keys


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster to speak to; `origin` is for messages, `read_token_file` for the read-only APIs of its daemons."""

    endpoints: tuple[str, ...]
    cluster: str
    origin: str
    tls: TlsFiles | None = None
    read_token_file: Path | None = None


def find_cluster(endpoints: str = "", context: str = "", cluster: str = "") -> Place:
    """The cluster meant by the flags, the environment and the contexts file. Raises UsageError or ConfigError."""
    context = context or os.environ.get("INFCTL_CONTEXT", "")
    cluster = cluster or os.environ.get("INFCTL_CLUSTER", "")
    if endpoints:
        return Place(_split(endpoints), cluster or "default", "--endpoints", from_environment(), _token())
    if not context and (env := os.environ.get("INFCTL_ENDPOINTS", "")):
        return Place(_split(env), cluster or "default", "INFCTL_ENDPOINTS", from_environment(), _token())
    found = load_contexts()
    name = context or found.current
    if not name:
        raise UsageError(
            "no cluster to speak to",
            reason="NoCluster",
            hint=f"give --endpoints HOST:PORT, set INFCTL_ENDPOINTS, add a context to {found.path}, or: infctl dev up",
        )
    chosen: Context | None = found.contexts.get(name)
    if chosen is None:
        raise unknown_context(name, found)
    token = _token() or chosen.read_token_file
    return Place(chosen.endpoints, cluster or chosen.cluster, f"context {name}", chosen.tls, token)


def _token() -> Path | None:
    named = os.environ.get("INFCTL_READ_TOKEN_FILE", "")
    return Path(named).expanduser() if named else None


def _split(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise UsageError("an empty list of endpoints", hint="write HOST:PORT[,HOST:PORT...]")
    return found


@asynccontextmanager
async def open_cluster(place: Place) -> AsyncIterator[tuple[Store, Keys]]:
    """A connected store and the keys of the cluster; closed at the end, whatever happens."""
    from infctl.adapters.etcd import EtcdStore
    from infctl.store.keys import Keys

    store: Store = EtcdStore(place.endpoints, tls=check_files(place.tls, place.origin))
    try:
        yield store, Keys(place.cluster)
    finally:
        await store.close()
