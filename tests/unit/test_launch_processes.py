"""Processes of a launch: found, watched, killed and swept up, and never a stranger among them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infctl_daemon.engine import roles
from infctl_daemon.proc import kill, ports, procfs, spawn, threads
from infctl_daemon.proc.pidfd import Tree, Watched
from infctl_daemon.proc.procfs import Ident, Stat

FAMILY = """
import os, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()          # a grandchild in a session of its own
    time.sleep(60)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    log = tmp_path / "out.log"
    child = spawn.start([sys.executable, "-c", FAMILY], spawn.scrubbed_env(os.environ, {}), log)
    end = time.monotonic() + 10
    while "up" not in log.read_text() or len(_members(child)) < 3:
        assert time.monotonic() < end
        time.sleep(0.01)
    yield child
    for one in _members(child):
        os.kill(one.ident.pid, signal.SIGKILL)
    child.wait(5)


def _wait_for(log: Path, word: str) -> None:
    end = time.monotonic() + 20
    while not log.exists() or word not in log.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


def _ident(child: subprocess.Popen[bytes]) -> Ident:
    seen = procfs.stat(child.pid)
    assert seen is not None
    return seen.ident


def _members(child: subprocess.Popen[bytes]) -> list[Stat]:
    seen = procfs.stat(child.pid)
    return [] if seen is None or seen.state == "Z" else procfs.members(procfs.snapshot(), seen.ident)


async def test_the_whole_family_is_watched_and_killed_and_nobody_else(family: subprocess.Popen[bytes]) -> None:
    ended: list[Watched] = []
    tree = Tree(_ident(family), ended.append)
    tree.add(tree.main, "main")
    assert await tree.scan() == 2
    assert len(tree.living) == 3
    assert os.getpid() not in tree.pids()
    assert await kill.kill_tree(tree, 5.0)
    assert len(ended) == 3
    assert not any(procfs.is_alive(w.ident) for w in tree.watched.values())
    assert family.wait(5) == -signal.SIGKILL
    tree.close()


async def test_a_death_is_told_within_milliseconds(family: subprocess.Popen[bytes]) -> None:
    told = asyncio.Event()
    tree = Tree(_ident(family), lambda _: told.set())
    tree.add(tree.main)
    await tree.scan()
    one = next(w for w in tree.living if w.ident != tree.main)
    began = time.monotonic()
    os.kill(one.ident.pid, signal.SIGKILL)
    await asyncio.wait_for(told.wait(), 5)
    assert time.monotonic() - began < 0.5
    tree.close()


# the colons keep bash from becoming its last command
RANK = """
(exec -a sglang::scheduler_TP0 bash -c '(exec -a sglang::scheduler_TP0 sleep 0.7) & echo up; sleep 60; :') &
wait; :
"""


async def test_what_a_rank_starts_is_no_rank_though_it_wears_its_name(tmp_path: Path) -> None:
    """Seen on the real engine: torch forks compilers, which keep the rank's title until they exec."""
    log = tmp_path / "out.log"
    child = spawn.start(["bash", "-c", RANK], spawn.scrubbed_env(os.environ, {}), log)
    ended: list[Watched] = []
    tree = Tree(_ident(child), ended.append, serves=roles.serves)
    tree.add(tree.main)
    await asyncio.to_thread(_wait_for, log, "up")
    await tree.scan()
    named = [w for w in tree.living if w.title == "sglang::scheduler_TP0"]
    assert len(named) == 2
    assert [roles.serves(w.title, w.parent) for w in sorted(named, key=lambda w: w.ident.pid)] == [True, False]
    end = time.monotonic() + 5
    while not ended:
        assert time.monotonic() < end
        await asyncio.sleep(0.02)
    assert [roles.serves(w.title, w.parent) for w in ended if w.title.startswith("sglang")] == [False]
    assert await kill.kill_tree(tree, 5.0)
    child.wait(5)
    tree.close()


@pytest.mark.parametrize(
    ("title", "parent", "serves"),
    [
        ("sglang::scheduler_TP0", "sglang.launch_server", True),
        ("sglang::scheduler_DP1_TP0", "sglang::data_parallel_controller", True),
        ("sglang::scheduler_TP0", "sglang::scheduler_TP0", False),
        ("sglang::detokenizer", "", True),
        ("multiprocessing.resource_tracker", "sglang.launch_server", False),
    ],
)
def test_who_serves(title: str, parent: str, serves: bool) -> None:
    assert roles.serves(title, parent) is serves


