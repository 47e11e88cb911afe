"""The first five faults on the real SGLang: one daemon, two groups of two ranks; each relaunch serves the next case.

A stream runs on the group that is hurt. What its client saw is compared with an uninterrupted run on the other group.
Of other prompts this engine itself goes on otherwise when it is given its own first tokens: two tokens are nearly as
likely there, and sums of prefill and decode differ in the last bits. Those here it replays exactly from every cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from infctl.client.local.plan import Engine, Layout, profile
from infctl.domain.errors import ConfigError
from infctl.store.codec import decode
from infctl.store.records import FaultNotice, Secret
from infctl_daemon.proc import ended, ports
from infctl_daemon.proc.kill import STUCK_AFTER
from tests.support import exits_quietly
from tests.support.cluster import Cluster, running
from tests.support.freezer import Freezer, a_freezer, freezers
from tests.support.left_behind import Footprint
from tests.support.needs import need
from tests.support.witness import Seen, body, until, watch

pytestmark = [
    pytest.mark.faults,
    pytest.mark.sglang,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1200),
]

START_S = 900.0  # a minute on two free cores; others may use them, too
TOKENS, AT = 72, 24
SWEPT_S = 10.0  # from the fault: the processes of a launch hold 3 GB


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("sglang")
    try:
        engine = profile(Engine.SGLANG, Layout(folder))
    except ConfigError as missing:
        need(missing.message)
        raise
    quiet = folder / "quiet"
    quiet.mkdir()
    shutil.copy(str(exits_quietly.__file__), quiet / "sitecustomize.py")
    spec = {
        "engine": "sglang",
        "python": engine.python,
        "modelPath": engine.model_path,
        "maxRunning": engine.max_running,
        "maxQueued": engine.max_queued,
        "env": {**engine.env, "PYTHONPATH": str(quiet)},
    }
    # it loads for a minute before it binds its port: not one of those that other daemons here choose meanwhile
    a, b, *_ = (port for port in range(9600, 12000, 300) if ports.is_free(port))
    async with running(folder, ("a", "b"), sim=engine.args, patience=START_S, ports={"a": a, "b": b}, **spec) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared: Cluster) -> Cluster:
    """Both groups serve: the one that the case before has hurt, too."""
    await shared.ready("a", "b", timeout=START_S)
    return shared


async def engine_of(cluster: Cluster, group: str) -> aiohttp.ClientSession:
    """A way to the engine itself, past every gateway."""
    endpoint, kv = await cluster.endpoint(group), await cluster.store.get(cluster.keys.secret(group))
    assert endpoint is not None and kv is not None
    headers = {"authorization": f"Bearer {decode(Secret, kv.value).api_key}"}
    return aiohttp.ClientSession(endpoint.url, headers=headers, timeout=aiohttp.ClientTimeout(total=180))


def generation(ids: list[int], tokens: int) -> dict[str, object]:
    return {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}


async def uninterrupted(cluster: Cluster, group: str, prompt: str) -> list[int]:
    """What the prompt leads to there. Near-ties depend on what is cached, so nothing is, before and after."""
    async with await engine_of(cluster, group) as http:
        async with http.post("/tokenize", json={"prompt": prompt}) as answer:
            tokens: list[int] = (await answer.json())["tokens"]
        async with http.post("/generate", json=generation(tokens, TOKENS)) as answer:
            ids: list[int] = (await answer.json())["output_ids"]

        async def flushed() -> bool:
            async with http.post("/flush_cache") as answer:
                return answer.status == 200

        await until(flushed, 20, "the cache is empty again", every=0.5)
    assert len(ids) == TOKENS
    return ids


@contextlib.asynccontextmanager
async def hurt(
    cluster: Cluster, group: str, other: str, prompt: str, *, moves: bool = True
) -> AsyncIterator[tuple[Footprint, Seen]]:
    """A stream that runs on `group` while the block does it harm, and goes on exactly where it was: on `other`, if it
    `moves`."""
    expected = await uninterrupted(cluster, other, prompt)
    before = cluster.footprint(group)
    seen = Seen()
    task = asyncio.create_task(watch(cluster.url, body(prompt, tokens=TOKENS), seen, group=group, timeout=180.0))
    try:
        await until(lambda: len(seen.ids) >= AT or task.done(), 60, f"{AT} tokens")
        yield before, seen
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (seen.done, seen.error, seen.broken) == (True, None, [])
    assert seen.ids == expected
    record = await cluster.stream(seen.stream)
    where = (other, 1) if moves else (group, 0)
    assert record is not None and (record.group, record.migrations) == where


async def told(cluster: Cluster, seen: Footprint, seconds: float) -> FaultNotice:
    async def look() -> list[FaultNotice]:
        return [notice for notice in await cluster.faults() if notice.launch == seen.launch]

    return (await until(look, seconds, f"the notice of {seen.launch}"))[0]


async def test_one_rank_of_the_real_engine_is_killed(cluster: Cluster) -> None:
    rank = await cluster.rank("a", 1)
    async with hurt(cluster, "a", "b", "One rank is killed and the stream") as (before, seen):
        moment, at_ms = time.monotonic(), time.time() * 1000
        rank.kill()
        notice = await told(cluster, before, 3.0)
        assert notice.reason == "process-exited" and notice.at_ms - at_ms < 500
        await cluster.nothing_left(before, SWEPT_S)
    assert seen.gap_over(moment) < 5.0


async def test_a_rank_of_the_real_engine_exits_with_code_0(cluster: Cluster) -> None:
    """SGLang itself takes no notice of such an end (0.5.23): its streams would hang."""
    rank = await cluster.rank("b", 1)
    async with hurt(cluster, "b", "a", "A rank leaves in good order and the stream") as (before, seen):
        moment, at_ms = time.monotonic(), time.time() * 1000
        rank.send_signal(signal.SIGUSR2)
        notice = await told(cluster, before, 5.0)
        assert notice.reason == "process-exited" and notice.at_ms - at_ms < 1500
        assert "scheduler_TP1" in notice.evidence and "which nobody asked for" in notice.evidence
        await cluster.nothing_left(before, SWEPT_S)
    assert seen.gap_over(moment) < 6.0


async def test_the_main_process_of_the_real_engine_is_killed(cluster: Cluster) -> None:
    main = (await cluster.tree("a"))[0]
    async with hurt(cluster, "a", "b", "The main process is killed and the stream") as (before, seen):
        moment, at_ms = time.monotonic(), time.time() * 1000
        main.kill()
        notice = await told(cluster, before, 3.0)
        assert notice.reason == "process-exited" and notice.at_ms - at_ms < 500
        await cluster.nothing_left(before, SWEPT_S)
    assert seen.gap_over(moment) < 5.0


async def test_one_rank_of_the_real_engine_is_frozen(cluster: Cluster) -> None:
    rank = await cluster.rank("b", 1)
    async with hurt(cluster, "b", "a", "One rank stands still and every client") as (before, seen):
        moment = time.monotonic()
        rank.send_signal(signal.SIGSTOP)
        notice = await told(cluster, before, 30.0)
        assert notice.reason == "hang"
        await cluster.nothing_left(before, SWEPT_S)
    assert seen.gap_over(moment) < 8.0


@pytest.fixture
def freezer() -> Iterator[Freezer | None]:
    """What puts a process into state D, where the machine has it and lets us."""
    top = freezers() if os.geteuid() == 0 else None
    if top is None:
        yield None
    else:
        with a_freezer(top) as made:
            yield made


async def test_a_real_engine_that_will_not_die(cluster: Cluster, freezer: Freezer | None) -> None:
    """It waits without limit for a request that came past the gateways, SIGTERM or not; then a rank outlives SIGKILL.

    Where nothing puts processes into state D, the second half is left out.
    """
    rank = await cluster.rank("a", 1)
    async with (
        hurt(cluster, "a", "b", "The group will not die and the stream", moves=False) as (before, _seen),
        await engine_of(cluster, "a") as http,
    ):
        past = asyncio.create_task(http.post("/generate", json=generation([7, 8, 9], 3900)))
        began = time.monotonic()
        draining = asyncio.create_task(cluster.cli("drain", "group/a", "--yes", "--deadline", "14s", timeout=120))
        try:
            await until(lambda: "SIGTERM" in engine_log(cluster, before), 30, "the engine heard SIGTERM")
            assert time.monotonic() - began < 13.0, "the two signals are apart"
            if freezer is not None:
                freezer.hold(rank.pid)
                await until(lambda: stuck(cluster), 14 + STUCK_AFTER + 10, "it is said to be stuck")
                status = await cluster.status("a")
                assert f"scheduler_TP1 (pid {rank.pid}) in state D in " in status.message
                assert before.living == {rank.pid} and not draining.done()
                freezer.let_go()
            await cluster.nothing_left(before, 14 + SWEPT_S)
        finally:
            past.cancel()
            await asyncio.gather(past, return_exceptions=True)
        code, out, err = await draining
        assert code == 0 and out.startswith("group/a drained"), out + err
    last = next(e for e in ended.read(cluster.folder / "node", "a") if e.launch == before.launch)
    assert (last.reason, last.signal) == ("drained", signal.SIGKILL)


def engine_log(cluster: Cluster, seen: Footprint) -> str:
    return Path(ended.log_path(cluster.folder / "node", seen.launch)).read_text(errors="replace")


async def stuck(cluster: Cluster) -> bool:
    return (await cluster.status("a")).reason == "stuck"
