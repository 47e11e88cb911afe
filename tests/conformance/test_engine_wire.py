"""The connection itself: slow readers, idle connections, fields that a router adds."""

import asyncio
import json
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.conformance.engines import API_KEY, Engine
from tests.conformance.streams import body, call, stream

KEEP_ALIVE = 5.0


async def send(engine: Engine, request: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with one call on its way, nothing of the answer read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port, limit=1 << 16)
    raw = json.dumps(request).encode()
    writer.write(
        b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer "
        + API_KEY.encode()
        + b"\r\nContent-Length: %d\r\n\r\n" % len(raw)
        + raw
    )
    await writer.drain()
    return reader, writer


async def rest(reader: asyncio.StreamReader) -> bytes:
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        data = await reader.read(1 << 16)
        assert data, "closed before the end"
        got += data
    return got


async def test_slow_reader_misses_frames_and_no_tokens(engine: Engine):
    """Frames are large here (every place with its whole ranking), so that the sockets fill within few tokens."""
    n = 60
    request = {**body(max_new=n, ids=[90, 91]), "return_logprob": True, "top_logprobs_num": 500}
    reader, writer = await send(engine, request)
    await asyncio.sleep({"sim": 3.0, "sglang": 8.0}[engine.kind])
    raw = await asyncio.wait_for(rest(reader), 60)
    writer.close()
    frames = [f for f in raw.split(b"data: ") if f.startswith(b'{"text"')]
    assert len(frames) < n
    lengths = [int(f.rpartition(b'"output_token_logprobs_length":')[2].partition(b",")[0]) for f in frames]
    assert lengths == sorted(set(lengths))
    assert lengths[-1] == n
    assert any(b - a > 1 for a, b in pairwise(lengths))
    assert b"data: [DONE]" in raw


async def test_idle_connection_is_closed_after_five_seconds(engine: Engine):
    reader, writer = await send(engine, body(max_new=2))
    await asyncio.wait_for(rest(reader), 20)
    began = time.monotonic()
    assert await asyncio.wait_for(reader.read(1), 20) == b""
    assert KEEP_ALIVE - 1.5 < time.monotonic() - began < KEEP_ALIVE + 3
    writer.close()


async def test_fields_of_a_prefill_decode_router_are_taken_by_an_engine_that_is_neither(engine: Engine):
    fields = {"bootstrap_host": "2.2.2.2", "bootstrap_port": 8998, "bootstrap_room": 2**62 + 5}
    plain = await call(engine, body(max_new=4, stream=False))
    paired = await call(engine, {**body(max_new=4, stream=False), **fields})
    assert paired.json()["output_ids"] == plain.json()["output_ids"]


@pytest.mark.parametrize("field", ["bootstrap_room", "bootstrap_port"])
async def test_room_and_port_are_numbers(engine: Engine, field: str):
    answer = await call(engine, {**body(), field: "x"})
    assert answer.status_code == 400
    assert f"'loc': ('body', '{field}', 'list[nullable[int]]')" in answer.json()["message"]


async def test_other_fields_change_no_token(engine: Engine):
    plain = await call(engine, body(max_new=4, stream=False))
    for field in ({"priority": 3}, {"extra_key": "tenant"}, {"routed_dp_rank": 0}):
        answer = await call(engine, {**body(max_new=4, stream=False), **field})
        assert answer.json()["output_ids"] == plain.json()["output_ids"]


async def test_extra_key_is_a_cache_of_its_own(engine: Engine):
    request = body(max_new=1, ids=[41, 42, 43, 44], stream=False)
    await call(engine, request)
    again = await call(engine, {**request, "rid": "ek-1"})
    other = await call(engine, {**request, "rid": "ek-2", "extra_key": "tenant-b"})
    assert again.json()["meta_info"]["cached_tokens"] == 3
    assert other.json()["meta_info"]["cached_tokens"] == 0


async def test_ids_of_the_prompt_on_request(engine: Engine):
    got = await stream(engine, {**body(max_new=3, ids=[70, 71, 72]), "return_prompt_token_ids": True})
    assert all(list(f)[-1] == "prompt_token_ids" for f in got.frames)
    assert all(f["prompt_token_ids"] == [70, 71, 72] for f in got.frames)
