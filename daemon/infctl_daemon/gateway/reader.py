"""A client that follows a stream: frames go straight to its socket; a slow one is caught up, never waited for (R12).

While the socket's buffer is below the bound each frame is written in the same call that committed it: no task runs.
Above it the reader is lagging: what waits is one frame that grows, and the handler's task sends it once the socket
drained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from infctl.domain.request_events import ErrorType
from infctl_daemon.gateway.errors import error_body
from infctl_daemon.gateway.sse import Surface, error_frame

HIGH_WATER = 256 * 1024


class Reader:
    """What a stream tells; `result` is set when nothing more will come."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self.done = asyncio.Event()
        self.finished: tuple[str, str | int | None] | None = None
        self.error: tuple[ErrorType, str] | None = None

    def tokens(self, ids: Sequence[int], text: str, position: int, crc: int, note: str) -> None:
        self.surface.tokens(ids, text, position, crc, note)

    def finish(self, reason: str, matched: str | int | None, text: str) -> None:
        self.surface.finish(reason, matched, text)
        self.finished = (reason, matched)
        self.done.set()

    def fail(self, error: ErrorType, message: str) -> None:
        self.error = (error, message)
        self.done.set()

    def whole(self) -> dict[str, Any]:
        assert self.finished is not None
        return self.surface.whole(*self.finished)


class StreamReader(Reader):
    """Writes server-sent events to a prepared response."""

    def __init__(self, surface: Surface) -> None:
        super().__init__(surface)
        self._transport: asyncio.Transport | None = None
        self._response: web.StreamResponse | None = None
        self._direct = False
        self._lag: tuple[list[int], str, int, int, str] | None = None
        self._last: list[bytes] = []
        self._wake = asyncio.Event()

    async def begin(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send the headers; from here on frames go out as they come."""
        await response.prepare(request)
        await response.write(b"")
        transport = request.transport
        # chunks are framed by hand, which needs HTTP/1.1; for others the handler's task writes
        if isinstance(transport, asyncio.Transport) and request.version >= (1, 1):
            self._transport = transport
            self._direct = self._lag is None and not self._last
        self._response = response

    def tokens(self, ids: Sequence[int], text: str, position: int, crc: int, note: str) -> None:
        transport = self._transport
        if self._direct and transport is not None and transport.get_write_buffer_size() < HIGH_WATER:
            if not transport.is_closing():
                frame = self.surface.tokens(ids, text, position, crc, note)
                transport.write(b"%x\r\n%s\r\n" % (len(frame), frame))
            return
        # one frame may carry many tokens: what waits is kept once, not frame by frame
        self._direct = False
        before, said, _, _, earlier = self._lag or ([], "", 0, 0, "")
        self._lag = ([*before, *ids], said + text, position, crc, note or earlier)
        self._wake.set()

    def finish(self, reason: str, matched: str | int | None, text: str) -> None:
        self.finished = (reason, matched)
        self._flush_lag()
        self._end(self.surface.finish(reason, matched, text))

    def fail(self, error: ErrorType, message: str) -> None:
        self.error = (error, message)
        self._flush_lag()
        self._end(error_frame(error_body(error, message)) if self._response is not None else b"")

    def _flush_lag(self) -> None:
        if self._lag is not None:
            lag, self._lag = self._lag, None
            self._last.append(self.surface.tokens(*lag))

    def _end(self, frame: bytes) -> None:
        if frame:
            self._last.append(frame)
        self._direct = False
        self.done.set()
        self._wake.set()

    async def follow(self) -> None:
        """Until the stream ends: send what could not be sent directly, then go back to sending directly."""
        response = self._response
        assert response is not None
        while True:
            while self._lag is not None or self._last:
                self._flush_lag()
                frames, self._last = self._last, []
                await response.write(b"".join(frames))
            if self.done.is_set():
                return
            self._direct = self._transport is not None
            self._wake.clear()
            await self._wake.wait()
