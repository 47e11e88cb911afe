"""A shell on a terminal of its own, and what becomes of a line in it when TAB is pressed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Sequence

_HOME, _END = "\x01", "\x05"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>()][0-9A-B]?|\r")


class Keyboard:
    """One interactive shell; closed at the end of the `with` block."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], setup: str) -> None:
        self._terminal, shell = pty.openpty()
        fcntl.ioctl(shell, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self._process = subprocess.Popen(argv, stdin=shell, stdout=shell, stderr=shell, env=env, start_new_session=True)
        os.close(shell)
        self._seen = ""
        self._setup = setup

    def __enter__(self) -> Keyboard:
        try:
            self._type(f"{self._setup}; echo @ready@\n")
            self._wait_for(re.compile("^@(ready)@$", re.MULTILINE))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        os.close(self._terminal)

    def complete(self, line: str) -> str:
        """`line` as it stands after TAB, with the space that the shell puts behind a word that is complete."""
        self._seen = ""
        self._type(f"{line}\t{_END}@{_HOME}echo @\n")
        return self._wait_for(re.compile(r"^@(.*)@$", re.MULTILINE))

    def _type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _wait_for(self, pattern: re.Pattern[str], timeout: float = 20.0) -> str:
        until = time.monotonic() + timeout
        while (found := pattern.search(self._seen)) is None:
            left = until - time.monotonic()
            assert left > 0, f"{pattern.pattern!r} did not come; the terminal shows {self._seen!r}"
            if select.select([self._terminal], [], [], left)[0]:
                self._seen += _ESCAPES.sub("", os.read(self._terminal, 65536).decode(errors="replace"))
        return found[1]
