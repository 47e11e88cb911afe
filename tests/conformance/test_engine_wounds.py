"""What clients and a supervisor see when a process of the engine is frozen, killed or asked to leave.

The cases that end an engine come last, so that a whole run starts the real one three times and no more.
"""

import asyncio
import contextlib
import signal
import time

import httpx
import pytest

from tests.conformance.engines import Engine
from tests.conformance.streams import body, call, loads, quiet, stream, until

STILL_SECONDS = 2.0


async def answers(engine: Engine, path: str, seconds: float = 2.0) -> int | None:
    """Status of a GET, None when it did not answer in time; raises ConnectError when the port refuses."""
    async with engine.client(timeout=seconds) as client:
        try:
            return (await client.get(path)).status_code
        except (httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.ReadError):
            return None


async def refuses(engine: Engine) -> bool:
    try:
        await answers(engine, "/ready")
    except (httpx.ConnectError, httpx.ConnectTimeout):
        return True
    return False


async def ended(engine: Engine) -> bool:
    return engine.process.poll() is not None and not engine.survivors()


@pytest.mark.parametrize("rank", ["0", "1"])
async def test_frozen_rank_stops_streams_and_the_load_time_while_http_answers(engine: Engine, rank: str):
    await quiet(engine)
    seen: dict[str, object] = {}

    async def on_frame(count: int) -> None:
        if count != 6:
            return
        engine.send(rank, signal.SIGSTOP)
        await asyncio.sleep(0.4)
        one = await loads(engine)
        await asyncio.sleep(0.7)
        two = await loads(engine)
        seen["stamps"] = (one["timestamp"], two["timestamp"])
        seen["running"] = two["num_running_reqs"]
        for path in ("/ready", "/model_info", "/v1/models"):
            seen[path] = await answers(engine, path)
        seen["/server_info"] = await answers(engine, "/server_info", 0.7)
        seen["/health"] = await answers(engine, "/health", 1.3)
        engine.send(rank, signal.SIGCONT)

    got = await stream(engine, body(max_new=24), on_frame=on_frame)
    one, two = seen["stamps"]  # type: ignore[misc]
    assert one == two
    assert seen["running"] == 1
    assert [seen[p] for p in ("/ready", "/model_info", "/v1/models")] == [200, 200, 200]
    assert seen["/server_info"] is None
    assert seen["/health"] is None
    assert max(b - a for a, b in zip(got.at, got.at[1:], strict=False)) > STILL_SECONDS
    assert got.finish == {"type": "length", "length": 24}


async def test_health_needs_twenty_seconds_to_fail_and_ready_believes_it_until_the_next_one(engine: Engine):
    await quiet(engine)
    engine.send("1", signal.SIGSTOP)
    began = time.monotonic()
    assert await answers(engine, "/health", 40.0) == 503
    assert 18 < time.monotonic() - began < 30
    assert [await answers(engine, path) for path in ("/ready", "/ping")] == [503, 503]
    engine.send("1", signal.SIGCONT)
    await quiet(engine)
    assert await answers(engine, "/ready") == 503
    assert await answers(engine, "/health", 10.0) == 200
    assert [await answers(engine, path) for path in ("/ready", "/ping")] == [200, 200]


@pytest.mark.parametrize("rank", ["0", "1"])
async def test_frozen_rank_stops_the_load_time_of_an_idle_engine(engine: Engine, rank: str):
    await quiet(engine)
    engine.send(rank, signal.SIGSTOP)
    try:
        await asyncio.sleep(1.7)  # a turn of the idle engine is a second; one more may be under way
        one = (await loads(engine))["timestamp"]
        await asyncio.sleep(1.2)
        assert (await loads(engine))["timestamp"] == one
    finally:
        engine.send(rank, signal.SIGCONT)

    async def moves() -> bool:
        return bool((await loads(engine))["timestamp"] != one)

    await until(moves, 10, "the load time moves again")


