"""Messages between the processes of one simulated engine: a length, then a marshalled value, over a stream socket.

What stays true: a reader that sees the other end close raises `PeerGone`, never returns half a message. Only
processes of one engine talk this way (same interpreter, inherited sockets or the rendezvous port on a trusted host).
"""

from __future__ import annotations

import asyncio
import marshal
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

_LENGTH = struct.Struct("!I")


class PeerGone(Exception):
    """The other end of a socket is closed: that process is dead or has left."""


def dump(message: Any) -> bytes:
    body = marshal.dumps(message)
    return _LENGTH.pack(len(body)) + body


class Pipe:
    """One blocking end; `poll` never blocks longer than asked."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def buffered(self) -> int:
        """Bytes of a message that is not complete."""
        return len(self._buffer)

    def send(self, message: object) -> None:
        try:
            self.sock.sendall(dump(message))
        except (BrokenPipeError, ConnectionResetError) as gone:
            raise PeerGone from gone

    def _take(self) -> Any:
        if len(self._buffer) < 4:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer)
        if len(self._buffer) < 4 + size:
            return None
        message = marshal.loads(memoryview(self._buffer)[4 : 4 + size])
        del self._buffer[: 4 + size]
        return message

    def _fill(self) -> None:
        try:
            data = self.sock.recv(1 << 18)
        except ConnectionResetError as gone:
            raise PeerGone from gone
        if not data:
            raise PeerGone
        self._buffer += data

    def recv(self) -> Any:
        """Waits for the next message, without a limit: a collective waits for as long as its peers are silent."""
        while True:
            message = self._take()
            if message is not None:
                return message
            self._fill()

    def poll(self, seconds: float) -> Any:
        """The next message, or None when none is complete within `seconds`."""
        message = self._take()
        if message is not None:
            return message
        if not select.select([self.sock], [], [], max(0.0, seconds))[0]:
            return None
        self._fill()
        return self._take()

    def within(self, seconds: float) -> Any:
        """The next message, or None after `seconds`; unlike `poll` it goes on after the first part of one."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            message = self.poll(left)
            if message is not None:
                return message
        return None


class Outbox(Pipe):
    """A sending end that does not wait for its reader (nor does SGLang's queue), up to a bound of bytes."""

    def __init__(self, sock: socket.socket, bound: int = 1 << 26) -> None:
        super().__init__(sock)
        self._left = bytearray()
        self._bound = bound

    @property
    def behind(self) -> bool:
        return bool(self._left)

    def send(self, message: object) -> None:
        self._left += dump(message)
        self.flush()

    def flush(self) -> None:
        """Sends what can be sent now; waits only beyond the bound."""
        try:
            while self._left:
                waits = len(self._left) > self._bound
                sent = self.sock.send(self._left, 0 if waits else socket.MSG_DONTWAIT)
                del self._left[:sent]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError) as gone:
            raise PeerGone from gone


async def read(reader: asyncio.StreamReader) -> Any:
    """Next message on the asyncio side; raises `PeerGone` at the end."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(4))
        return marshal.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionResetError) as gone:
        raise PeerGone from gone


class Messages(asyncio.Protocol):
    """Hands over all lists that have arrived, joined into one; `ended` is done when the other end is closed."""

    def __init__(self, take: Callable[[list[Any]], None], ended: asyncio.Future[None]) -> None:
        self._take = take
        self._ended = ended
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        items: list[Any] = []
        at = 0
        while len(buffer) - at >= 4:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if len(buffer) - at - 4 < size:
                break
            items += marshal.loads(memoryview(buffer)[at + 4 : at + 4 + size])
            at += 4 + size
        if at:
            del buffer[:at]
            self._take(items)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
