"""The owner of a group over two hosts changes places with the other host: on neither do two launches overlap."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest

from infctl_daemon.proc import procfs
from tests.support.hosted import Hosts, hosts_cluster
from tests.support.noded import until

pytestmark = [pytest.mark.faults]
GRACE = 3.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Hosts]:
    async with hosts_cluster(tmp_path, ("a", "b")) as found:
        yield found


def launches(folder: Path) -> dict[str, set[str]]:
    """Of each host, the launches whose main processes live there: each has its key file in that host's folder."""
    found: dict[str, set[str]] = {}
    for process in psutil.process_iter():
        try:
            argv = " ".join(process.cmdline())  # none of a zombie
        except psutil.Error:
            continue
        if named := re.search(rf"{re.escape(str(folder))}/(\w+)/\S*/keys/(\S+)\.yaml", argv):
            found.setdefault(named[1], set()).add(named[2])
    return found


async def never_two(folder: Path, seen: dict[str, set[str]]) -> None:
    while True:
        now = launches(folder)
        for node, living in now.items():
            seen.setdefault(node, set()).update(living)
            assert len(living) < 2, f"on {node} at once: {living}"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("killed", [False, True], ids=["daemon-stays", "daemon-killed-meanwhile"])
async def test_no_launch_begins_on_a_host_that_the_one_before_has_not_left(
    cluster: Hosts, tmp_path: Path, killed: bool
) -> None:
    """The old owner's engine does not leave when asked: the next launch waits for it there, and says so."""
    spec = cluster.spread(over=("a", "b"))
    spec = msgspec.structs.replace(spec, drain=msgspec.structs.replace(spec.drain, kill_grace=GRACE))
    await cluster.apply(spec)
    first = await cluster.ready("g")
    daemon = cluster.daemons["a"]
    old = [process for one in cluster.daemons.values() for process in one.part("g")]
    assert {node: len(found) for node, found in launches(tmp_path).items()} == {"a": 1, "b": 1}
    os.kill(daemon.part("g")[0].pid, signal.SIGSTOP)
    seen: dict[str, set[str]] = {}
    watching = asyncio.ensure_future(never_two(tmp_path, seen))
    try:
        turned = cluster.spread(over=("b", "a"))
        await cluster.apply(msgspec.structs.replace(turned, drain=spec.drain))

        async def said() -> bool:
            status = await cluster.status("g")
            return status.node == "b" and f"waits for {first.launch} to leave node/a" in status.message

        await until(said, GRACE, "the status says what is waited for")
        if killed:
            daemon.signal(signal.SIGKILL)
            await daemon.ended()
            daemon.start()
        second = await cluster.ready("g", not_launch=first.launch)
        assert second.node == "b" and not watching.done()
        parts = await cluster.parts(second.launch)
        assert {node: (part.node_rank, part.state) for node, part in parts.items()} == {
            "a": (1, "loaded"), "b": (0, "loaded"),
        }  # fmt: skip
        assert not any(procfs.is_alive(process.ident) for process in old)
        assert (await cluster.status("g", phase="ready")).node == "b"
        assert all(first.launch in found and second.launch in found for found in seen.values()) and len(seen) == 2
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_group_that_moved_to_a_node_without_a_daemon_is_not_called_ready(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread(over=("a",)))
    await cluster.ready("g")
    await cluster.status("g", phase="ready")
    await cluster.apply(cluster.spread(over=("z",)))
    assert (await cluster.status("g", phase="idle")).node == "a"
