"""A client and the streams that answer it: frames go straight to its socket; a slow one is caught up, never waited for.

While the socket's buffer is below the bound each frame is written in the same call that committed it: no task runs.
Above it the client is lagging (R12): what waits is one frame for each stream, which grows, and the handler's task
sends it once the socket drained. A response of several streams ends when all have ended, or with the first error.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from infctl.domain.request_events import ErrorType
from infctl_daemon.gateway.asked import Bundle, Job
from infctl_daemon.gateway.errors import error_body
from infctl_daemon.gateway.sse import Form, Surface, Usage, error_frame

HIGH_WATER = 256 * 1024
KEEP_ALIVE = 15.0
PING = b": ping\n"  # no blank line: a comment block of its own breaks the official client


class Part:
    """One stream's place in the answer: what the stream tells, in the words of its surface."""

    __slots__ = ("_answer", "_ids", "_lag", "_text", "count", "crc", "finished", "job", "position", "surface")

    def __init__(self, answer: Answer, surface: Surface, job: Job) -> None:
        self._answer = answer
        self.surface = surface
        self.job = job
        self.position = 0  # of the last frame that was built for the client
        self.crc = 0
        self.count = 0
        self.finished: tuple[str, str | int | None] | None = None
        self._lag: tuple[list[int], str, int, int, str] | None = None
        self._ids: list[int] = []
        self._text: list[str] = []

    def tokens(self, ids: Sequence[int], text: str, position: int, crc: int, note: str) -> None:
        self.count = position
        answer = self._answer
        if answer.error is not None:
            return  # of another stream: this one will be ended
        if answer.direct and answer.open_now():
            self.position, self.crc = position, crc
            answer.write(self.surface.tokens(ids, text, answer.mark(self), note))
            return
        if not answer.streaming:
            self._ids.extend(ids)
            self._text.append(text)
            return
        # one frame may carry many tokens: what waits is kept once, not frame by frame
        if self._lag is None:
            self._lag = (list(ids), text, position, crc, note)
        else:
            before, said, _, _, earlier = self._lag
            before.extend(ids)
            self._lag = (before, said + text, position, crc, note or earlier)
        answer.wait()

    def finish(self, reason: str, matched: str | int | None, text: str) -> None:
        self.finished = (reason, matched)
        if self._answer.streaming:
            self._answer.later(self.waiting() + self.surface.finish(reason, matched, text))
        else:
            self._text.append(text)
        self._answer.ended(self)

    def fail(self, error: ErrorType, message: str) -> None:
        self._answer.fail(error, message)

    def waiting(self) -> bytes:
        """The frame that has waited for the client, if there is one."""
        if self._lag is None:
            return b""
        (ids, text, self.position, self.crc, note), self._lag = self._lag, None
        return self.surface.tokens(ids, text, self._answer.mark(self), note)

    def choice(self) -> dict[str, Any]:
        assert self.finished is not None
        return self.surface.choice(self._ids, "".join(self._text), *self.finished)


class Answer:
    """One client's response. `done` is set when nothing more will come; `error` says why that was too early."""

    def __init__(self, form: Form, bundle: Bundle, keep_alive: float = KEEP_ALIVE) -> None:
        self.form = form
        self.streaming = bundle.stream
        self.parts: list[Part] = []
        self.done = asyncio.Event()
        self.error: tuple[ErrorType, str] | None = None
        self.direct = False
        self._bundle = bundle
        self._running = 0
        self._response: web.StreamResponse | None = None
        self._transport: asyncio.Transport | None = None
        self._last: list[bytes] = []
        self._lagging = False
        self._wake = asyncio.Event()
        self._keep_alive = keep_alive
        self._written = 0

    def join(self, stream: str, job: Job) -> Part:
        part = Part(self, self.form.surface(len(self.parts), stream, job), job)
        self.parts.append(part)
        self._running += 1
        return part

    # what the parts tell
    def open_now(self) -> bool:
        transport = self._transport
        return transport is not None and transport.get_write_buffer_size() < HIGH_WATER

    def write(self, frame: bytes) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._written += 1
            transport.write(b"%x\r\n%s\r\n" % (len(frame), frame))

    def mark(self, part: Part) -> bytes:
        parts = self.parts
        if len(parts) == 1:
            return b"%d-%08x" % (part.position, part.crc)
        digest = zlib.crc32(struct.pack(f"<{len(parts)}I", *[p.crc for p in parts]))
        return b"%s-%08x" % (".".join([str(p.position) for p in parts]).encode(), digest)

    def wait(self) -> None:
        self.direct = False
        self._lagging = True
        self._wake.set()

    def later(self, frame: bytes) -> None:
        """Send `frame` after everything that waits."""
        self.direct = False
        if self._lagging:
            self._collect()
        self._last.append(frame)
        self._wake.set()

    def ended(self, part: Part) -> None:
        self._running -= 1
        if self._running or self.done.is_set():
            return
        if self.streaming:
            self.later(self.form.closing(self.usage()))
        self.done.set()

    def fail(self, error: ErrorType, message: str) -> None:
        if self.done.is_set():
            return
        self.error = (error, message)
        if self._response is not None:
            self.later(error_frame(error_body(error, message)))
        self.done.set()
        self._wake.set()

    # what the handler does
    async def begin(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send the headers; from here on frames go out as they come."""
        await response.prepare(request)
        await response.write(b"")
        transport = request.transport
        # chunks are framed by hand, which needs HTTP/1.1; for others the handler's task writes
        if isinstance(transport, asyncio.Transport) and request.version >= (1, 1):
            self._transport = transport
            self.direct = not self._lagging and not self._last
        self._response = response

    async def follow(self) -> None:
        """Until the answer ends: send what could not be sent directly, then go back to sending directly."""
        response = self._response
        assert response is not None
        while True:
            while self._lagging or self._last:
                self._collect()
                frames, self._last = self._last, []
                await response.write(b"".join(frames))
            if self.done.is_set():
                return
            self.direct = self._transport is not None
            self._wake.clear()
            await self._woken()

    async def _woken(self) -> None:
        """Wait for something to do here; a client that hears nothing for long is told that we live."""
        response = self._response
        while not self._wake.is_set():
            before = self._written
            try:
                async with asyncio.timeout(self._keep_alive):
                    await self._wake.wait()
            except TimeoutError:
                if self._written == before and response is not None:
                    await response.write(PING)

    def _collect(self) -> None:
        self._lagging = False
        self._last += [frame for part in self.parts if (frame := part.waiting())]

    def usage(self) -> Usage:
        """Each prompt counts once, however many answers it got; every generated token counts."""
        prompt = sum(len(part.job.prompt_ids) for part in self.parts[:: self._bundle.per_prompt])
        completion = sum(part.count for part in self.parts)
        return Usage(prompt, completion, prompt + completion)

    def whole(self) -> Any:
        """The body for a client that did not ask for a stream."""
        return self.form.whole([self._numbered(i, part) for i, part in enumerate(self._chosen())], self.usage())

    def _numbered(self, number: int, part: Part) -> dict[str, Any]:
        choice = part.choice()
        return {**choice, "index": number} if "index" in choice else choice

    def _chosen(self) -> list[Part]:
        each, keep = self._bundle.per_prompt, self._bundle.keep
        if keep == each:
            return self.parts
        chosen: list[Part] = []
        for first in range(0, len(self.parts), each):
            chosen += sorted(self.parts[first : first + each], key=_likelihood, reverse=True)[:keep]
        return chosen


def _likelihood(part: Part) -> float:
    return part.job.logprobs.mean() if part.job.logprobs is not None else 0.0
