"""The command line as tests call it: `infctl(*words, stdin=, **env)` gives the finished process."""

from __future__ import annotations

import subprocess
from typing import Protocol


class Run(Protocol):
    def __call__(self, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]: ...
