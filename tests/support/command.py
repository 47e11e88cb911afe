"""The command line as tests call it: `infctl(*words, stdin=, **env)` gives the finished process."""

from __future__ import annotations

import signal
import subprocess
from typing import Protocol


def hear_interrupts() -> None:
    """For `preexec_fn`. A shell starts what it puts into the background deaf to SIGINT, and so tests and children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Run(Protocol):
    def __call__(self, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]: ...
