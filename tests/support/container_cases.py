"""What every kind of container must do, as cases that take a driver: run in a test, or inside a booted systemd.

`python -m tests.support.container_cases KIND FOLDER [CASE]...` runs them and ends with 0 when all held.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

from infctl.domain.errors import StartFailed
from infctl.domain.ids import launch_id
from infctl_daemon.engine import roles
from infctl_daemon.proc import choose, kill, procfs
from infctl_daemon.proc.container import Container, Driver, Kind, Order, Status
from infctl_daemon.proc.pidfd import Tree, Watched
from infctl_daemon.proc.procfs import Ident
from infctl_daemon.proc.systemd_unit import ask

# a child, a grandchild in a session of its own, and an orphan in another: its session's leader is gone
FAMILY = """
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print("orphan", os.getpid(), flush=True)
            time.sleep(600)
        os._exit(0)
    if os.fork() == 0:
        os.setsid()
    time.sleep(600)
print("up", flush=True)
time.sleep(600)
"""
ODD = ["$HOME ${HOME} $$", "100% %n %%", 'it\'s "quoted" \\ back', "two\nlines\ttab", "-x", "", "ünï"]
TELL = "import json,os,sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), os.getsid(0)==os.getpid()]))"

SHM = Path("/dev/shm")

Case = Callable[[Driver, Path], Awaitable[None]]


def order(folder: Path, argv: list[str], env: dict[str, str] | None = None) -> Order:
    launch = launch_id("case", secrets.token_bytes(5))
    return Order(launch, argv, env or {"PATH": os.environ["PATH"]}, folder / "logs" / f"{launch}.log", folder)


async def until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.01)


async def ended(container: Container, seconds: float = 10.0) -> str:
    """How its main process ended, once that is known."""
    end = time.monotonic() + seconds
    while not (text := (await container.status()).text):
        assert time.monotonic() < end, "the end of the main process is not known"
        await asyncio.sleep(0.02)
    return text


def sleeper() -> subprocess.Popen[bytes]:
    """A process that is nobody's business."""
    return subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)


def watch(container: Container, told: list[Watched] | None = None) -> Tree:
    tree = Tree(container.main, (told if told is not None else []).append, container=container)
    tree.begin("main")
    return tree


async def until_grown(tree: Tree, size: int) -> None:
    for _ in range(500):
        await tree.scan(deep=True)
        if len(tree.living) >= size:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{len(tree.living)} processes are found, not {size}")


async def nothing_left(driver: Driver, container: Container) -> None:
    assert await container.remove()
    assert await driver.find(container.name, container.main) is None
    assert container.name not in await driver.names()


async def arguments_and_environment_arrive_byte_for_byte(driver: Driver, folder: Path) -> None:
    env = {"A": ODD[0], "B_2": ODD[3], "SECRET": "kept", "PATH": os.environ["PATH"]}
    told = order(folder, [sys.executable, "-S", "-c", TELL, *ODD], env)
    container = await driver.start(told)
    assert await ended(container) == "exit code 0"
    argv, seen, cwd, leads = json.loads(told.log.read_text())
    assert argv == ODD
    assert {name: seen.get(name) for name in env} == env
    assert set(seen) - set(env) <= {"LC_CTYPE"}, "nothing of ours or of systemd's"
    assert cwd == str(folder)
    assert leads, "a session of its own"
    assert told.log.stat().st_mode & 0o077 == 0
    if container.kind == "systemd":
        unit = container.name.partition(":")[2]
        _, shown = await ask("systemctl", "show", "--all", unit)
        assert f"Id={unit}" in shown and "kept" not in shown
    await nothing_left(driver, container)


async def the_whole_family_is_found_and_killed_and_nobody_else(driver: Driver, folder: Path) -> None:
    stranger = sleeper()
    foreign = SHM / f"sgl_shm_foreign_{stranger.pid}_{secrets.token_hex(4)}"
    foreign.touch()
    mapped = SHM / f"sgl_shm_case_{secrets.token_hex(4)}"
    code = f"import mmap; f = open('{mapped}', 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096)\n"
    told = order(folder, [sys.executable, "-S", "-c", code + FAMILY])
    began = time.time()
    container = await driver.start(told)
    orphan = 0
    try:
        await until(lambda: {"up", "orphan"} <= set(told.log.read_text().split()), "the family is up")
        orphan = int(told.log.read_text().partition("orphan ")[2].split()[0])
        # it has neither our session nor a parent of ours: a scan cannot see it, a cgroup can
        seen = container.pids() is not None
        deaths: list[Watched] = []
        tree = watch(container, deaths)
        await until_grown(tree, 3 + seen)
        assert (orphan in tree.pids()) is seen
        assert mapped.name in tree.shm
        assert not {stranger.pid, os.getpid()} & tree.pids()
        assert await kill.kill_tree(tree, 10.0)
        assert len(deaths) == 3 + seen
        assert not any(procfs.is_alive(w.ident) for w in tree.watched.values())
        assert kill.remove_from_shm(kill.left_in_shm(tree.shm, tree.pids(), began)) == [mapped.name]
        assert await ended(container) == "signal 9"
        assert stranger.poll() is None and foreign.exists()
        tree.close()
        await nothing_left(driver, container)
    finally:
        container.kill()
        for pid in {container.main.pid, orphan} - {0}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        foreign.unlink()
        mapped.unlink(missing_ok=True)
        stranger.kill()
        stranger.wait()


