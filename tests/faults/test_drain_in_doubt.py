"""A group that is being drained while something speaks against its health: the drain has the last word on routing, one
class of evidence still kills nothing, and two still end the launch, which then is what the drain wanted."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from infctl.domain.health_events import Reason
from infctl.store.codec import decode
from infctl.store.intent_records import Hold
from infctl.store.records import Secret
from tests.support.cluster import Cluster, running
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.timeout(150)]

SIM = ("--sim-decode-seconds", "0.02", "--sim-load-seconds", "0.1")


@contextlib.asynccontextmanager
async def busy(cluster: Cluster) -> AsyncIterator[None]:
    """A request that runs on the engine of group a and came past every gateway: the drain waits for it."""
    endpoint, kv = await cluster.endpoint("a"), await cluster.store.get(cluster.keys.secret("a"))
    assert endpoint is not None and kv is not None
    headers = {"authorization": f"Bearer {decode(Secret, kv.value).api_key}"}
    asked = {"input_ids": [7, 8], "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}

    async def ask() -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.ClientSession(headers=headers) as http:
                await http.post(f"{endpoint.url}/generate", json=asked)

    task = asyncio.create_task(ask())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def detokenizer(cluster: Cluster) -> psutil.Process:
    return next(p for p in await cluster.tree("a") if re.search("detokenizer", " ".join(p.cmdline())))


async def reason_is(cluster: Cluster, reason: str) -> bool:
    return (await cluster.status("a")).reason == reason


async def state_is(cluster: Cluster, state: str) -> bool:
    found = await cluster.endpoint("a")
    return found is not None and found.state == state


async def test_a_draining_group_in_doubt_stays_draining_and_is_not_ready_when_it_is_undrained(tmp_path: Path) -> None:
    async with running(tmp_path, tp=1, sim=SIM) as cluster:
        (before,) = await cluster.ready("a")
        pids = cluster.footprint("a").idents
        async with busy(cluster):
            draining = asyncio.create_task(cluster.cli("drain", "group/a", "--yes", timeout=120))
            await until(lambda: state_is(cluster, "draining"), 20, "it is being drained")
            frozen = await detokenizer(cluster)
            frozen.send_signal(signal.SIGSTOP)
            await until(lambda: reason_is(cluster, Reason.CANARY_SILENT), 60, "its health is in doubt")
            assert await state_is(cluster, "draining"), "no doubt takes that back"
            assert await cluster.faults() == [] and not draining.done()

            code, out, err = await cluster.cli("undrain", "group/a")
            assert (code, out) == (0, "group/a undrained\n"), err
            await draining
            await until(lambda: state_is(cluster, "unfit"), 10, "undrained, and no better for it")
            frozen.send_signal(signal.SIGCONT)
            await until(lambda: state_is(cluster, "ready"), 40, "it answers again")
        after = await cluster.endpoint("a")
        assert after is not None and (after.launch, after.generation) == (before.launch, before.generation)
        assert cluster.footprint("a").idents == pids and await cluster.faults() == []


async def test_a_draining_group_that_hangs_is_ended_and_the_drain_with_it(tmp_path: Path) -> None:
    async with running(tmp_path, sim=SIM) as cluster:
        before = cluster.footprint("a")
        seen = Seen()
        task = asyncio.create_task(watch(cluster.url, body(tokens=300), seen, group="a", timeout=100.0))
        await until(lambda: len(seen.ids) > 5, 20, "the stream runs")
        async with busy(cluster):
            draining = asyncio.create_task(cluster.cli("drain", "group/a", "--yes", timeout=120))
            await until(lambda: state_is(cluster, "draining"), 20, "it is being drained")
            (await cluster.rank("a", 1)).send_signal(signal.SIGSTOP)
            code, out, err = await draining
        assert code == 0 and out.startswith("group/a drained"), out + err
        assert [f.reason for f in await cluster.faults()] == ["hang"]
        await cluster.nothing_left(before)
        whole = await task
        assert whole.done and whole.broken == [] and len(whole.ids) == 300
        kv = await cluster.store.get(cluster.keys.group_hold("a"))
        assert kv is not None and decode(Hold, kv.value).state == "drained"
        await asyncio.sleep(4.0)  # longer than the delay before a launch
        assert await cluster.endpoint("a") is None and (await cluster.status("a")).processes == 0
