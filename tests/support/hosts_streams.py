"""Streams through the gateway of a cluster over several hosts, as their client sees them from the observer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.support.hosts_cluster import HostedCluster
from tests.support.noded import until
from tests.support.readapi import ask
from tests.support.witness import Seen, body, watch

SLOW = ["--sim-load-seconds", "0.1", "--sim-decode-seconds", "0.03"]


@contextlib.asynccontextmanager
async def streaming(cluster: HostedCluster, group: str) -> AsyncIterator[Seen]:
    """A stream that runs on this group when it is given out, as its client sees it; it would run for minutes."""
    seen = Seen()
    stream = asyncio.create_task(watch(cluster.url, body(tokens=3500), seen, group=group))
    try:
        await more(seen, 5)
        yield seen
        assert not stream.done()
        assert (seen.error, seen.broken) == (None, [])
    finally:
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)


async def more(seen: Seen, tokens: int, seconds: float = 20.0) -> None:
    """So many tokens come."""
    target = len(seen.ids) + tokens

    async def came() -> bool:
        return len(seen.ids) >= target

    await until(came, seconds, f"{tokens} more tokens, {seen.error}")


async def routable(cluster: HostedCluster, *launches: str) -> None:
    async def those() -> bool:
        return (await ask(f"{cluster.admin}/v1/status"))[1]["routable"] == sorted(launches)

    await until(those, 15.0, f"the gateway routes to {launches}")
