"""Network namespaces of tests, by name: made, entered by a thread, emptied, removed, and swept after a killed run.

Kept true: a name says which process made it (pid and start time), so that a sweep removes what dead owners left and
touches nothing else. Nothing is ever changed in the network of the machine itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from infctl_daemon.proc import cgroupfs, choose, procfs

T = TypeVar("T")

NAMES = Path("/run/netns")
SHM = Path("/dev/shm")
_OURS = re.compile(r"infctl-t(?P<pid>\d+)\.(?P<start>\d+)\.\d+-.+")
_CLONE_NEWNET = 0x40000000
_COUNT = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """What this machine lacks; "" where namespaces can be made."""
    if os.geteuid() != 0:
        return "needs root (network namespaces)"
    lacking = [tool for tool in ("ip", "nsenter") if shutil.which(tool) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)} (iproute2, util-linux)"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return f"network namespaces cannot be made: {tried.stderr.strip()}" if tried.returncode else ""


def fresh_prefix() -> str:
    """For the names of one set of namespaces of this process."""
    me = procfs.stat(os.getpid())
    assert me is not None
    return f"infctl-t{me.ident.pid}.{me.ident.start}.{next(_COUNT)}-"


def ip(lines: Sequence[str], namespace: str = "") -> None:
    """Carry out lines of iproute2 in one go. Raises AssertionError with what it said."""
    argv = ["ip", *(["-netns", namespace] if namespace else []), "-batch", "-"]
    done = subprocess.run(argv, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"{namespace}: {'; '.join(lines)}\n{done.stderr}"


def enter(namespace: str) -> None:
    """From now on the sockets that this thread makes are there. Never for the main thread."""
    assert threading.current_thread() is not threading.main_thread()
    fd = os.open(NAMES / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(fd)


def within(namespace: str, work: Callable[[], T]) -> T:
    """What `work` returns or raises, done by a thread that is there."""
    done: list[T] = []
    failed: list[BaseException] = []

    def there() -> None:
        try:
            enter(namespace)
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=there, daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def processes(namespace: str) -> list[procfs.Ident]:
    """Every process whose network this is; zombies are no more."""
    with contextlib.suppress(FileNotFoundError):
        there = os.stat(NAMES / namespace)
        found = []
        for seen in procfs.snapshot():
            with contextlib.suppress(OSError):
                its = os.stat(f"/proc/{seen.ident.pid}/ns/net")
                if (its.st_dev, its.st_ino) == (there.st_dev, there.st_ino):
                    found.append(seen.ident)
        return found
    return []


def kill(namespace: str) -> None:
    """Nobody is left there, nor are cgroups and shared memory of the engines. Raises AssertionError.

    All are stopped before the first is killed: no daemon sees its engine die.
    """
    end = time.monotonic() + 10
    groups: set[Path] = set()
    shared: set[str] = set()
    stopped: set[procfs.Ident] = set()
    while left := processes(namespace):
        assert time.monotonic() < end, f"{namespace}: {[procfs.title(i.pid) for i in left]} do not die"
        groups.update(filter(None, map(_engine_cgroup, left)))
        shared.update(name for i in left for name in procfs.shared_memory(i.pid))
        fresh = set(left) - stopped
        for ident in fresh or left:
            _signal(ident, signal.SIGSTOP if fresh else signal.SIGKILL)
        stopped |= fresh
        time.sleep(0 if fresh else 0.01)
    for group in groups:
        while not cgroupfs.remove(group):
            assert time.monotonic() < end, f"{group} stays"
            time.sleep(0.01)
    for name in shared:
        (SHM / name).unlink(missing_ok=True)


def _signal(ident: procfs.Ident, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(ident.pid)
        try:
            if procfs.is_alive(ident):
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def _engine_cgroup(ident: procfs.Ident) -> Path | None:
    """The cgroup that a daemon made for the process."""
    parent = choose.cgroup_parent()
    with contextlib.suppress(OSError):
        own = Path(cgroupfs.own_path(Path(f"/proc/{ident.pid}/cgroup").read_text()))
        if isinstance(parent, Path) and own.name.startswith("infctl-") and (parent / own.name).is_dir():
            return parent / own.name
    return None


def remove(namespace: str) -> None:
    """With everything in it; one that is gone already is fine."""
    kill(namespace)
    done = subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 or not (NAMES / namespace).exists(), done.stderr


def sweep() -> list[str]:
    """Remove the namespaces of owners that are gone; their names."""
    swept = []
    for path in sorted(NAMES.glob("infctl-t*")):
        named = _OURS.fullmatch(path.name)
        if named and not procfs.is_alive(procfs.Ident(int(named["pid"]), int(named["start"]))):
            remove(path.name)
            swept.append(path.name)
    return swept
