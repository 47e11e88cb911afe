"""Reads and writes the files of one cgroup. What vanishes or is not there is empty, never an error.

A version 2 hierarchy has `cgroup.kill` (Linux 5.14) and `memory.events`; in a version 1 hierarchy only the list of
processes is used.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mount:
    """A cgroup hierarchy that is mounted here. `unified` is version 2."""

    path: Path
    unified: bool
    writable: bool


def mounts(table: Path = Path("/proc/self/mountinfo")) -> list[Mount]:
    """Version 2 first, then systemd's own version 1 hierarchy; only such as show their hierarchy's root."""
    try:
        lines = table.read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) < 6 or len(after) < 3 or before[3] != "/":
            continue
        unified = after[0] == "cgroup2"
        if unified or (after[0] == "cgroup" and "name=systemd" in after[2].split(",")):
            path = before[4].replace("\\040", " ")
            found.append(Mount(Path(path), unified, "ro" not in before[5].split(",")))
    return sorted(found, key=lambda m: not m.unified)


def own_path(text: str) -> str:
    """Where in the version 2 hierarchy a process is, from its /proc/<pid>/cgroup; "" without such a hierarchy."""
    return next((line[3:] for line in text.splitlines() if line.startswith("0::")), "")


def pids(group: Path) -> frozenset[int]:
    """Every process in it; one of a foreign pid namespace shows as 0 and is not ours to name."""
    try:
        with open(f"{group}/cgroup.procs", "rb", buffering=0) as members:
            return frozenset(map(int, members.read().split())) - {0}
    except (OSError, ValueError):
        return frozenset()


def kill(group: Path) -> bool:
    """SIGKILL to everything in it and below, those being forked too; False where the kernel cannot do that."""
    try:
        (group / "cgroup.kill").write_text("1")
    except OSError:
        return False
    return True


def oom_kills(group: Path) -> int:
    """How many of its processes were killed for memory."""
    try:
        events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
        return int(events.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def controllers(group: Path) -> frozenset[str]:
    """What may be limited in it."""
    try:
        return frozenset((group / "cgroup.controllers").read_text().split())
    except OSError:
        return frozenset()


def delegate(group: Path, wanted: frozenset[str]) -> frozenset[str]:
    """Let the children of `group` be limited by `wanted`; returns what they can be limited by now."""
    for name in sorted(wanted & controllers(group)):
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{name}")
    try:
        return frozenset((group / "cgroup.subtree_control").read_text().split())
    except OSError:
        return frozenset()


def remove(group: Path) -> bool:
    """Remove an empty cgroup; True when it is not there any more."""
    try:
        os.rmdir(group)
    except OSError as error:
        return error.errno == errno.ENOENT
    return True
