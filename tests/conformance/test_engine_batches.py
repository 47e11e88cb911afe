"""Several prompts in one call, several answers to one prompt."""

from typing import Any

import httpx
import pytest

from tests.conformance.engines import MAX_QUEUED, MAX_RUNNING, Engine
from tests.conformance.streams import Stream, body, call, fresh_rid, quiet, stream

PAIR = [[70, 71, 72], [80, 81, 82]]


def batch(rid: Any = None, *, max_new: int = 4, stream: bool = False, ids: Any = PAIR, **more: Any) -> dict[str, Any]:
    made = body("-", max_new=max_new, stream=stream, ids=ids, **more)
    return {**made, "rid": rid}


async def alone(engine: Engine, ids: list[int], n: int) -> list[int]:
    return list((await call(engine, body(max_new=n, ids=ids, stream=False))).json()["output_ids"])


def by_index(got: Stream) -> dict[int, list[dict[str, Any]]]:
    out: dict[int, list[dict[str, Any]]] = {}
    for frame in got.frames:
        assert list(frame) == ["text", "output_ids", "meta_info", "index"]
        out.setdefault(frame["index"], []).append(frame)
    return out


async def test_whole_batch_is_a_list_in_the_order_of_the_prompts(engine: Engine):
    rid = fresh_rid("bat")
    answers = (await call(engine, batch(rid))).json()
    assert [a["meta_info"]["id"] for a in answers] == [f"{rid}_0", f"{rid}_1"]
    assert [a["output_ids"] for a in answers] == [await alone(engine, ids, 4) for ids in PAIR]
    assert all(list(a) == ["text", "output_ids", "meta_info"] for a in answers)


async def test_frames_of_a_batch_carry_their_index(engine: Engine):
    one, two = fresh_rid("ba"), fresh_rid("bb")
    got = await stream(engine, batch([one, two], stream=True, max_new=6))
    frames = by_index(got)
    assert set(frames) == {0, 1}
    for index, rid in enumerate((one, two)):
        assert all(f["meta_info"]["id"] == rid for f in frames[index])
        assert frames[index][-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
        assert frames[index][-1]["output_ids"] == await alone(engine, PAIR[index], 6)
    assert got.raw.count(b"data: [DONE]") == 1
    assert got.done


async def test_a_batch_of_one_is_a_batch(engine: Engine):
    rid = fresh_rid("one")
    (answer,) = (await call(engine, batch(rid, ids=PAIR[:1]))).json()
    assert answer["meta_info"]["id"] == f"{rid}_0"


async def test_several_answers_get_ids_of_their_own(engine: Engine):
    rid = fresh_rid("n")
    answers = (await call(engine, batch(rid, ids=PAIR[0], n=2))).json()
    assert [a["output_ids"] for a in answers] == [await alone(engine, PAIR[0], 4)] * 2
    ids = {a["meta_info"]["id"] for a in answers}
    assert len(ids) == 2
    assert not any(i.startswith(rid) for i in ids)
    assert all(a["meta_info"]["cached_tokens"] == len(PAIR[0]) - 1 for a in answers)
    got = by_index(await stream(engine, batch(rid, ids=PAIR[0], n=2, stream=True)))
    assert set(got) == {0, 1}


async def test_answers_of_a_prompt_stand_beside_each_other(engine: Engine):
    answers = (await call(engine, batch(None, n=2))).json()
    one, two = [await alone(engine, ids, 4) for ids in PAIR]
    assert [a["output_ids"] for a in answers] == [one, one, two, two]


async def test_each_prompt_has_its_own_parameters(engine: Engine):
    request = batch(fresh_rid("own"))
    params = request["sampling_params"]
    request |= {"sampling_params": [params, {**params, "max_new_tokens": 2}]}
    request |= {"return_logprob": True, "top_logprobs_num": [1, 0]}
    one, two = (await call(engine, request)).json()
    assert (len(one["output_ids"]), len(two["output_ids"])) == (4, 2)
    assert "output_top_logprobs" in one["meta_info"]
    assert "output_top_logprobs" not in two["meta_info"]


async def test_zero_answers_mean_one(engine: Engine):
    for n in (0, -1):
        answer = await call(engine, batch(fresh_rid("zero"), ids=PAIR[0], n=n))
        assert answer.json()["output_ids"] == await alone(engine, PAIR[0], 4)


async def test_no_prompts(engine: Engine):
    answer = await call(engine, {"text": [], "sampling_params": {"max_new_tokens": 2}})
    assert (answer.status_code, answer.json()) == (200, [])


@pytest.mark.parametrize(
    ("rid", "message"),
    [
        (["only"], "The specified rids length mismatch with the batch_size for batch processing."),
        (["same", "same"], "Duplicate request IDs detected within the request: ['same']"),
    ],
)
async def test_ids_that_cannot_be(engine: Engine, rid: list[str], message: str):
    answer = await call(engine, batch(rid))
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": message}})
    got = await stream(engine, batch(rid, stream=True))
    error = {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}
    assert got.frames == [{"error": error}]
    assert got.done


async def test_one_prompt_too_long_spoils_a_whole_batch_and_one_line_of_a_stream(engine: Engine):
    ids = [PAIR[0], [50] * 4090]
    answer = await call(engine, batch(fresh_rid("long"), ids=ids))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("Input length (4090 tokens) exceeds")
    frames = by_index(await stream(engine, batch(fresh_rid("long"), ids=ids, stream=True)))
    assert frames[0][-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    assert frames[1][-1]["meta_info"]["finish_reason"]["status_code"] == 400


async def test_a_burst_counts_against_the_queue_before_anything_of_it_runs(engine: Engine):
    """Places in the batch are free, and still no more than the queue holds is taken."""
    await quiet(engine)
    ids = [[90, i] for i in range(MAX_RUNNING + MAX_QUEUED + 2)]
    frames = by_index(await stream(engine, batch(fresh_rid("burst"), ids=ids, stream=True, max_new=2)))
    ends = [frames[i][-1]["meta_info"]["finish_reason"] for i in range(len(ids))]
    assert ends[:MAX_QUEUED] == [{"type": "length", "length": 2}] * MAX_QUEUED
    assert ends[MAX_QUEUED:] == [{"type": "abort", "status_code": 503, "message": "The request queue is full."}] * (
        len(ids) - MAX_QUEUED
    )
    await quiet(engine)
    whole = await call(engine, batch(fresh_rid("burst"), ids=ids, max_new=2))
    assert whole.status_code == 503
    assert whole.json()["message"] == "The request queue is full."


@pytest.mark.parametrize(
    "wrong",
    [
        {"rid": ["a"], "input_ids": [70, 71]},
        {"input_ids": [70, 71], "sampling_params": [{"max_new_tokens": 2}]},
        {"input_ids": PAIR, "sampling_params": [{"max_new_tokens": 2}]},
    ],
)
async def test_lists_that_do_not_fit_are_an_internal_error(engine: Engine, wrong: dict[str, Any]):
    async with engine.client() as client:
        answer = await client.post("/generate", json=wrong)
        assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    got = await stream(engine, {**wrong, "stream": True})
    assert got.status == 200
    assert got.broken
    assert got.raw == []


async def test_different_numbers_of_answers_are_refused(engine: Engine):
    request = {"input_ids": PAIR, "sampling_params": [{"n": 2}, {}]}
    answer: httpx.Response = await call(engine, request)
    message = "The parallel_sample_num should be the same for all samples in sample params."
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": message}})
