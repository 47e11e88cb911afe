"""Hands an order to `enter.py` and learns whether the engine was executed.

The order holds the engine's environment, so it is a private file that lives for milliseconds. Nothing is left in the
folder, whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from pathlib import Path
from types import TracebackType

from infctl.domain.errors import StartFailed
from infctl_daemon.proc import enter
from infctl_daemon.proc.container import Order

DEADLINE = 20.0  # an interpreter's start; it takes 15 ms, or seconds on a machine that swaps


class Entry:
    """One order on its way. Use as a context; `argv` is what to start, in an almost empty environment."""

    def __init__(self, folder: Path, order: Order, procs: str = "") -> None:
        """Writes the order; raises OSError or ValueError."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._order = folder / f"{order.launch}.{secrets.token_hex(4)}.order"
        self._gate = self._order.with_suffix(".gate")
        data = enter.encode(str(self._gate), procs, str(order.cwd), list(order.argv), dict(order.env))
        try:
            os.mkfifo(self._gate, 0o600)
            self._fd = os.open(self._gate, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            fd = os.open(self._order, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
        except OSError:
            self._unlink()
            raise
        self.argv = [sys.executable, "-I", "-S", enter.__file__, str(self._order)]

    def _unlink(self) -> None:
        for path in (self._order, self._gate):
            with contextlib.suppress(OSError):
                path.unlink()

    def __enter__(self) -> Entry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unlink()
        os.close(self._fd)

    async def executed(self, deadline: float = DEADLINE) -> None:
        """Return when the engine's program runs. Raises StartFailed with the reason when it does not."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[str] = loop.create_future()

        def readable() -> None:
            if not told.done():
                try:
                    told.set_result(os.read(self._fd, 4096).decode(errors="replace"))
                except BlockingIOError:
                    return

        loop.add_reader(self._fd, readable)
        try:
            async with asyncio.timeout(deadline):
                reason = await told
        except TimeoutError:
            raise StartFailed(f"the engine's program was not executed within {deadline:.0f} s") from None
        finally:
            loop.remove_reader(self._fd)
        if reason:
            raise StartFailed(f"cannot be started: {reason}")
