"""Reads /proc: who belongs to a launch, what a process calls itself, which shared memory it has mapped.

A process is named by pid *and* start time, everywhere: a pid alone may be somebody else's by now. A process that
vanishes while we read is simply not there.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PF_EXITING = 0x4  # include/linux/sched.h
_CHUNK = 1 << 16
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Ident:
    """One process, for ever: `start` is its start time in clock ticks since boot."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/<pid>/stat that we use. `state` is the letter: R S D T Z …"""

    ident: Ident
    ppid: int
    session: int
    state: str
    name: str


def _read(path: str) -> bytes:
    """A whole file of /proc; without buffers and paths, which cost as much again. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        whole = b""
        while part := os.read(fd, _CHUNK):
            whole += part
        return whole
    finally:
        os.close(fd)


def stat(pid: int) -> Stat | None:
    try:
        raw = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # the name is in parentheses and may hold anything, so split after the last one
    name = raw[raw.find(b"(") + 1 : raw.rfind(b")")].decode(errors="replace")
    fields = raw[raw.rfind(b")") + 2 :].split()
    return Stat(Ident(pid, int(fields[19])), int(fields[1]), int(fields[3]), fields[0].decode(), name)


def open_stat(pid: int) -> int:
    """A descriptor to ask again and again with `is_ending`. Raises OSError."""
    return os.open(_PROC / str(pid) / "stat", os.O_RDONLY | os.O_CLOEXEC)


def is_ending(fd: int) -> bool:
    """The process behind an `open_stat` descriptor has begun to exit, or is gone. About 10 µs.

    The kernel says so before it frees the memory; a pidfd becomes readable only afterwards, which for the gigabytes of
    an engine is a tenth of a second to several.
    """
    try:
        raw = os.pread(fd, 1024, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    fields = raw[raw.rfind(b")") + 2 :].split(None, 8)
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING)


def exit_status(fd: int) -> int | None:
    """How the process behind an `open_stat` descriptor is ending: 0…255, or minus the signal; None if not known.

    Also known of processes that are not our children, until their parent has collected them.
    """
    try:
        fields = os.pread(fd, 1024, 0).rpartition(b")")[2].split()
        status = int(fields[49])
    except (OSError, IndexError, ValueError):
        return None
    # 0 may also mean that we may not know, or, before it is a zombie, that it is not decided yet
    if not status and not (fields[0] == b"Z" and os.geteuid() == 0):
        return None
    return os.waitstatus_to_exitcode(status)


def size(fd: int) -> tuple[int, int]:
    """How many threads the process behind an `open_stat` descriptor has, and bytes of memory; zeros if not known."""
    try:
        fields = os.pread(fd, 1024, 0).rpartition(b")")[2].split(None, 23)
        return int(fields[17]), int(fields[21]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0, 0


def is_alive(ident: Ident) -> bool:
    """The very process still runs; one that ended and waits to be reaped does not."""
    seen = stat(ident.pid)
    return seen is not None and seen.ident == ident and seen.state not in ("Z", "X")


def snapshot() -> list[Stat]:
    """Every process of the machine; about 30 µs for each of them."""
    found = (stat(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return [s for s in found if s is not None]


_last: tuple[float, list[Stat]] = (0.0, [])
_reading = threading.Lock()


def recent_snapshot(age: float) -> list[Stat]:
    """A snapshot that began at most `age` seconds ago: threads that look at the same time share one."""
    global _last
    with _reading:
        if time.monotonic() - _last[0] > age:
            _last = (time.monotonic(), snapshot())
        return _last[1]


def members(processes: list[Stat], main: Ident, known: frozenset[Ident] = frozenset()) -> list[Stat]:
    """The processes of a launch: those of its main's session, those known before, and the children of all these.

    A child that made a session of its own is found through its parent; one whose parent died, through the session.
    """
    by_pid = {s.ident.pid: s for s in processes}
    leader = by_pid.get(main.pid)
    # a session id cannot be given away while anyone is left in it; a leader with another start time is a stranger
    ours = main.pid > 0 and (leader is None or leader.ident == main)  # the kernel's own threads are in session 0
    found = {s.ident for s in processes if s.ident in known or s.ident == main or (ours and s.session == main.pid)}
    grew = True
    while grew:
        pids = {i.pid for i in found}
        more = {s.ident for s in processes if s.ppid in pids and s.ident not in found}
        grew = bool(more)
        found |= more
    return [s for s in processes if s.ident in found]


def marked(variable: str, value: str) -> list[Ident]:
    """Processes that were started with `variable=value` in their environment and have not overwritten it since."""
    wanted = f"{variable}={value}".encode()
    found = []
    for name in os.listdir(_PROC):
        if not name.isdigit():
            continue
        try:
            words = (_PROC / name / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in words and (seen := stat(int(name))) is not None:
            found.append(seen.ident)
    return found


def title(pid: int) -> str:
    """What the process calls itself: its command line, shortened; engines overwrite it with their role."""
    try:
        raw = _read(f"/proc/{pid}/cmdline")
    except OSError:
        return ""
    words = [w.decode(errors="replace") for w in raw.rstrip(b"\0 ").split(b"\0")]
    if words and "::" in words[0]:
        return words[0].split()[0]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return " ".join(words)[:80].strip()


def shared_memory(pid: int) -> set[str]:
    """Names under /dev/shm that the process has mapped now."""
    try:
        maps = _read(f"/proc/{pid}/maps")
    except OSError:
        return set()
    lines = maps.split(b"\n") if b"/dev/shm/" in maps else ()
    found = (line.partition(b"/dev/shm/")[2] for line in lines)
    return {name.decode(errors="replace").removesuffix(" (deleted)") for name in found if name}


def shared_names() -> frozenset[str]:
    """What is under /dev/shm now, whoever made it."""
    try:
        return frozenset(os.listdir("/dev/shm"))
    except OSError:
        return frozenset()


def boot_id() -> str:
    """Names this boot of the machine: recorded pids mean nothing after the next one."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
