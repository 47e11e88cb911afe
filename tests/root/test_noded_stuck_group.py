"""A group with a process that cannot die: its status says where that waits, and nothing is started in its place."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from infctl_daemon.proc.kill import STUCK_AFTER
from tests.support import container_cases as cases
from tests.support.freezer import Freezer
from tests.support.noded import node_cluster

pytestmark = [pytest.mark.root]


async def test_a_group_with_a_process_in_state_d_is_stuck_until_it_is_gone(tmp_path: Path, freezer: Freezer) -> None:
    async with node_cluster(tmp_path) as cluster:
        await cluster.apply(cluster.spec())
        first = await cluster.ready()
        before = cluster.footprint()
        rank = cluster.noded.pid("a", "scheduler_TP1")
        try:
            freezer.hold(rank)
            killed_ms = time.time() * 1000
            os.kill(cluster.noded.pid("a", "main"), signal.SIGKILL)
            fault = await cluster.fault(first.launch)
            assert fault.at_ms - killed_ms < 500
            stuck = await cluster.status(reason="stuck", seconds=STUCK_AFTER + 20)
            assert stuck.launch == fault.launch == first.launch
            assert stuck.processes == 1
            assert f"scheduler_TP1 (pid {rank}) in state D in " in stuck.message
            await asyncio.sleep(3.0)  # longer than the back-off before a launch
            assert (await cluster.status()).launch == first.launch, "nothing takes its place"
            assert await cluster.endpoint() is None
            assert before.living == {rank}, "all others are gone"
        finally:
            freezer.let_go()
        await cluster.nothing_left(before)
        second = await cluster.ready(not_launch=first.launch)
        assert second.generation > first.generation
        assert (await cluster.status(phase="ready")).reason == ""
        await cases.until(lambda: not Path(f"/proc/{rank}").exists(), "the process is gone")