async def test_frozen_detokenizer_stops_streams_while_the_load_time_moves(engine: Engine):
    await quiet(engine)
    stamps: list[float] = []
    health: list[int | None] = []

    async def on_frame(count: int) -> None:
        if count != 6:
            return
        engine.send("detokenizer", signal.SIGSTOP)
        await asyncio.sleep(0.3)
        for _ in range(4):
            stamps.append((await loads(engine))["timestamp"])
            await asyncio.sleep(0.6)
        health.append(await answers(engine, "/health", 10.0))
        engine.send("detokenizer", signal.SIGCONT)

    tokens = {"sim": 600, "sglang": 150}[engine.kind]  # busy all the while, at each one's pace
    got = await stream(engine, body(max_new=tokens), on_frame=on_frame)
    assert len(set(stamps)) >= 3
    assert health == [200], "a busy scheduler answers for itself"
    assert max(b - a for a, b in zip(got.at, got.at[1:], strict=False)) > STILL_SECONDS
    assert len(got.ids) == tokens


async def test_sigterm_drains_still_accepts_and_exits_with_zero(engine: Engine):
    late: list[httpx.Response] = []
    flags: list[int | None] = []

    async def on_frame(count: int) -> None:
        if count != 4:
            return
        engine.send("main", signal.SIGTERM)

        async def leaving() -> bool:
            return await answers(engine, "/ready") == 503

        await until(leaving, 5, "/ready says 503")
        flags.extend([await answers(engine, "/health", 5.0), await answers(engine, "/ping", 5.0)])
        late.append(await call(engine, body(max_new=3, stream=False)))

    tokens = {"sim": 600, "sglang": 60}[engine.kind]  # long enough to see the drain, at each one's pace
    got = await stream(engine, body(max_new=tokens), on_frame=on_frame, seconds=100)
    assert got.finish == {"type": "length", "length": tokens}
    assert got.done
    assert flags == [503, 503]
    assert late[0].status_code == 200
    assert len(late[0].json()["output_ids"]) == 3

    async def gone() -> bool:
        return await ended(engine)

    await until(gone, 40, "the engine has left")
    assert engine.process.returncode == 0


@pytest.mark.parametrize("victim", ["1"])
async def test_killed_rank_ends_every_stream_without_a_word_and_the_whole_tree(engine: Engine, victim: str):
    at: list[float] = []

    async def on_frame(count: int) -> None:
        if count == 6:
            at.append(time.monotonic())
            engine.send(victim, signal.SIGKILL)

    got, beside = await asyncio.gather(
        stream(engine, body(max_new=400), on_frame=on_frame), stream(engine, body(max_new=400))
    )
    for one in (got, beside):
        assert one.broken
        assert not one.done
        assert one.finish is None
        assert one.ended - at[0] < 3.5

    async def closed() -> bool:
        return await refuses(engine)

    await until(closed, 3, "the port refuses")

    async def gone() -> bool:
        return await ended(engine)

    await until(gone, 15, "every process is gone")
    assert engine.process.returncode == -signal.SIGKILL


async def test_prompt_without_tokens_kills_the_engine_which_freezes_first_by_default(diagnosing: Engine):
    """A real poison request of this version. With the diagnostics at default nothing answers for five seconds."""
    engine = diagnosing
    at: list[float] = []
    silent: list[int | None] = []

    async def poison() -> None:
        at.append(time.monotonic())
        with contextlib.suppress(httpx.HTTPError):
            await call(engine, body(max_new=1, text="", stream=False))

    async def watch() -> None:
        await asyncio.sleep(2.5)
        silent.append(await answers(engine, "/ready", 1.0))

    tasks: list[asyncio.Task[None]] = []

    async def on_frame(count: int) -> None:
        if count == 6:
            tasks.extend([asyncio.create_task(poison()), asyncio.create_task(watch())])

    got = await stream(engine, body(max_new=400), on_frame=on_frame)
    await asyncio.gather(*tasks)
    assert got.broken
    assert got.finish is None
    assert 4.5 < got.ended - at[0] < 20
    assert silent == [None]

    async def gone() -> bool:
        return await ended(engine)

    await until(gone, 20, "every process is gone")
    assert engine.process.returncode == -signal.SIGKILL
