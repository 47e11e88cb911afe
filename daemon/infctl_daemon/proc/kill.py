"""Ends a launch: SIGKILL to every process of it, again until none is left, then its leftovers in /dev/shm.

Only processes that are named by pid and start time, or that descend from such, are ever signalled. Nothing is called
gone before /proc says so: a process that cannot die (state D) keeps its launch "ending", and with it the GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path

from infctl_daemon.proc import procfs
from infctl_daemon.proc.pidfd import Tree
from infctl_daemon.proc.procfs import Ident

SHM = Path("/dev/shm")
_WITH_PID = re.compile(r"(?:sgl_shm_.*?|multi_tokenizer_args|sglang_loads(?:_.*?)?)_(\d+)(?:_.*)?")


async def kill_tree(tree: Tree, deadline: float) -> bool:
    """SIGKILL everything, look for what was born meanwhile, until nothing lives; False after `deadline` seconds."""
    tree.signal_all()
    loop = asyncio.get_running_loop()
    until = loop.time() + deadline
    while True:
        await tree.wait_empty(min(0.5, max(0.0, until - loop.time())))
        await tree.scan()
        if not tree.living:
            return True
        tree.signal_all()
        if loop.time() >= until:
            return False


def kill_recorded(main: Ident, recorded: frozenset[Ident]) -> list[Ident]:
    """SIGKILL what an earlier daemon recorded and what descends from it; returns what was alive."""
    own = os.getpid()
    living = [
        s.ident
        for s in procfs.members(procfs.snapshot(), main, recorded)
        if s.state not in ("Z", "X") and s.ident.pid != own
    ]
    for ident in living:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            fd = os.pidfd_open(ident.pid)
            try:
                # checked after opening: from here on the descriptor cannot mean another process
                if procfs.is_alive(ident):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)
    return living


def left_in_shm(mapped: Iterable[str], pids: frozenset[int], started: float) -> list[str]:
    """Names in /dev/shm that belonged to the dead launch.

    Ours is an engine's name that one of our processes had mapped, or one that carries a pid of ours and was made
    after the launch began (`started`, epoch seconds). Other names are left alone, mapped or not.
    """
    try:
        present = os.listdir(SHM)
    except OSError:
        return []
    seen = set(mapped)
    ours = []
    for name in present:
        if name in seen and name.startswith(("sglang_loads", "sgl_shm_")):
            ours.append(name)
            continue
        match = _WITH_PID.fullmatch(name)
        if match is None or int(match[1]) not in pids:
            continue
        with contextlib.suppress(OSError):
            if (SHM / name).stat().st_mtime >= started - 1.0:
                ours.append(name)
    return ours


def remove_from_shm(names: Iterable[str]) -> list[str]:
    """Unlink them; returns those that were there."""
    removed = []
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(SHM / name)
            removed.append(name)
    return removed
