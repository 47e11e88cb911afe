"""One attempt on one worker: a connection of its own, read as bytes arrive (R12), told in callbacks.

No task and no timer runs for a frame: the transport's callback parses it and hands it over at once. The connection
is never pooled: SGLang closes idle ones after 5 s, and a fresh one makes "refused" mean refused.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import httptools

from infctl_daemon.gateway.frames import BadFrame, Frame, FrameReader

CONNECT_TIMEOUT = 2.0
BODY_LIMIT = 64 * 1024
FRAME_LIMIT = 16 * 1024 * 1024


class AttemptListener(Protocol):
    """Who is told. `on_end` comes exactly once, last; never after `Upstream.close`."""

    def on_frame(self, frame: Frame) -> None: ...

    def on_end(self, end: End) -> None: ...


class End:
    """How the attempt's connection ended. `done`: the body ended with [DONE]."""

    __slots__ = ("body", "connected", "done", "status", "why")

    def __init__(self, connected: bool, status: int, done: bool, why: str, body: bytes = b"") -> None:
        self.connected = connected
        self.status = status
        self.done = done
        self.why = why
        self.body = body


class Upstream(asyncio.Protocol):
    """POSTs one request to `/generate` and reads its event stream."""

    def __init__(self, listener: AttemptListener, head: bytes, body: bytes, *, keep_meta: bool = False) -> None:
        self._listener: AttemptListener | None = listener
        self._payload = (head, body)
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._status = 0
        self._buffer = bytearray()
        self._scanned = 0
        self._done = False
        self.frames = FrameReader(keep_meta=keep_meta)

    def start(self, host: str, port: int) -> None:
        """Connect in the background; every outcome is told to the listener."""
        self._task = asyncio.get_running_loop().create_task(self._connect(host, port))

    async def _connect(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await loop.create_connection(lambda: self, host, port)
        except TimeoutError:
            self._end(False, "no connection in time")
        except OSError as error:
            self._end(False, error.strerror or str(error))

    def close(self, *, gently: bool = False) -> None:
        """Forget the attempt: nothing is told from now on, the engine sees the connection close (or reset)."""
        self._listener = None
        if self._task is not None and not self._task.done() and self._transport is None:
            self._task.cancel()
        if self._transport is not None:
            if gently:
                self._transport.close()
            else:
                self._transport.abort()

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._listener is None:
            transport.abort()
            return
        transport.write(b"".join(self._payload))
        self._payload = (b"", b"")

    def data_received(self, data: bytes) -> None:
        if self._listener is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(True, f"no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(True, f"connection reset: {exc}" if exc else "connection closed")

    # httptools
    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if self._status != 200:
            del buffer[BODY_LIMIT:]
            return
        while self._listener is not None:
            at = buffer.find(b"\n\n", self._scanned)
            if at < 0:
                self._scanned = max(0, len(buffer) - 1)
                if len(buffer) > FRAME_LIMIT:
                    self._end(True, "a frame is larger than 16 MiB")
                return
            block = bytes(buffer[:at])
            del buffer[: at + 2]
            self._scanned = 0
            self._block(block)

    def on_message_complete(self) -> None:
        self._end(True, "response ended")

    def _block(self, block: bytes) -> None:
        if not block.startswith(b"data:"):
            return
        data = block[5:].strip()
        if data == b"[DONE]":
            self._done = True
            return
        listener = self._listener
        if listener is None:
            return
        try:
            frame = self.frames.read(data)
        except BadFrame as error:
            self._end(True, f"bad frame: {error}")
            return
        listener.on_frame(frame)

    def _end(self, connected: bool, why: str) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            body = bytes(self._buffer) if self._status != 200 else b""
            listener.on_end(End(connected and (self._status != 0), self._status, self._done, why, body))
        if self._transport is not None:
            self._transport.abort()


def request_head(host: str, path: str, api_key: str, length: int) -> bytes:
    """The head of a POST with a JSON body of `length` bytes."""
    auth = f"authorization: Bearer {api_key}\r\n" if api_key else ""
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\nconnection: close\r\n{auth}\r\n"
    ).encode("latin-1")
