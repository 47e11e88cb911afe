"""A process that SIGKILL does not end is reported with the place where it waits, and is not called gone.

State D is made for real: a frozen cgroup of the first version holds its members in the kernel, signals or not.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from infctl_daemon.proc import cgroupfs, kill
from infctl_daemon.proc.pidfd import Tree, Watched
from tests.support import container_cases as cases
from tests.support.freezer import Freezer

pytestmark = [pytest.mark.root]
KINDS = ["session", "cgroup"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_launch_with_a_process_in_state_d_is_stuck_until_it_is_gone(
    kind: str, freezer: Freezer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[object] = []
    whole, single = cgroupfs.kill, signal.pidfd_send_signal
    monkeypatch.setattr(cgroupfs, "kill", lambda group: (kills.append(group), whole(group))[1])
    driver = await cases.driver(kind, tmp_path)
    container = await driver.start(cases.order(tmp_path, ["/bin/sh", "-c", "sleep 600 & sleep 600 & wait"]))
    tree = Tree(container.main, lambda one: None, container=container)
    tree.begin("main")
    await cases.until_grown(tree, 3)
    one: Watched = next(w for w in tree.living if w.ident != tree.main)
    freezer.hold(one.ident.pid)
    kills.clear()  # of the driver's proof
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda fd, number: (kills.append(fd), single(fd, number))[1])
    said: list[str] = []
    ending = asyncio.create_task(kill.kill_until_gone(tree, said.append, every=0.3))
    try:
        await cases.until(lambda: said, "it is reported")
        assert said[0].startswith(f"sleep 600 (pid {one.ident.pid}) in state D in ")
        await asyncio.sleep(1.0)
        assert len(said) == 1, "once, not at each look"
        assert not ending.done() and [w.ident for w in tree.living] == [one.ident]
        assert not await container.remove(), "what holds a process is not removed"
        assert len(kills) == len(set(kills)) == (3 if kind == "session" else 1), "SIGKILL once, not at each look"
    finally:
        freezer.let_go()
    await asyncio.wait_for(ending, 10)
    assert not tree.living and await container.remove()
    tree.close()