async def exit_codes_and_signals_are_known(driver: Driver, folder: Path) -> None:
    for script, text in [("exit 0", "exit code 0"), ("exit 7", "exit code 7"), ("kill -SEGV $$", "signal 11")]:
        container = await driver.start(order(folder, ["/bin/sh", "-c", script]))
        deaths: list[Watched] = []
        tree = watch(container, deaths)
        await until(lambda: deaths, f"{script!r} is told")  # noqa: B023 - awaited here
        assert await ended(container) == text
        assert [w.ident for w in deaths] == [container.main]
        tree.close()
        await nothing_left(driver, container)


async def a_program_that_does_not_exist_is_refused_and_leaves_nothing(driver: Driver, folder: Path) -> None:
    before = await driver.names()
    try:
        await driver.start(order(folder, ["/no/such/program"]))
    except (StartFailed, FileNotFoundError) as error:
        assert "No such file" in str(error)
    else:
        raise AssertionError("started")
    assert await driver.names() == before
    assert list(folder.rglob("*.order")) == list(folder.rglob("*.gate")) == []


async def forks_cannot_outrun_one_kill(driver: Driver, folder: Path) -> None:
    if driver.kind == "session":
        return  # it can only chase them
    bomb = "while :; do (sleep 600 &) ; sleep 0.01; done"
    container = await driver.start(order(folder, ["/bin/sh", "-c", bomb]))
    await until(lambda: len(container.pids() or ()) > 20, "it forks")
    assert container.kill()
    await until(lambda: not container.pids(), "one kill ends it", 10.0)
    assert await ended(container) == "signal 9"
    await nothing_left(driver, container)


