"""Starts one launch: a session of its own, output to a file (never a pipe), an environment that we chose.

The child outlives us on purpose (a daemon restart is not an engine restart), so nothing here ties its life to ours:
no pipe that would break, no parent-death signal, no shared session.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# what an engine may inherit from us; everything else comes from the group's specification
INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "XDG_CACHE_HOME",
)


def scrubbed_env(own: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment: the inherited names of `own`, then `extra`.

    PROMETHEUS_MULTIPROC_DIR never gets through: two engines that share it merge their metrics.
    """
    env = {name: own[name] for name in INHERITED if name in own}
    env.update(extra)
    env.pop("PROMETHEUS_MULTIPROC_DIR", None)
    return env


def start(argv: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """Start `argv`; its output is appended to `log` (0600: engines print their arguments). Raises OSError."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            close_fds=True,
            start_new_session=True,
        )
    finally:
        os.close(out)


def exit_text(returncode: int) -> str:
    """How a child of ours ended, in words."""
    if returncode < 0:
        return f"signal {-returncode}"
    return f"exit code {returncode}"