async def test_a_process_that_frees_a_lot_of_memory_is_told_before_it_is_gone(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    code = "x = bytearray(400_000_000)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('up', flush=True)\n"
    child = spawn.start([sys.executable, "-c", code + "import time; time.sleep(60)"], {}, log)
    told: list[bool] = []
    tree = Tree(_ident(child), lambda one: told.append(one.alive))
    tree.add(tree.main)
    asking = asyncio.create_task(tree.keep_asking())
    await asyncio.to_thread(_wait_for, log, "up")
    tree.kill()
    assert await tree.wait_empty(10)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert len(told) == 1, "told once, by whichever sign came first"
    assert next(iter(tree.watched.values())).status in (-signal.SIGKILL, None)
    child.wait(5)
    tree.close()


BIG = """
import threading, time
x = bytearray(1_000_000_000)
for i in range(0, len(x), 4096): x[i] = 1
pools = [threading.Thread(target=time.sleep, args=(60,), daemon=True) for _ in range(3)]
brief = threading.Thread(target=input, daemon=True)
for one in (brief, *pools): one.start()
print('up', flush=True)
time.sleep(60)
"""


def _started(log: Path, code: str) -> subprocess.Popen[bytes]:
    with open(log, "wb") as out:
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=out, stderr=out)


async def _until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 10 s")


@pytest.mark.skipif(not threads.supported(), reason="this kernel has no pidfds of threads")
async def test_threads_tell_of_a_death_while_the_memory_is_being_freed_and_of_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    child = _started(log, BIG)
    told: list[bool] = []
    tree = Tree(_ident(child), lambda one: told.append(one.alive))
    tree.add(tree.main)
    await asyncio.to_thread(_wait_for, log, "up")
    asking = asyncio.create_task(tree.keep_asking())
    main = tree.watched[tree.main]
    await _until(lambda: main.threads is not None and main.threads.whole)
    assert child.stdin is not None
    child.stdin.close()  # one of the two that are watched ends, for its own reasons
    await _until(lambda: main.threads is not None and not main.threads.whole)
    await asyncio.sleep(0.3)
    assert told == []
    await _until(lambda: main.threads is not None and main.threads.whole)
    tree.kill()
    assert await tree.wait_empty(10)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert told == [True], "told while it was not gone yet"
    child.wait(5)
    tree.close()


async def test_a_recorded_process_with_another_start_time_is_left_alone(family: subprocess.Popen[bytes]) -> None:
    main = _ident(family)
    stranger = Ident(main.pid, main.start + 1)
    assert kill.kill_recorded(stranger, frozenset({stranger})) == []
    assert procfs.is_alive(main)
    assert len(kill.kill_recorded(main, frozenset({main}))) == 3


def test_the_output_goes_to_a_private_file(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "x.log"
    child = spawn.start([sys.executable, "-c", "print('hello')"], {}, log)
    assert child.wait(20) == 0
    assert log.read_text() == "hello\n"
    assert log.stat().st_mode & 0o077 == 0
    assert spawn.exit_text(-9) == "signal 9"
    assert spawn.exit_text(3) == "exit code 3"


def test_only_shared_memory_of_the_dead_launch_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill, "SHM", tmp_path)
    names = [
        "sglang_loads_abc",
        "sgl_shm_x_41_0",
        "sgl_shm_x_42_0",
        "psm_other",
        "sglang_loads_zzz",
        "sem.mp-mine",
        "sem.mp-other",
        "sgl_shm_old_41_1",
    ]
    for name in names:
        (tmp_path / name).touch()
    os.utime(tmp_path / "sgl_shm_old_41_1", (1, 1))
    found = kill.left_in_shm({"sglang_loads_abc", "sem.mp-mine", "psm_other", "gone"}, frozenset({41}), time.time() - 5)
    assert sorted(found) == ["sem.mp-mine", "sgl_shm_x_41_0", "sglang_loads_abc"]
    assert kill.remove_from_shm(found) == found
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(set(names) - set(found))


def test_a_listening_port_is_not_free_and_is_not_chosen() -> None:
    base = ports.choose("seed", ())
    assert (base - ports.FIRST) % ports.STEP == 0
    assert ports.choose("seed", {base}) != base
    # a group with a fixed port between two slots takes both
    between = base + 100 if base + ports.STEP < ports.LAST else base - 100
    assert abs(ports.choose("seed", {between}) - between) >= ports.STEP


@pytest.mark.parametrize(
    ("title", "serves"),
    [
        ("sglang::scheduler_TP0", True),
        ("sglang::detokenizer", True),
        ("sim::scheduler_TP1", True),
        ("multiprocessing.resource_tracker", False),
        ("gcc -c kernel.c", False),
        ("", False),
    ],
)
def test_only_processes_that_serve_end_a_launch(title: str, serves: bool) -> None:
    assert roles.serves(title) is serves


def test_ranks_are_the_schedulers() -> None:
    assert roles.ranks(["sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer", "python"]) == 2
