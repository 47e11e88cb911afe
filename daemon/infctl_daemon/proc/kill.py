"""Ends a launch: SIGKILL to every process of it once, also to those born meanwhile, then its leftovers in /dev/shm.

Only processes in the launch's container, named by pid and start time, or descended from such are ever signalled.
Nothing is called gone before /proc says so: a process that cannot die (state D) is reported with the place in the
kernel where it waits, and keeps its launch "ending", and with it the GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from infctl_daemon.proc import procfs, stuck
from infctl_daemon.proc.container import Container
from infctl_daemon.proc.pidfd import Tree
from infctl_daemon.proc.procfs import Ident

SHM = Path("/dev/shm")
STUCK_AFTER = 5.0  # freeing the memory of an engine takes seconds; what lives longer after SIGKILL hangs
# "sem.mp-": what its processes share by Python's own means, and would remove if one of them lived to see the end
_MAPPED = ("sglang_loads", "sgl_shm_", "sem.mp-")
_WITH_PID = re.compile(r"(?:sgl_shm_.*?|multi_tokenizer_args|sglang_loads(?:_.*?)?)_(\d+)(?:_.*)?")


async def kill_tree(tree: Tree, deadline: float) -> bool:
    """Kill everything, look for what was born meanwhile, until nothing lives; False after `deadline` seconds."""
    tree.kill()
    loop = asyncio.get_running_loop()
    until = loop.time() + deadline
    while True:
        await tree.wait_empty(min(0.5, max(0.0, until - loop.time())))
        await tree.scan()
        if not tree.living:
            return True
        tree.kill()  # only what got none yet
        if loop.time() >= until:
            return False


async def kill_until_gone(tree: Tree, on_stuck: Callable[[str], None], every: float = STUCK_AFTER) -> None:
    """`kill_tree` without end: `on_stuck` gets the evidence about what does not die, again when it changes."""
    said = ""
    while not await kill_tree(tree, every):
        left = [stuck.examine(w.ident, w.title) for w in tree.living]
        text = stuck.text(s for s in left if s is not None)
        if text and text != said:
            said = text
            on_stuck(text)


def kill_recorded(
    main: Ident, recorded: frozenset[Ident], killed: frozenset[Ident] = frozenset(), container: Container | None = None
) -> list[Ident]:
    """SIGKILL what an earlier daemon recorded, its container and what descends; returns what was alive.

    Those among `killed` were sent one before and get no other.
    """
    own = os.getpid()
    listed = container.pids() if container else None
    swept = container is not None and not killed and bool(listed) and container.kill()
    living = [
        s.ident
        for s in procfs.members(procfs.snapshot(), main, recorded | _idents(listed or ()))
        if s.state not in ("Z", "X") and s.ident.pid != own
    ]
    for ident in living:
        if ident in killed or (swept and listed and ident.pid in listed):
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            fd = os.pidfd_open(ident.pid)
            try:
                # checked after opening: from here on the descriptor cannot mean another process
                if procfs.is_alive(ident):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)
    return living


def _idents(pids: Iterable[int]) -> frozenset[Ident]:
    return frozenset(s.ident for s in map(procfs.stat, pids) if s is not None)


async def end_recorded(
    main: Ident,
    recorded: frozenset[Ident],
    container: Container | None,
    on_stuck: Callable[[str], None],
    every: float = STUCK_AFTER,
) -> frozenset[int]:
    """End what an earlier daemon left, until nothing of it lives; returns every pid that was of it."""
    loop = asyncio.get_running_loop()
    began, said = loop.time(), ""
    known, killed = recorded, frozenset[Ident]()
    while left := await asyncio.to_thread(kill_recorded, main, known, killed, container):
        killed |= frozenset(left)
        known |= killed
        await asyncio.sleep(0.05)
        if loop.time() - began > every:
            began = loop.time()
            text = stuck.text(s for s in map(stuck.examine, left) if s is not None)
            if text and text != said:
                said = text
                on_stuck(text)
    return frozenset(i.pid for i in known)


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
        if name in seen and name.startswith(_MAPPED):
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
