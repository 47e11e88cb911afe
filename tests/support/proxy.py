"""A TCP proxy that can be cut: the network between one client and a member, with a handle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Forwards to `target` (host:port) until `cut()`, which refuses and resets, or `swallow()`, which says nothing."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: int | None = None
        self.port = 0
        self.was_cut = asyncio.Event()
        self._passing = asyncio.Event()
        self._passing.set()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def heal(self) -> None:
        self._left = None
        self.was_cut.clear()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        if self._server:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self.was_cut.set()

    def swallow(self) -> None:
        """Every packet is lost, both ways, and no connection hears of it: a firewall that drops."""
        self._passing.clear()

    def pass_on(self) -> None:
        self._passing.set()

    def cut_after(self, size: int) -> None:
        """Cut once so many more bytes have gone to the client."""
        self._left = size

    async def close(self) -> None:
        self.cut()
        self.pass_on()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            host, _, port = self.target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for source, sink, counted in ((reader, far_writer, False), (far_reader, writer, True)):
            task = asyncio.create_task(self._pump(source, sink, counted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(16384):
                if counted and self._left is not None:
                    self._left -= len(data)
                    if self._left <= 0:
                        self.cut()
                        return
                await self._passing.wait()
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)


@asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    await proxy.heal()
    try:
        yield proxy
    finally:
        await proxy.close()
