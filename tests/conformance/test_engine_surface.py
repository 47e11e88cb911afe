"""The calls beside /generate: health, load, identity, text, keys."""

import time

import pytest

from tests.conformance.engines import ADMIN_KEY, API_KEY, CONTEXT, NAME, REVISION, Engine
from tests.conformance.streams import body, call, loads, quiet, stream, until


async def test_ready_answers_at_once(engine: Engine):
    async with engine.client() as client:
        began = time.monotonic()
        answer = await client.get("/ready")
    assert (answer.status_code, answer.content) == (200, b"")
    assert time.monotonic() - began < 0.9


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
async def test_health_takes_a_second_and_generates(engine: Engine, path: str):
    async with engine.client() as client:
        began = time.monotonic()
        answer = await client.get(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert 0.95 < time.monotonic() - began < 10


async def test_health_and_ready_are_open_and_the_rest_needs_the_key(engine: Engine):
    async with engine.client(key=None) as client:
        assert (await client.get("/ready")).status_code == 200
        assert (await client.get("/health")).status_code == 200
        for path in ("/ping", "/v1/loads", "/model_info", "/server_info", "/v1/models"):
            answer = await client.get(path)
            assert answer.status_code == 401, path
            assert answer.content == b'{"error":"Unauthorized"}'
        for path in ("/generate", "/tokenize", "/abort_request"):
            answer = await client.post(path, json=body())
            assert answer.status_code == 401, path
    async with engine.client(key="wrong") as client:
        assert (await client.get("/v1/loads")).status_code == 401


async def test_each_key_opens_its_own_doors_only(engine: Engine):
    async with engine.client(API_KEY) as client:
        assert (await client.get("/ping")).status_code == 200
        assert (await client.post("/abort_request", json={"rid": "x"})).status_code == 401
        assert (await client.post("/flush_cache")).status_code == 401
    async with engine.client(ADMIN_KEY) as client:
        assert (await client.post("/abort_request", json={"rid": "x"})).status_code == 200
        assert (await client.post("/generate", json=body(max_new=1))).status_code == 401
        assert (await client.get("/v1/loads")).status_code == 401


async def test_flush_cache_when_idle(engine: Engine):
    await quiet(engine)
    async with engine.admin() as client:
        answer = await client.post("/flush_cache")
    assert answer.status_code == 200
    assert answer.text.startswith("Cache flushed.")


async def test_unknown_path_and_wrong_method(engine: Engine):
    async with engine.client() as client:
        missing = await client.get("/no_such_path")
        wrong = await client.get("/generate")
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    assert (wrong.status_code, wrong.json()) == (405, {"detail": "Method Not Allowed"})


async def test_bodies_need_the_json_content_type(engine: Engine):
    async with engine.client() as client:
        for path in ("/generate", "/tokenize"):
            answer = await client.post(path, content=b'{"prompt": "a", "text": "a"}')
            assert answer.status_code == 400, path


async def test_model_info(engine: Engine):
    async with engine.client() as client:
        got = (await client.get("/model_info")).json()
        old = (await client.get("/get_model_info")).json()
    assert got == old
    assert got["served_model_name"] == NAME
    assert got["weight_version"] == REVISION
    assert got["is_generation"] is True
    assert got["disaggregation_mode"] == "null"
    assert got["preferred_sampling_params"] is None


async def test_server_info(engine: Engine):
    async with engine.client() as client:
        got = (await client.get("/server_info")).json()
    assert got["weight_version"] == REVISION
    assert (got["tp_size"], got["random_seed"], got["port"]) == (2, 1, engine.port)
    assert got["incremental_streaming_output"] is False
    assert isinstance(got["internal_states"], list)
    assert got["version"].count(".") >= 2
    assert got["stream_interval"] == 1


async def test_models(engine: Engine):
    async with engine.client() as client:
        got = (await client.get("/v1/models")).json()
        one = await client.get(f"/v1/models/{NAME}")
        none = await client.get("/v1/models/other")
    (card,) = got["data"]
    assert list(card) == ["id", "object", "created", "owned_by", "root", "parent", "max_model_len"]
    assert (got["object"], card["id"], card["max_model_len"]) == ("list", NAME, CONTEXT)
    assert one.status_code == 200
    assert one.json()["id"] == NAME
    assert none.status_code == 404
    assert none.json()["error"]["code"] == "model_not_found"


async def test_text_to_ids_and_back(engine: Engine):
    text = "the worker says: é, 漢字, 🙂\n"
    async with engine.client() as client:
        got = (await client.post("/tokenize", json={"model": NAME, "prompt": text})).json()
        assert list(got) == ["tokens", "count", "max_model_len"]
        assert (got["count"], got["max_model_len"]) == (len(got["tokens"]), CONTEXT)
        back = (await client.post("/detokenize", json={"tokens": got["tokens"]})).json()
        assert back == {"text": text}
        many = (await client.post("/v1/tokenize", json={"prompt": ["ab", "c"]})).json()
        assert many["count"] == [len(t) for t in many["tokens"]]


async def test_chat_to_ids(engine: Engine):
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    async with engine.client() as client:
        got = (await client.post("/tokenize", json=chat)).json()["tokens"]
        back = await client.post("/detokenize", json={"tokens": got, "skip_special_tokens": False})
    assert back.json()["text"] == "<|user|>\nhi<|end|>\n<|assistant|>\n"


async def test_tokenize_needs_a_prompt_or_messages(engine: Engine):
    async with engine.client() as client:
        for content in ({}, {"prompt": 5}, {"prompt": "a", "messages": []}):
            answer = await client.post("/tokenize", json=content)
            assert answer.status_code == 400, content
            assert answer.json()["object"] == "error"


async def test_loads_move_when_idle(engine: Engine):
    await quiet(engine)
    seen: set[float] = set()

    async def moved() -> bool:
        load = await loads(engine)
        seen.add(load["timestamp"])
        assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)
        return len(seen) >= 3

    await until(moved, 8, "the load time moves")
    assert abs(max(seen) - time.time()) < 5


async def test_loads_move_and_count_while_decoding(engine: Engine):
    await quiet(engine)
    seen: list[dict] = []

    async def on_frame(count: int) -> None:
        if count % 5 == 0:
            seen.append(await loads(engine))

    await stream(engine, body(max_new=40), on_frame=on_frame)
    stamps = [s["timestamp"] for s in seen]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) >= 4
    assert any(s["num_running_reqs"] == 1 for s in seen)
    assert max(s["num_used_tokens"] for s in seen) > 5


async def test_loads_shape(engine: Engine):
    async with engine.client() as client:
        got = (await client.get("/v1/loads")).json()
    assert list(got) == ["timestamp", "version", "accelerator", "num_accelerators", "loads"]
    assert got["num_accelerators"] == 2
    assert len(got["loads"]) == 1
    assert got["loads"][0]["dp_rank"] == 0


async def test_calls_share_a_connection(engine: Engine):
    async with engine.client() as client:
        for _ in range(3):
            answer = await client.post("/generate", json=body(max_new=1, stream=False))
            assert answer.status_code == 200
            assert "close" not in answer.headers.get("connection", "")
    assert (await call(engine, body(max_new=1, stream=False))).status_code == 200
