"""Aborts, live request ids and the queue."""

import asyncio
import contextlib

import httpx

from tests.conformance.engines import MAX_QUEUED, MAX_RUNNING, Engine
from tests.conformance.streams import Stream, body, call, fresh_rid, loads, quiet, stream, until

ABORTED = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
CUT = ["id", "finish_reason", "weight_version", "e2e_latency", "weight_versions", "completion_tokens"]
CUT += ["response_sent_to_client_ts"]


async def abort(engine: Engine, **what: object) -> None:
    async with engine.admin() as client:
        answer = await client.post("/abort_request", json=what)
    assert (answer.status_code, answer.content) == (200, b"")


def after(n: int, engine: Engine, rid: str):
    async def on_frame(count: int) -> None:
        if count == n:
            await abort(engine, rid=rid)

    return on_frame


async def test_abort_of_a_running_request_ends_its_stream_at_once(engine: Engine):
    rid = fresh_rid("ab")
    got = await stream(engine, body(rid, max_new=1500), on_frame=after(4, engine, rid))
    assert got.finish == ABORTED
    assert list(got.finish) == ["type", "message", "status_code", "err_type"]
    assert got.done
    assert 4 <= len(got.ids) < 300
    assert got.last["meta_info"]["completion_tokens"] == len(got.ids)
    assert "prompt_tokens" in got.last["meta_info"]


async def test_abort_of_a_whole_answer_gives_what_there_is(engine: Engine):
    rid = fresh_rid("abw")
    task = asyncio.create_task(call(engine, body(rid, max_new=1500, stream=False)))

    async def running() -> bool:
        return (await loads(engine))["num_running_reqs"] > 0

    await until(running, 10, "the request runs")
    await abort(engine, rid=rid)
    answer = await task
    assert answer.status_code == 200
    assert answer.json()["meta_info"]["finish_reason"] == ABORTED


async def test_abort_of_an_unknown_or_empty_rid_is_ignored(engine: Engine):
    rid = fresh_rid("un")

    async def on_frame(count: int) -> None:
        if count == 2:
            await abort(engine, rid=rid[:-1])  # a prefix of a live one, not live itself
            await abort(engine, rid="")
            await abort(engine, rid="never-seen")

    got = await stream(engine, body(rid, max_new=8), on_frame=on_frame)
    assert got.finish == {"type": "length", "length": 8}


async def test_abort_of_a_live_rid_takes_along_every_rid_it_is_a_prefix_of(engine: Engine):
    short = fresh_rid("pre")
    one, two, other = await asyncio.gather(
        stream(engine, body(short, max_new=1500), on_frame=after(4, engine, short)),
        stream(engine, body(short + "-1", max_new=1500)),
        stream(engine, body(fresh_rid("zz"), max_new=12)),
    )
    assert one.finish == ABORTED
    assert two.finish == ABORTED
    assert other.finish["type"] == "length"


async def test_abort_all(engine: Engine):
    async def on_frame(count: int) -> None:
        if count == 3:
            await abort(engine, abort_all=True)

    one, two = await asyncio.gather(
        stream(engine, body(max_new=1500), on_frame=on_frame), stream(engine, body(max_new=1500))
    )
    assert one.finish == two.finish == ABORTED


async def test_client_that_leaves_is_aborted(engine: Engine):
    await quiet(engine)

    class Enough(Exception):
        pass

    async def leave(count: int) -> None:
        if count == 3:
            raise Enough

    with contextlib.suppress(Enough):
        await stream(engine, body(max_new=1500), on_frame=leave)
    await quiet(engine)


async def test_live_rid_is_refused(engine: Engine):
    rid = fresh_rid("dup")
    message = f"Duplicate request ID detected: {rid}"
    seen: list[httpx.Response] = []

    async def on_frame(count: int) -> None:
        if count == 2:
            seen.append(await call(engine, body(rid, max_new=2, stream=False)))
            await abort(engine, rid=rid)

    got = await stream(engine, body(rid, max_new=1500), on_frame=on_frame)
    assert seen[0].status_code == 400
    assert seen[0].json() == {"error": {"message": message}}
    assert got.finish == ABORTED
    again = await call(engine, body(rid, max_new=2, stream=False))
    assert again.json()["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


async def test_refused_stream_aborts_the_live_one_of_that_rid_two_seconds_later(engine: Engine):
    """The end of any stream aborts its rid two seconds later, whoever has it then: never use a rid twice."""
    rid = fresh_rid("dup")
    expected = {"message": f"Duplicate request ID detected: {rid}", "type": "invalid_request_error"}
    seen: list[Stream] = []

    async def on_frame(count: int) -> None:
        if count == 2:
            seen.append(await stream(engine, body(rid, max_new=2)))

    got = await stream(engine, body(rid, max_new=1500), on_frame=on_frame)
    (second,) = seen
    assert second.status == 200
    assert second.frames == [{"error": {**expected, "code": 400, "retryable": False}}]
    assert second.done
    assert got.finish == ABORTED
    assert 1.5 < got.ended - second.ended < 6


async def test_queue_full_and_abort_while_waiting(engine: Engine):
    await quiet(engine)
    running = [asyncio.create_task(stream(engine, body(max_new=1500))) for _ in range(MAX_RUNNING)]

    async def busy() -> bool:
        return (await loads(engine))["num_running_reqs"] == MAX_RUNNING

    await until(busy, 20, "the batch is full")
    names = [fresh_rid("wait") for _ in range(MAX_QUEUED)]
    waiting = [asyncio.create_task(stream(engine, body(rid, max_new=2))) for rid in names]

    async def queued() -> bool:
        return (await loads(engine))["num_waiting_reqs"] == MAX_QUEUED

    await until(queued, 20, "the queue is full")
    full = await stream(engine, body(max_new=2))
    whole = await call(engine, body(max_new=2, stream=False))
    await abort(engine, rid=names[0])
    cut = await waiting[0]
    await abort(engine, abort_all=True)
    await asyncio.gather(*running, *waiting)

    assert full.status == 200
    assert full.finish == {"type": "abort", "status_code": 503, "message": "The request queue is full."}
    assert list(full.last["meta_info"]) == CUT
    assert full.last["output_ids"] == []
    assert full.done
    assert whole.status_code == 503
    message = "The request queue is full."
    assert whole.json() == {"object": "error", "message": message, "type": "503", "param": None, "code": 503}
    assert cut.finish == {"type": "abort", "message": "Abort in waiting queue"}
    assert list(cut.last["meta_info"]) == CUT
    assert cut.done
