"""The read-only API of a daemon under test: found by its lease key, asked over HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp

from infctl.ports.store import Store
from infctl.store.codec import decode
from infctl.store.keys import Keys
from infctl.store.records import NodeLease


async def address(store: Store, keys: Keys, node: str = "n1", seconds: float = 15.0) -> str:
    """The URL in the node's lease key, once it is there."""
    until = time.monotonic() + seconds
    while True:
        kv = await store.get(keys.node_lease(node))
        if kv is not None and (found := decode(NodeLease, kv.value).address):
            return found
        assert time.monotonic() < until, "no address in the lease key"
        await asyncio.sleep(0.05)


async def ask(url: str, token: str = "", **options: Any) -> tuple[int, Any]:
    """Status, and the answer: data of JSON, else text."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    limit = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers, timeout=limit, **options) as answer:
        if answer.content_type == "application/json":
            return answer.status, await answer.json()
        return answer.status, await answer.text()


async def follow(url: str, into: list[str]) -> None:
    """Collect lines until the daemon ends the answer."""
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        assert answer.status == 200
        async for line in answer.content:
            into.append(line.decode())
