"""How answers leave: an event stream of one call, or one body at the end.

What stays true: a frame is written as soon as the engine's message is taken in, all that came together in one write;
a reader that falls behind gets no more frames until it has caught up, and then the newest only; the body of a call that
was cut short never ends properly.
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from infctl_daemon.engine.sim.frames import DONE, Answer, as_chunk

_END = as_chunk(DONE) + b"0\r\n\r\n"


class EventStream(web.StreamResponse):
    """A chunked response written straight to the transport."""

    def __init__(self, request: web.Request) -> None:
        super().__init__()
        self._call = request
        self._left = 0
        self._pending: list[bytes] = []
        self._behind: dict[Answer, None] = {}
        self._blocked = False
        self._over = False
        self._wake = asyncio.Event()
        self._out = request.transport
        self._protocol = request.protocol
        self._cut = False
        self.open = False

    # -- what aiohttp asks for ------------------------------------------------------------------------------

    @property
    def keep_alive(self) -> bool | None:
        return self.open and self._over and not self._cut and self._call.keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Nothing is left to send when the handler returns."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """See `prepare`."""

    # -- writing --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Sends the headers at once: a paused engine answers 200 and then nothing."""
        self.open = True
        head = (
            f"HTTP/1.1 200 OK\r\ndate: {formatdate(usegmt=True)}\r\nserver: uvicorn\r\n"
            "content-type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._write(head.encode())

    def expect(self, answers: int) -> None:
        """So many answers make the body complete."""
        self._left = answers

    def _write(self, data: bytes) -> None:
        if self._out is not None and not self._out.is_closing():
            self._out.write(data)

    def say(self, frame: bytes) -> None:
        """One frame that is no answer, and the end."""
        self._write(as_chunk(frame) + _END)
        self._over = True

    def break_off(self) -> None:
        """Ends the connection in the middle of the body."""
        self._cut = True
        if self._out is not None:
            self._out.close()

    def feed(self, answer: Answer) -> None:
        if answer.finish is not None:
            self._left -= 1
        if self._blocked:
            self._behind[answer] = None
        else:
            self._pending.append(answer.chunk())

    def flush(self) -> None:
        if self._blocked or self._over:
            return
        if not self._left:
            self._pending.append(_END)
            self._over = True
            self._wake.set()
        if self._pending:
            self._write(self._pending[0] if len(self._pending) == 1 else b"".join(self._pending))
            self._pending.clear()
        if self._protocol.writing_paused and not self._over:
            self._blocked = True
            self._wake.set()

    async def run(self) -> None:
        """Until the body is complete; raises ConnectionError when the reader is gone."""
        while not self._over:
            await self._wake.wait()
            self._wake.clear()
            while self._blocked:
                await self._call.writer.drain()
                self._blocked = False
                for answer in self._behind:
                    self._pending.append(answer.chunk())
                self._behind.clear()
                self.flush()


class Whole:
    """Waits for the last frame of each of `expected` answers."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.done = asyncio.Event()

    def feed(self, answer: Answer) -> None:
        if answer.finish is not None:
            self._left -= 1
            if not self._left:
                self.done.set()

    def flush(self) -> None: ...