STARTER = """
import asyncio, os, sys
from pathlib import Path
from tests.support import container_cases as cases
async def main():
    folder = Path(sys.argv[2])
    driver = await cases.driver(sys.argv[1], folder)
    script = f"sleep 600 & while [ ! -e {folder}/go ]; do sleep 0.05; done; exit 5"
    container = await driver.start(cases.order(folder, ["/bin/sh", "-c", script]))
    print(container.name, container.main.pid, container.main.start, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def an_engine_outlives_its_daemon_and_is_found_again(driver: Driver, folder: Path) -> None:
    argv = [sys.executable, "-c", STARTER, driver.kind, str(folder)]
    out = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60)
    assert out.returncode == -signal.SIGKILL, out.stderr
    name, pid, start = out.stdout.split()
    main = Ident(int(pid), int(start))
    container = await driver.find(name, main)
    assert container is not None and container.name == name and container.kind == driver.kind
    assert await driver.find(name + "x", main) is None
    deaths: list[Watched] = []
    tree = watch(container, deaths)
    await until_grown(tree, 2)
    (folder / "go").touch()
    await until(lambda: main in [w.ident for w in deaths], "its end is told")
    # systemd has it for certain, a pidfd from Linux 6.15 on
    known = (await container.status()).text or Status.of(tree.watched[main].status).text
    assert known == "exit code 5" or (driver.kind != "systemd" and known == "")
    assert await kill.kill_tree(tree, 10.0), "what it left behind ends too"
    tree.close()
    await nothing_left(driver, container)


async def what_an_earlier_daemon_recorded_is_ended(driver: Driver, folder: Path) -> None:
    stranger = sleeper()
    told = order(folder, [sys.executable, "-S", "-c", FAMILY])
    started = await driver.start(told)
    await until(lambda: {"up", "orphan"} <= set(told.log.read_text().split()), "the family is up")
    found = await driver.find(started.name, started.main)
    assert found is not None
    pids = await kill.end_recorded(started.main, frozenset({started.main}), found, print)
    assert started.main.pid in pids and stranger.pid not in pids
    assert stranger.poll() is None
    assert not found.pids()
    assert await ended(started) == "signal 9"
    await nothing_left(driver, found)
    with contextlib.suppress(ProcessLookupError):  # a scan cannot find it
        os.kill(int(told.log.read_text().partition("orphan ")[2].split()[0]), signal.SIGKILL)
    stranger.kill()
    stranger.wait()


# bash, for a title; the colons keep it from becoming its last command
ENGINE = "(exec -a sglang::scheduler_TP0 sleep 600) & (exec -a sglang::scheduler_TP1 sleep 600) & wait; :"


async def sixty_four_started_at_once_miss_no_death(driver: Driver, folder: Path) -> None:
    doomed = range(0, 64, 4)
    scripts = ["exit 3" if i in doomed else ENGINE for i in range(64)]
    began = time.monotonic()
    containers = await asyncio.gather(*(driver.start(order(folder, ["/bin/bash", "-c", s])) for s in scripts))
    took = time.monotonic() - began
    told: list[tuple[float, Watched]] = []
    trees = []
    for container in containers:
        tree = Tree(container.main, lambda one: told.append((time.monotonic(), one)), container=container)
        tree.serves = roles.serves
        tree.begin("main")
        trees.append(tree)
    engines = [tree for i, tree in enumerate(trees) if i not in doomed]
    watching = [asyncio.create_task(w) for tree in trees for w in (tree.keep_scanning(), tree.keep_asking())]
    ranks: list[Watched] = []

    def loaded() -> bool:
        ranks[:] = [w for tree in engines for w in tree.living if w.title.startswith("sglang")]
        return len(ranks) == 2 * len(engines) and len(told) >= len(doomed)

    await until(loaded, "every rank is found", 30.0)
    assert sorted(w.ident.pid for _, w in told) == sorted(containers[i].main.pid for i in doomed)
    assert [await ended(containers[i]) for i in doomed] == ["exit code 3"] * len(doomed)
    told.clear()
    killed = {}
    for one in ranks[::2]:
        killed[one.ident] = time.monotonic()
        os.kill(one.ident.pid, signal.SIGKILL)
        await asyncio.sleep(0.002)
    await until(lambda: len(told) >= len(killed), "every death is told")
    late = sorted(1000 * (at - killed[w.ident]) for at, w in told)
    assert {w.ident for _, w in told} == set(killed) and len(told) == len(killed), "each once"
    figures = f"p50 {late[len(late) // 2]:.1f} ms, highest {late[-1]:.1f} ms"
    print(f"{driver.kind}: 64 started in {took:.2f} s; {len(late)} deaths told, from kill to callback {figures}")
    await asyncio.gather(*(kill.kill_tree(tree, 10.0) for tree in trees))
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    for tree, container in zip(trees, containers, strict=True):
        assert not tree.living
        tree.close()
        assert await container.remove()
    assert await driver.names() == []


CASES: list[Case] = [
    arguments_and_environment_arrive_byte_for_byte,
    the_whole_family_is_found_and_killed_and_nobody_else,
    exit_codes_and_signals_are_known,
    a_program_that_does_not_exist_is_refused_and_leaves_nothing,
    forks_cannot_outrun_one_kill,
    an_engine_outlives_its_daemon_and_is_found_again,
    what_an_earlier_daemon_recorded_is_ended,
    sixty_four_started_at_once_miss_no_death,
]


async def driver(kind: str, folder: Path) -> Driver:
    """A driver of that kind, proved; raises ConfigError with the reason where it cannot be had."""
    return (await choose.choose(folder / "state", folder / "run", [cast("Kind", kind)])).driver


async def held(case: Case, kind: str, folder: Path) -> None:
    """Run one case; what it started is ended, also when it did not hold."""
    own = await driver(kind, folder)
    started: list[Container] = []
    start = own.start

    async def noted(order: Order) -> Container:
        started.append(await start(order))
        return started[-1]

    own.start = noted  # type: ignore[method-assign]
    try:
        async with asyncio.timeout(45):
            await case(own, folder)
    finally:
        for container in started:
            main = container.main
            for _ in range(200):
                if not kill.kill_recorded(main, frozenset({main}), container=container):
                    break
                await asyncio.sleep(0.02)
            await container.remove()


async def main(kind: str, folder: Path, names: list[str]) -> int:
    """Run the cases, all without `names`; how many did not hold."""
    broken = 0
    for case in CASES:
        name = case.__name__
        if names and name not in names:
            continue
        own = folder / name
        own.mkdir(parents=True)
        try:
            await held(case, kind, own)
            print("held", name, flush=True)
        except Exception:
            broken += 1
            print("BROKEN", name, traceback.format_exc(), flush=True)
    return broken


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])))
