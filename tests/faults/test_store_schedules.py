"""Schedules of faults in which the store is the one that fails: etcd freezes, fills up, comes late, or is replaced.

Real processes; each test is named like the schedule in docs/design.md that it carries out.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from tests.support.cluster import Cluster, running
from tests.support.traffic import traffic
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

STEADY = ("--sim-decode-seconds", "0.05", "--sim-first-token-seconds", "0.004")
QUICK = {"restart": {"firstDelaySeconds": 0.3, "maxDelaySeconds": 0.3, "attempts": 1000}}
FREEZE_S = 60.0
RATE = 50.0


def stream(cluster: Cluster, number: int, tokens: int, group: str) -> tuple[Seen, asyncio.Task[Seen]]:
    """A long stream that begins on `group`; streams of one number ask for the same."""
    seen = Seen()
    request = body(prompt=[11 + number, 12, 13], tokens=tokens)
    return seen, asyncio.create_task(watch(cluster.url, request, seen, group=group, timeout=110))


def alive(pids: set[int]) -> set[int]:
    return {p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE}


async def pids(cluster: Cluster, group: str) -> set[int]:
    return {p.pid for p in await cluster.tree(group)}


async def test_etcd_frozen_for_a_minute_with_live_traffic_no_restart_no_fenced_frame(tmp_path: Path) -> None:
    """Every lease of the daemon runs out and a rank dies meanwhile; no client notices any of it."""
    async with running(tmp_path, ("a", "b", "c"), sim=STEADY, **QUICK) as cluster:
        before = {e.group: e for e in await cluster.ready("a", "b", "c")}
        engines = {g: await pids(cluster, g) for g in before}
        rank = await cluster.rank("a", 1)
        async with traffic(cluster.url, RATE) as load:
            tokens = int(FREEZE_S / 0.05)  # so they still run at the thaw
            doomed = [stream(cluster, n, tokens, "a") for n in range(3)]
            safe = [stream(cluster, n, tokens, "b") for n in range(3)]
            await until(lambda: all(len(s.ids) > 20 for s, _ in doomed + safe), 20, "every long stream runs")
            cluster.etcd.freeze()
            try:
                await asyncio.sleep(FREEZE_S / 3)
                rank.kill()
                await until(lambda: not alive(engines["a"]), 5, "the daemon ended the wounded group by itself")
                await asyncio.sleep(FREEZE_S * 2 / 3)
            finally:
                cluster.etcd.thaw()
            for _, task in doomed + safe:
                await task
            again = {e.group: e for e in await cluster.ready("a", "b", "c")}

            async def raised() -> bool:
                for group in again:
                    found = await cluster.endpoint(group)
                    if found is None or found.generation <= before[group].generation:
                        return False
                    again[group] = found
                return True

            await until(raised, 20, "every endpoint is back under a higher generation")
            await cluster.ready("a", "b", "c")
            served = load.served
            await until(lambda: load.served > served + 100, 20, "traffic goes on")
        assert load.failures == [] and load.served == load.sent > FREEZE_S * RATE
        for (moved, _), (stayed, _) in zip(doomed, safe, strict=True):
            for seen in (moved, stayed):
                assert seen.error is None and seen.broken == [] and seen.done and len(seen.ids) == tokens
            assert moved.ids == stayed.ids and moved.text == stayed.text and moved.usage == stayed.usage
        assert again["a"].launch != before["a"].launch
        fresh = await watch(cluster.url, body(tokens=5), group="a")
        assert fresh.error is None and len(fresh.ids) == 5, "the new launch serves"
        for group in ("b", "c"):
            assert again[group].launch == before[group].launch
            assert await pids(cluster, group) == engines[group], "a healthy engine was restarted"
        status = await cluster.get(cluster.admin + "/v1/status")
        assert not [name for name in status["counters"] if name.startswith("dropped")], "a frame was fenced"
        assert [f.launch for f in await cluster.faults()] == [before["a"].launch]
        for seen, _ in safe:
            record = await cluster.stream(seen.stream)
            assert record is not None and record.state == "COMPLETED" and record.migrations == 0
        left = set().union(*engines.values(), await pids(cluster, "a"))
    assert alive(left) == set(), "an engine outlived its cluster"
