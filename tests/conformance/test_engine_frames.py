"""Shape of what an engine says on /generate: bytes, key order, and what grows from frame to frame."""

import json

from tests.conformance.engines import REVISION, Engine
from tests.conformance.streams import body, call, fresh_rid, stream

HEAD = ["id", "finish_reason", "prompt_tokens", "weight_version", "num_retractions", "reasoning_tokens"]
HEAD += ["completion_tokens", "cached_tokens"]
TAIL = ["cached_tokens_details", "dp_rank"]
MIDDLE = HEAD + TAIL
FIRST = [*MIDDLE, "response_sent_to_client_ts"]
LAST = [*HEAD, "weight_versions", *TAIL, "e2e_latency"]
WHOLE = [*LAST, "response_sent_to_client_ts"]


async def test_stream_is_served_as_chunked_event_stream(engine: Engine):
    got = await stream(engine, body())
    assert got.status == 200
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert got.headers["transfer-encoding"] == "chunked"
    assert got.headers["server"] == "uvicorn"


async def test_every_frame_is_one_data_line_of_compact_json_and_the_last_is_done(engine: Engine):
    got = await stream(engine, body())
    assert got.done
    for frame in got.raw[:-1]:
        assert frame.startswith(b'data: {"text":"')
        assert b"\n" not in frame
        parsed = json.loads(frame[6:])
        again = json.dumps(parsed, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(again) == len(frame) - 6, (again, frame)


async def test_keys_and_their_order(engine: Engine):
    got = await stream(engine, body(max_new=6))
    frames = got.frames
    assert all(list(f) == ["text", "output_ids", "meta_info"] for f in frames)
    metas = [list(f["meta_info"]) for f in frames]
    assert metas[0] == FIRST
    assert metas[1:-1] == [MIDDLE] * (len(frames) - 2)
    assert metas[-1] == LAST


async def test_values_of_the_meta_info(engine: Engine):
    rid = fresh_rid("meta")
    got = await stream(engine, body(rid, max_new=5, ids=[40, 41, 42]))
    last = got.last["meta_info"]
    assert last["id"] == rid
    assert last["finish_reason"] == {"type": "length", "length": 5}
    assert list(last["finish_reason"]) == ["type", "length"]
    assert last["prompt_tokens"] == 3
    assert last["completion_tokens"] == 5
    assert last["weight_version"] == REVISION
    assert last["weight_versions"] == [{"version": REVISION, "start": 0, "end": 5}]
    assert (last["num_retractions"], last["reasoning_tokens"], last["dp_rank"]) == (0, 0, None)
    assert 0 < last["e2e_latency"] < 60
    assert isinstance(got.frames[0]["meta_info"]["response_sent_to_client_ts"], float)
    assert all(f["meta_info"]["finish_reason"] is None for f in got.frames[:-1])


async def test_ids_and_text_are_cumulative(engine: Engine):
    got = await stream(engine, body(max_new=24))
    before: dict = {"output_ids": [], "text": ""}
    for frame in got.frames:
        ids, text = frame["output_ids"], frame["text"]
        assert len(ids) > len(before["output_ids"])
        assert ids[: len(before["output_ids"])] == before["output_ids"]
        assert text.startswith(before["text"]) or before["text"].rstrip("\ufffd") in text
        assert frame["meta_info"]["completion_tokens"] == len(ids)
        before = frame
    assert len(got.ids) == 24


async def test_one_frame_a_token_when_the_reader_keeps_up(engine: Engine):
    got = await stream(engine, body(max_new=12))
    assert [len(f["output_ids"]) for f in got.frames] == list(range(1, 13))


async def test_stream_interval_of_the_request(engine: Engine):
    got = await stream(engine, body(max_new=12, stream_interval=5))
    lengths = [len(f["output_ids"]) for f in got.frames]
    assert lengths[0] == 1
    assert lengths[-1] == 12
    assert len(lengths) < 6


async def test_whole_answer(engine: Engine):
    rid = fresh_rid("whole")
    answer = await call(engine, body(rid, max_new=5, stream=False))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    got = answer.json()
    assert list(got) == ["text", "output_ids", "meta_info"]
    assert list(got["meta_info"]) == WHOLE
    assert got["meta_info"]["id"] == rid
    assert len(got["output_ids"]) == 5


async def test_whole_answer_says_what_the_stream_says(engine: Engine):
    whole = (await call(engine, body(max_new=16, stream=False))).json()
    streamed = await stream(engine, body(max_new=16))
    assert whole["output_ids"] == streamed.ids
    assert whole["text"] == streamed.last["text"]


async def test_a_missing_rid_is_made_up(engine: Engine):
    request = body(max_new=1, stream=False)
    del request["rid"]
    got = (await call(engine, request)).json()
    assert len(got["meta_info"]["id"]) == 32


async def test_repeated_prompt_is_cached_up_to_its_last_token(engine: Engine):
    prompt = [60, 61, 62, 63, 64, 65, 66, 67]
    await call(engine, body(max_new=2, stream=False, ids=prompt))
    got = (await call(engine, body(max_new=2, stream=False, ids=prompt))).json()["meta_info"]
    assert got["cached_tokens"] == len(prompt) - 1
    assert got["cached_tokens_details"] == {"device": len(prompt) - 1, "host": 0}
