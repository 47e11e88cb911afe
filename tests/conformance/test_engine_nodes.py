"""One group on two nodes: two process trees that meet at a port, one rank each.

The cases run in this order on one pair, so that the real engine starts it once; the last one ends it.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from infctl.adapters.free_port import free_port
from infctl_daemon.engine.sim.model import write_model
from tests.conformance.engines import CONTEXT, SGLANG_MODEL, Engine, launch, wait_up
from tests.conformance.streams import body, call, loads, quiet, stream, until
from tests.conformance.test_engine_wounds import answers, ended, refuses

Pair = tuple[Engine, Engine]


@pytest.fixture(scope="module")
def pair(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Node-rank 0 and node-rank 1 of one group; the second one is started first and has to wait."""
    folder = tmp_path_factory.mktemp(f"{kind}-nodes")
    model = SGLANG_MODEL
    if kind == "sim":
        model = folder / "model"
        write_model(model, context=CONTEXT)
    flags = ["--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{free_port()}", "--node-rank"]
    one = launch(kind, model, Path(folder), *flags, "1")
    zero = launch(kind, model, Path(folder), *flags, "0")
    try:
        wait_up(zero, "/ready", {"main", "0", "detokenizer"})
        wait_up(one, "/health", {"main", "1"})
        yield zero, one
    finally:
        for engine in (zero, one):
            for pid in engine.frozen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            engine.end()


async def test_node_without_rank_0_says_200_to_three_paths_and_404_to_all_others(pair: Pair):
    _, one = pair
    async with one.client(None) as client:
        got = {
            path: (await client.get(path)).status_code
            for path in ("/ping", "/health", "/health_generate", "/ready", "/v1/loads", "/model_info", "/server_info")
        }
        generate = await client.post("/generate", json=body(stream=False))
    assert got == {
        **dict.fromkeys(("/ping", "/health", "/health_generate"), 200),
        **dict.fromkeys(("/ready", "/v1/loads", "/model_info", "/server_info"), 404),
    }
    assert (generate.status_code, generate.json()) == (404, {"detail": "Not Found"})


async def test_two_nodes_say_what_one_says_token_for_token(pair: Pair, engine: Engine):
    apart = await call(pair[0], body(max_new=24, stream=False))
    alone = await call(engine, body(max_new=24, stream=False))
    assert apart.json()["output_ids"] == alone.json()["output_ids"]
    assert apart.json()["text"] == alone.json()["text"]
    assert (await stream(pair[0], body(max_new=24))).ids == alone.json()["output_ids"]


async def test_sigterm_to_the_other_node_changes_nothing(pair: Pair):
    zero, one = pair

    async def on_frame(count: int) -> None:
        if count == 4:
            one.send("main", signal.SIGTERM)
            await asyncio.sleep(0.5)

    got = await stream(zero, body(max_new=24), on_frame=on_frame)
    assert got.finish == {"type": "length", "length": 24}
    assert [await answers(zero, "/ready"), await answers(one, "/health")] == [200, 200]
    assert not await ended(one)


async def test_frozen_rank_of_the_other_node_stops_the_load_time_while_both_ports_answer(pair: Pair):
    zero, one = pair
    await quiet(zero)
    seen: dict[str, object] = {}

    async def on_frame(count: int) -> None:
        if count != 6:
            return
        one.send("1", signal.SIGSTOP)
        await asyncio.sleep(0.4)
        before = await loads(zero)
        await asyncio.sleep(0.7)
        after = await loads(zero)
        seen["stamps"] = before["timestamp"] == after["timestamp"]
        seen["running"] = after["num_running_reqs"]
        seen["leader"] = await answers(zero, "/ready")
        seen["other"] = await answers(one, "/health")
        one.send("1", signal.SIGCONT)

    got = await stream(zero, body(max_new=24), on_frame=on_frame)
    assert seen == {"stamps": True, "running": 1, "leader": 200, "other": 200}
    assert got.finish == {"type": "length", "length": 24}


async def test_killed_rank_of_the_other_node_ends_both_the_leader_by_sigkill(pair: Pair):
    """The other node ends by itself as well, and with exit code 0: its code tells nothing."""
    zero, one = pair
    at: list[float] = []

    async def on_frame(count: int) -> None:
        if count == 6:
            at.append(time.monotonic())
            one.send("1", signal.SIGKILL)

    got = await stream(zero, body(max_new=400), on_frame=on_frame)
    assert got.broken
    assert not got.done
    assert got.ended - at[0] < 10

    async def closed() -> bool:
        return await refuses(zero)

    await until(closed, 10, "the leader's port refuses")

    async def both() -> bool:
        return await ended(zero) and await ended(one)

    await until(both, 40, "every process of both nodes is gone")
    assert (zero.process.returncode, one.process.returncode) == (-signal.SIGKILL, 0)
    with pytest.raises(httpx.ConnectError):
        await answers(one, "/health")
