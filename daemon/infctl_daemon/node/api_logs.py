"""Engine output over the read-only API: the last lines, and what follows until the launch has ended.

Kept true: no key of ours leaves, although engines print their arguments, the key among them; what is sent is bounded
in lines, bytes and time, and a reader that does not read is let go.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from aiohttp import web

from infctl_daemon.node.api_errors import ApiError, invalid
from infctl_daemon.node.api_facts import Facts
from infctl_daemon.proc import reading

LINES, MOST_LINES = 200, 10_000
MOST_FOLLOWERS = 16
FOLLOW_EVERY = 0.25  # a file does not tell that it grew
FOLLOW_MOST = 6 * 3600.0
WRITE_DEADLINE = 30.0
MOST_LINE = 64 * 1024
# the shape of `launch.new_key`; old launches have keys, too, which nobody knows any more
_KEY = re.compile(rb"k[0-9a-f]{48}")
_KEY_LENGTH = 49


def redact(text: bytes) -> bytes:
    """The text without engine keys."""
    return _KEY.sub(b"***", text)


class Lines:
    """Cuts what arrives into whole lines without keys; a line without end is passed on in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> bytes:
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        ready = redact(whole + newline)
        if len(self._rest) > MOST_LINE:
            # a key may have come in part: what could be the beginning of one waits
            rest = redact(self._rest)
            ready, self._rest = ready + rest[:-_KEY_LENGTH], rest[-_KEY_LENGTH:]
        return ready

    def end(self) -> bytes:
        rest, self._rest = self._rest, b""
        return redact(rest)


class LogReader:
    """Answers for `log`; counts who follows."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._following = 0

    async def answer(self, request: web.Request, group: str, launch: str) -> web.StreamResponse:
        lines = _lines(request.query.get("lines"))
        follow = request.query.get("follow", "") not in ("", "0", "false")
        if follow and self._following >= MOST_FOLLOWERS:
            raise ApiError(503, "overloaded", f"{MOST_FOLLOWERS} readers follow already")
        path = self._facts.log_path(launch)
        found = await self._facts.in_thread(reading.tail, path, lines)
        response = web.StreamResponse(headers={"x-infctl-cut": "1"} if found.cut else None)
        response.content_type, response.charset = "text/plain", "utf-8"
        self._following += follow
        try:
            async with asyncio.timeout(FOLLOW_MOST if follow else WRITE_DEADLINE):
                await response.prepare(request)
                async for part in self._parts(group, launch, found, follow=follow):
                    async with asyncio.timeout(WRITE_DEADLINE):
                        await response.write(part)
                await response.write_eof()
        except (TimeoutError, ConnectionError):
            # it reads no more, or has read for long enough: an answer that is cut off says so by itself
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._following -= follow
        return response

    async def _parts(self, group: str, launch: str, found: reading.Tail, *, follow: bool) -> AsyncIterator[bytes]:
        lines, at = Lines(), found.end
        if ready := lines.take(found.text):
            yield ready
        while follow:
            # asked before the file is read: what was printed until the end is still told
            running = self._facts.running(group, launch)
            data, at = await self._facts.in_thread(reading.more, self._facts.log_path(launch), at)
            if ready := lines.take(data):
                yield ready
            if not data and not running:
                break
            if not data:
                await asyncio.sleep(FOLLOW_EVERY)
        if rest := lines.end():
            yield rest


def _lines(text: str | None) -> int:
    if text is None:
        return LINES
    if not text.isdecimal() or len(text) > 9 or int(text) > MOST_LINES:
        raise invalid(f"lines: expected a number up to {MOST_LINES}, not {text[:20]!r}", "lines")
    return int(text)
