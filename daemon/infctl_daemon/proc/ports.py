"""Chooses an engine's ports and finds out that one is taken before minutes of loading, not after.

An engine binds its port only when the model is loaded and does not check it before, so we do: by binding it. Until the
engine has it, another daemon of this machine could choose the same one; a name that only one process can hold stands
for the port as long as its daemon lives.
"""

from __future__ import annotations

import asyncio
import os
import socket
import zlib
from collections.abc import Callable, Collection

from infctl.config.host_address import LOOPBACK

FIRST, LAST, STEP = 12000, 21999, 300


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Nobody listens on the port of this address, or of all. Sockets in TIME_WAIT do not count."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            sock.listen(1)
        except OSError:
            return False
    return True


def is_ours(host: str) -> bool:
    """The address is one of this host's, at this moment."""
    return is_free(0, host)


async def wait_free(port: int, timeout: float, host: str = LOOPBACK) -> bool:
    """The port becomes free within `timeout` seconds: after SIGKILL the kernel may hold it for a moment."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    while not is_free(port, host):
        if loop.time() >= until:
            return False
        await asyncio.sleep(0.1)
    return True


class Reserved:
    """Ports that we mean to use, held against other daemons of this network namespace. The kernel lets go of them."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}  # port → descriptor

    def take(self, port: int, host: str = LOOPBACK) -> bool:
        """It is ours, or has been; False where another daemon holds it."""
        if port in self._held:
            return True
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(f"\0infctl/engine/{host}:{port}")
        except OSError:
            sock.close()
            return False
        self._held[port] = sock.detach()
        return True

    def release(self, port: int) -> None:
        if (fd := self._held.pop(port, None)) is not None:
            os.close(fd)

    def close(self) -> None:
        for port in list(self._held):
            self.release(port)


def choose(seed: str, taken: Collection[int], host: str = LOOPBACK, take: Callable[[int], bool] = bool) -> int:
    """A free base port, at least STEP apart from the others, which may be fixed ones between our slots; 0: none.

    `seed` (state folder and group) decides where the search starts, so that daemons which share a machine rarely
    look at the same port at the same time; `take` makes sure of it.
    """
    slots = (LAST - FIRST + 1) // STEP
    start = zlib.crc32(seed.encode()) % slots
    for i in range(slots):
        port = FIRST + (start + i) % slots * STEP
        if all(abs(port - other) >= STEP for other in taken) and is_free(port, host) and take(port):
            return port
    return 0
