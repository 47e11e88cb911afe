"""The service manager's notify socket: `READY=1`, `STATUS=…`, `STOPPING=1`, `WATCHDOG=1`.

Never blocks and never raises: a daemon that cannot tell systemd how it is keeps working. Without NOTIFY_SOCKET
every call does nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket


class Notifier:
    def __init__(self, address: str | None = None) -> None:
        address = address if address is not None else os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self, seconds: float) -> None:
        """We are going; the manager is asked to wait this long for it."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(text.encode(), self._address)
