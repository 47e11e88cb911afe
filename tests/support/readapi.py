"""The read-only API of a daemon under test: found by its lease key, asked over HTTP; or without its daemon."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp

from infctl.config.read_api import ReadApi
from infctl.domain.group import Group, Phase
from infctl.ports.store import Store
from infctl.store.codec import decode
from infctl.store.keys import Keys
from infctl.store.records import NodeLease
from infctl_daemon.node.api import ReadApiServer
from infctl_daemon.node.api_facts import Facts
from infctl_daemon.node.endings import digest
from infctl_daemon.proc.ended import Ended, write
from infctl_daemon.runtime import log


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


LAUNCH, OLD = "a-abcdefgh", "a-bcdefgh2"
KEY, OLD_KEY = "k" + "1" * 48, "k" + "2" * 48


class Loop:
    """A group as its loop shows it."""

    def __init__(self, phase: Phase = Phase.READY) -> None:
        self.state = Group("a", phase=phase, launch=LAUNCH, generation=4, gone=False, end_reason="hang")
        launch = SimpleNamespace(name=LAUNCH, api_key=KEY, started=1.0, tree=None)
        self.executor = SimpleNamespace(launch=launch)
        self.name = "a"
        self.since = "2026-01-02T03:04:05.678Z"
        self.restarts = 2

    def end(self) -> None:
        """Its launch is over and gone."""
        self.state = replace(self.state, phase=Phase.BACKOFF, gone=True)


class Daemon:
    """An API over a folder and one group, without a daemon around it."""

    def __init__(self, folder: Path, api: ReadApi, loop: Loop) -> None:
        self.folder = folder
        self.loop = loop
        (folder / "logs").mkdir(exist_ok=True)
        self.log = folder / "logs" / f"{LAUNCH}.log"
        self.listed = True
        self.url = ""
        context: Any = SimpleNamespace(node="n1", state_dir=folder, world=SimpleNamespace(specs={}))
        record = NodeLease(node="n1", boot_id="b", incarnation="i")
        loops: Any = {"a": loop}
        self.facts = Facts(context, loops, {}, lambda: record, lambda: "held", lambda: self.listed)
        self.server = ReadApiServer(api, self.facts, log.get("test"), self._reached)

    def _reached(self, url: str) -> None:
        self.url = url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextlib.asynccontextmanager
async def serving(folder: Path, loop: Loop | None = None, **api: Any) -> AsyncIterator[Daemon]:
    daemon = Daemon(folder, ReadApi(port=0, **api), loop or Loop())
    try:
        assert await daemon.server.open()
        yield daemon
    finally:
        await daemon.server.close()


def ended(daemon: Daemon) -> None:
    write(
        daemon.folder,
        Ended(
            group="a",
            launch=OLD,
            reason="hang",
            signal=9,
            ended_at="2026-01-02T03:04:05.678Z",
            key_digest=digest(OLD_KEY),
        ),
    )
