"""Short questions (GET) over connections that stay open: what a daemon at rest asks each of its engines every second.

A general client costs more than twice as much for each of them (measured here: aiohttp 700 us, this 330 us).

Kept true: a connection carries one question at a time, and one whose question was not answered in full is never used
again. An idle connection that turns out to be closed hides nothing: the question is put again, at last on a new one.
"""

from __future__ import annotations

import asyncio

import httptools

BODY_LIMIT = 4 * 2**20  # bytes of one answer
IDLE = 2  # open connections to one engine that wait for a question


class KeptGets:
    """Connections to all engines of one loop; `close()` it."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], list[_Line]] = {}
        self._lines: set[_Line] = set()

    async def get(self, host: str, port: int, head: bytes, timeout: float) -> tuple[int, bytes]:
        """Status and body of the answer to `head`, a whole GET request.

        Raises TimeoutError, and OSError for everything that is no answer: refused, cut off, not HTTP, too long.
        """
        at = host, port
        async with asyncio.timeout(timeout):
            while idle := self._idle.get(at):
                line = idle.pop()
                if not line.open:
                    continue
                try:
                    return await self._ask(line, head, at)
                except ConnectionError:
                    if line.heard:
                        raise  # half an answer is an answer cut off, not an old connection
            self._forget_closed()
            _, line = await asyncio.get_running_loop().create_connection(lambda: _Line(self._lines), host, port)
            return await self._ask(line, head, at)

    async def _ask(self, line: _Line, head: bytes, at: tuple[str, int]) -> tuple[int, bytes]:
        try:
            answer = await line.ask(head)
        except BaseException:
            line.abort()
            raise
        idle = self._idle.setdefault(at, [])
        if line.open and len(idle) < IDLE:
            idle.append(line)
        else:
            line.abort()
        return answer

    def _forget_closed(self) -> None:
        """Engines that are gone leave nothing here: each launch has ports of its own."""
        alive = {at: [line for line in idle if line.open] for at, idle in self._idle.items()}
        self._idle = {at: idle for at, idle in alive.items() if idle}

    def close(self) -> None:
        """Questions that are on their way end with an OSError."""
        self._idle.clear()
        for line in tuple(self._lines):
            line.abort()


class _Line(asyncio.Protocol):
    """One connection. `heard`: something of the answer to the last question has come."""

    def __init__(self, lines: set[_Line]) -> None:
        self._lines = lines
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._body = bytearray()
        self.open = False
        self.heard = False
        self._sized = False  # the answer says where it ends
        self._until_eof = False  # its head has come, and it does not

    def ask(self, head: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self._transport is not None
        self.heard = False
        self._body.clear()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(head)
        return self._answer

    def abort(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, why: str) -> None:
        self.open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(why))

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._lines.add(self)
        self.open = True

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # nobody has asked
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self.abort()

    def eof_received(self) -> None:
        self.open = False
        if self._until_eof:
            self.on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lines.discard(self)
        self._fail(f"connection lost: {exc}" if exc else "connection closed")

    # httptools
    def on_message_begin(self) -> None:
        self._sized = self._until_eof = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._sized |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._until_eof = not self._sized and self._parser.get_status_code() >= 200

    def on_body(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > BODY_LIMIT:
            self._fail(f"an answer of more than {BODY_LIMIT} bytes")
            self.abort()

    def on_message_complete(self) -> None:
        if self._answer is None or self._answer.done() or (status := self._parser.get_status_code()) < 200:
            return
        self.open = self.open and self._parser.should_keep_alive()
        self._answer.set_result((status, bytes(self._body)))
