"""A TCP proxy that holds one request back while its sender gives up, and delivers it long after: a late write."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class LateProxy:
    """Forwards to `target` (host:port). After `hold(marker)` the first bytes from a client with `marker` in them, and
    all that this client sends later, stay here; `cut` ends its connection; `deliver` lets those first bytes through."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._marker = b""
        self._kept = b""
        self._held: tuple[asyncio.StreamWriter, asyncio.StreamWriter] | None = None
        self.port = 0
        self.holding = asyncio.Event()
        self.answer = b""

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def hold(self, marker: bytes) -> None:
        self._marker = marker

    def cut(self) -> None:
        """The client sees its connection break; the target does not."""
        assert self._held is not None
        self._held[0].transport.abort()

    async def deliver(self) -> None:
        """What was held reaches the target now; `answer` collects what it says."""
        assert self._held is not None
        self._held[1].write(self._kept)
        await self._held[1].drain()

    async def close(self) -> None:
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        pair = (writer, far_writer)
        for work in (self._upstream(reader, pair), self._downstream(far_reader, pair)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _upstream(
        self, reader: asyncio.StreamReader, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                if self._held is pair:
                    continue
                if self._marker and self._marker in data:
                    self._marker, self._kept, self._held = b"", data, pair
                    self.holding.set()
                    continue
                pair[1].write(data)
                await pair[1].drain()
        if self._held is not pair:
            pair[1].transport.abort()

    async def _downstream(
        self, reader: asyncio.StreamReader, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                if self._held is pair:
                    self.answer += data
                if not pair[0].is_closing():
                    pair[0].write(data)
                    await pair[0].drain()
        pair[0].transport.abort()


@asynccontextmanager
async def late_proxy(target: str) -> AsyncIterator[LateProxy]:
    proxy = LateProxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
