"""Ports for servers that we start and that keep their port over a restart.

Below the kernel's range for outgoing connections (32768 and up unless set otherwise): a port from that range may be
some connection's own end just when its server comes back. Engines have 12000 to 29999.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Collection

from infctl.domain.errors import StartFailed

FIRST, LAST = 30000, 32767


def free_port(preferred: int | None = None, *, other_than: Collection[int] = ()) -> int:
    """`preferred` where nobody listens there, else one that is free at this moment. Raises StartFailed."""
    somewhere = random.sample(range(FIRST, LAST + 1), 200)
    for port in (*([preferred] if preferred else ()), *somewhere, 0):
        if port in other_than:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise StartFailed("no free port on 127.0.0.1")


def free_ports(count: int) -> list[int]:
    """Different ports, each free at this moment."""
    found: list[int] = []
    for _ in range(count):
        found.append(free_port(other_than=found))
    return found
