"""The service manager's notify socket: `READY=1`, `STATUS=…`, `RELOADING=1`, `STOPPING=1`, `WATCHDOG=1`.

Never blocks and never raises: a daemon that cannot tell systemd how it is keeps working. Without NOTIFY_SOCKET
every call does nothing. What we start must not speak for us: the variables are taken out of the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import MutableMapping


class Notifier:
    """`watchdog`: seconds without a sign of life after which the manager ends us; 0 where it does not."""

    def __init__(self, address: str = "", watchdog: float = 0.0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog = watchdog

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Notifier:
        address = environ.pop("NOTIFY_SOCKET", "")
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        return cls(address, int(usec) / 1e6 if usec.isdecimal() and ours else 0.0)

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Until the next `ready`."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, seconds: float) -> None:
        """We are going; the manager is asked to wait this long for it."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(text.encode(), self._address)


def feed_watchdog(notifier: Notifier) -> None:
    """Signs of life from the loop that runs now, and from nowhere else: a loop that stands still sends none.

    Three in the time that the manager waits, so one that is lost or late ends nobody.
    """
    if not notifier.watchdog:
        return
    loop = asyncio.get_running_loop()

    def beat() -> None:
        notifier.alive()
        loop.call_later(notifier.watchdog / 3, beat)

    beat()
