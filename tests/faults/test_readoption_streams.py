"""A daemon is killed, upgraded or away under running streams: no client sees anything of it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.support.cluster import running
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

SLOW = ("--sim-decode-seconds", "0.05")


@pytest.mark.parametrize("away", [0.0, 13.0], ids=["back at once", "away for longer than its lease"])
async def test_no_stream_breaks_and_none_moves_while_the_daemon_is_replaced(tmp_path: Path, away: float) -> None:
    async with running(tmp_path, groups=("a",), sim=SLOW, stops_groups=False) as cluster:
        (before,) = await cluster.ready("a")
        seen = [Seen() for _ in range(20)]
        tokens = 120 if not away else 400
        tasks = [
            asyncio.create_task(watch(cluster.url, body(f"stream {n}", tokens=tokens), one))
            for n, one in enumerate(seen)
        ]
        await until(lambda: all(len(one.ids) > 5 for one in seen), 20, "every stream runs")
        os.kill(cluster.processes["noded"].pid, signal.SIGKILL)
        cluster.processes["noded"].wait(5)
        await asyncio.sleep(away)
        cluster.start_daemon()
        await asyncio.gather(*tasks)
        for one in seen:
            assert (len(one.ids), one.broken, one.error, one.done) == (tokens, [], None, True)
        moved = list(await cluster.events("stream.resumed"))
        assert moved == []
        (after,) = await cluster.ready("a")
        assert after.launch == before.launch
        assert after.generation == before.generation + (1 if away else 0)
        new = await watch(cluster.url, body("one more", tokens=5))
        assert (len(new.ids), new.broken) == (5, [])
