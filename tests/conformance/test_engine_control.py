"""Pause and continue, and the name of the weights: what running streams, new calls and probes see of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.conformance.engines import REVISION, Engine
from tests.conformance.streams import body, call, fresh_rid, loads, quiet, stream, until
from tests.conformance.test_engine_abort import ABORTED, abort

PAUSED = {"message": "Generation paused successfully.", "status": "ok"}
CONTINUED = {"message": "Generation continued successfully.", "status": "ok"}
SILENCE = 1.5


async def order(engine: Engine, path: str, **content: Any) -> httpx.Response:
    async with engine.admin() as client:
        return await client.post(path, json=content)


async def status(engine: Engine, path: str) -> int:
    async with engine.client(timeout=3.0) as client:
        return (await client.get(path)).status_code


def at(n: int, act: Callable[[], Awaitable[None]]) -> Callable[[int], Awaitable[None]]:
    async def on_frame(count: int) -> None:
        if count == n:
            await act()

    return on_frame


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_pause_holds_streams_open_and_silent(engine: Engine, mode: str):
    """Nothing ends and nothing comes; the load time stands still as if the engine were frozen; only /ready tells."""
    await quiet(engine)
    plain = await stream(engine, body(max_new=40))
    task: list[asyncio.Task[None]] = []
    frames: list[int] = []
    seen: dict[str, Any] = {}

    async def watch() -> None:
        answer = await order(engine, "/pause_generation", mode=mode)
        seen["answer"] = answer.json()
        await asyncio.sleep(0.5)
        before = len(frames)
        stamp = (await loads(engine))["timestamp"]
        seen["ready"], seen["ping"] = await status(engine, "/ready"), await status(engine, "/ping")
        waiting = asyncio.create_task(stream(engine, body(max_new=2)))
        await asyncio.sleep(SILENCE)
        seen["new call"] = waiting.done()
        seen["frames"] = len(frames) - before
        seen["moved"] = (await loads(engine))["timestamp"] != stamp
        seen["continued"] = (await order(engine, "/continue_generation")).json()
        seen["late"] = await waiting

    async def on_frame(count: int) -> None:
        frames.append(count)
        if count == 5:
            task.append(asyncio.create_task(watch()))

    got = await stream(engine, body(max_new=40), on_frame=on_frame)
    await asyncio.gather(*task)
    assert seen["answer"] == PAUSED
    assert (seen["ready"], seen["ping"]) == (503, 200)
    assert (seen["new call"], seen["frames"], seen["moved"]) == (False, 0, False)
    assert seen["continued"] == CONTINUED
    assert seen["late"].status == 200
    assert seen["late"].finish == {"type": "length", "length": 2}
    assert got.ids == plain.ids
    assert got.finish == {"type": "length", "length": 40}
    assert max(b - a for a, b in zip(got.at, got.at[1:], strict=False)) > SILENCE
    assert got.last["meta_info"]["num_retractions"] == (1 if mode == "retract" else 0)
    assert await status(engine, "/ready") == 200


async def test_headers_of_a_stream_come_at_once_from_a_paused_engine(engine: Engine):
    await order(engine, "/pause_generation", mode="in_place")
    try:
        async with engine.client() as client, client.stream("POST", "/generate", json=body(max_new=2)) as response:
            assert response.status_code == 200
            await order(engine, "/continue_generation")
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
    finally:
        await order(engine, "/continue_generation")


async def test_pausing_by_default_aborts_every_stream(engine: Engine):
    await quiet(engine)
    answers: list[httpx.Response] = []

    async def pause() -> None:
        answers.append(await order(engine, "/pause_generation"))

    got = await stream(engine, body(max_new=1500), on_frame=at(4, pause))
    assert got.finish == ABORTED
    assert answers[0].json() == PAUSED
    stamp = (await loads(engine))["timestamp"]

    async def moves() -> bool:
        return bool((await loads(engine))["timestamp"] != stamp)

    await until(moves, 10, "an engine paused this way has nothing to hold and goes on turning")
    assert (await order(engine, "/continue_generation")).json() == CONTINUED


async def test_abort_of_a_stream_that_a_pause_holds_ends_it_after_the_pause(engine: Engine):
    await quiet(engine)
    rid = fresh_rid("pa")

    async def act() -> None:
        await order(engine, "/pause_generation", mode="in_place")
        await abort(engine, rid=rid)
        await asyncio.sleep(SILENCE)
        await order(engine, "/continue_generation")

    got = await stream(engine, body(rid, max_new=1500), on_frame=at(4, act))
    assert got.finish == ABORTED


async def test_orders_that_cannot_be_meant(engine: Engine):
    answer = await order(engine, "/pause_generation", mode="other")
    assert answer.status_code == 400
    assert "Input should be 'abort', 'retract' or 'in_place'" in answer.json()["message"]
    async with engine.admin() as client:
        assert (await client.post("/continue_generation")).status_code == 400
    assert (await order(engine, "/update_weight_version")).status_code == 400
    assert (await order(engine, "/update_weight_version", new_version=3)).status_code == 400
    assert await status(engine, "/ready") == 200


@pytest.mark.parametrize("path", ["/pause_generation", "/continue_generation", "/update_weight_version"])
async def test_orders_need_the_admin_key(engine: Engine, path: str):
    async with engine.client() as client:
        answer = await client.post(path, json={"mode": "in_place", "new_version": "x", "abort_all_requests": False})
    assert answer.status_code == 401
    assert await status(engine, "/ready") == 200


async def relabel(engine: Engine, version: str, **more: Any) -> None:
    answer = await order(engine, "/update_weight_version", new_version=version, **more)
    message = f"Weight version updated to {version}"
    assert (answer.status_code, answer.json()) == (200, {"success": True, "message": message, "new_version": version})


async def test_weight_version_may_change_within_a_stream_and_its_spans_tell(engine: Engine):
    plain = await stream(engine, body(max_new=30))
    try:
        got = await stream(
            engine,
            body(max_new=30),
            on_frame=at(6, lambda: relabel(engine, "rev-2", abort_all_requests=False)),
        )
        assert got.ids == plain.ids
        seen = [f["meta_info"]["weight_version"] for f in got.frames]
        assert (seen[0], seen[-1]) == (REVISION, "rev-2")
        one, two = got.last["meta_info"]["weight_versions"]
        assert one == {"version": REVISION, "start": 0, "end": two["start"]}
        assert two == {"version": "rev-2", "start": one["end"], "end": 30}
        assert 5 <= one["end"] <= 15
        async with engine.client() as client:
            assert (await client.get("/model_info")).json()["weight_version"] == "rev-2"
            assert (await client.get("/server_info")).json()["weight_version"] == REVISION  # as it was started
        later = (await call(engine, body(max_new=2, stream=False))).json()["meta_info"]
        assert later["weight_versions"] == [{"version": "rev-2", "start": 0, "end": 2}]
    finally:
        await relabel(engine, REVISION)


async def test_weight_version_by_default_aborts_every_stream(engine: Engine):
    got = await stream(engine, body(max_new=1500), on_frame=at(4, lambda: relabel(engine, REVISION)))
    assert got.finish == ABORTED
