"""What a daemon at rest looks at: together, and without missing what comes late."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infctl_daemon.proc import pidfd, procfs
from infctl_daemon.proc.pidfd import Tree
from infctl_daemon.runtime.beat import beat, last_beat

LATE = """
import mmap, sys
print('up', flush=True)
sys.stdin.readline()
f = open(sys.argv[1], 'w+b')
f.truncate(4096)
m = mmap.mmap(f.fileno(), 4096)
sys.stdin.readline()
"""


@pytest.mark.parametrize(("by", "every", "beat_at"), [(7.3, 1.0, 7.0), (7.0, 1.0, 7.0), (7.3, 5.0, 5.0), (0.2, 0.5, 0)])
def test_the_last_beat_is_never_later_than_asked_for(by: float, every: float, beat_at: float) -> None:
    assert last_beat(by, every) == pytest.approx(beat_at)


async def test_nobody_goes_on_before_the_beat() -> None:
    loop = asyncio.get_running_loop()
    due = last_beat(loop.time(), 0.2) + 0.2

    async def waits(before: float) -> float:
        await asyncio.sleep(before)
        await beat(0.2)
        return loop.time()

    went_on = await asyncio.gather(waits(0.0), waits(0.01), waits(0.02))
    assert all(at > due - 0.01 for at in went_on)


@pytest.fixture
def late() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process that maps the file when it is told to."""
    name = Path("/dev/shm") / f"sgl_shm_case_{secrets.token_hex(4)}"
    argv = [sys.executable, "-S", "-c", LATE, str(name)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child, name
        finally:
            child.kill()
            name.unlink(missing_ok=True)


async def test_shared_memory_that_a_serving_launch_maps_late_is_known_soon(
    late: tuple[subprocess.Popen[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    child, name = late
    monkeypatch.setattr(pidfd, "SLOW_SCAN", 0.05)
    monkeypatch.setattr(pidfd, "DEEP", 10**9)
    seen = procfs.stat(child.pid)
    assert seen is not None and child.stdin is not None
    tree = Tree(seen.ident, lambda _: None)
    tree.begin()
    tree.loading = False
    scanning = asyncio.create_task(tree.keep_scanning())
    await asyncio.sleep(0.4)
    child.stdin.write(b"\n")
    child.stdin.flush()
    until = time.monotonic() + 10
    while name.name not in tree.shm:
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    scanning.cancel()
    await asyncio.gather(scanning, return_exceptions=True)
    tree.close()
