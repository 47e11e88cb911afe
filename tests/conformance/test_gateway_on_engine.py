"""A gateway in front of an engine gives what the engine itself would give: ids, text, usage, log probabilities."""

from __future__ import annotations

import asyncio
import hashlib
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from infctl.adapters.etcd import EtcdStore
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, Generation, PoolSpec, Secret
from tests.conformance.engines import API_KEY, CONTEXT, MAX_QUEUED, MAX_RUNNING, NAME, REVISION, Engine
from tests.support.etcd import BINARIES, LiveEtcd

MESSAGES: list[Any] = [
    {"role": "system", "content": "Say what happens next."},
    {"role": "user", "content": "The worker waits \N{GRINNING FACE} 漢字"},
]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Look around", "parameters": {"type": "object", "properties": {}}},
    }
]


@asynccontextmanager
async def gateway(engine: Engine, folder: Path) -> AsyncIterator[str]:
    """The url of a gateway that routes to `engine`; its records are written as a daemon would write them."""
    etcd = await LiveEtcd(BINARIES[0], folder / "etcd").start()
    store = EtcdStore([etcd.endpoint])
    keys = Keys()
    process: subprocess.Popen[bytes] | None = None
    try:
        async with engine.client() as client:
            info = (await client.get("/model_info")).json()
        tokenizer = Path(info["tokenizer_path"]) / "tokenizer.json"
        record = EndpointRecord(
            group="g",
            pool="p",
            node="n",
            generation=1,
            launch="g-22222222",
            url=engine.url,
            model=NAME,
            revision=REVISION,
            tokenizer=str(tokenizer),
            tokenizer_digest=hashlib.sha256(tokenizer.read_bytes()).hexdigest(),
            context_length=CONTEXT,
            vocab_size=512 if engine.kind == "sglang" else 4096,
            max_running=MAX_RUNNING,
            max_queued=MAX_QUEUED,
        )
        await store.put(keys.pool_spec("p"), encode(PoolSpec(name="p", model=NAME)))
        await store.put(keys.group_generation("g"), encode(Generation(generation=1, launch=record.launch)))
        await store.put(keys.secret("g"), encode(Secret(launch=record.launch, api_key=API_KEY)))
        await store.put(keys.endpoint("g"), encode(record))
        log = folder / "gateway.log"
        command = [str(Path(sys.executable).parent / "infctl-gateway"), "--endpoints", etcd.endpoint, "--name", "gw"]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--state-dir", str(folder / "state")]
        process = _spawn(command, log)
        yield await _ready(log, process)
    finally:
        if process is not None:
            process.terminate()
            process.wait(20)
        await store.close()
        await etcd.close()


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)


async def _ready(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r'"url": "([^"]+)"', log.read_text())
        if found:
            async with httpx.AsyncClient() as client:
                if (await client.get(found[1] + "/ready")).status_code == 200:
                    return found[1]
        await asyncio.sleep(0.05)
    raise AssertionError("the gateway is not ready:\n" + log.read_text()[-3000:])


def client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=API_KEY, max_retries=0, timeout=60)


async def fresh(engine: Engine) -> None:
    """A warm prefix cache may change a near-tie of the real engine: each run begins with an empty one."""
    async with engine.admin() as admin:
        assert (await admin.post("/flush_cache")).status_code == 200


async def native(engine: Engine, ids: list[int], new: int, **more: Any) -> dict[str, Any]:
    await fresh(engine)
    asked = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}, **more}
    async with engine.client() as direct:
        answer = await direct.post("/generate", json=asked)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("extra", [{}, {"tools": TOOLS}], ids=["plain", "tools"])
async def test_a_chat_is_rendered_and_answered_as_by_the_engine(engine: Engine, tmp_path: Path, extra: dict[str, Any]):
    async with engine.client() as direct:
        ids = (await direct.post("/tokenize", json={"messages": MESSAGES, **extra})).json()["tokens"]
    expected = await native(engine, ids, 24)
    async with gateway(engine, tmp_path) as url, client(url) as ai:
        await fresh(engine)
        asked = {"model": NAME, "messages": MESSAGES, "temperature": 0, "max_tokens": 24, **extra}
        whole = await ai.chat.completions.create(**asked, extra_body={"return_token_ids": True, "ignore_eos": True})
        assert whole.choices[0].token_ids == expected["output_ids"]  # type: ignore[attr-defined]
        assert whole.choices[0].message.content == expected["text"]
        assert whole.usage and whole.usage.prompt_tokens == len(ids)
        await fresh(engine)
        streamed = ""
        async for chunk in await ai.chat.completions.create(**asked, stream=True, extra_body={"ignore_eos": True}):
            streamed += "".join(c.delta.content or "" for c in chunk.choices)
        assert streamed == expected["text"]
    if engine.kind == "sglang":
        await fresh(engine)
        async with client(engine.url) as ai:
            own = await ai.chat.completions.create(**asked, extra_body={"ignore_eos": True})
        assert own.choices[0].message.content == expected["text"]
        assert own.usage and own.usage.prompt_tokens == len(ids)


async def test_log_probabilities_are_the_engines(engine: Engine, tmp_path: Path):
    async with engine.client() as direct:
        ids = (await direct.post("/tokenize", json={"prompt": "the worker sends"})).json()["tokens"]
    told = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    expected = (await native(engine, ids, 8, **told))["meta_info"]
    async with gateway(engine, tmp_path) as url, client(url) as ai:
        await fresh(engine)
        asked = {"model": NAME, "prompt": ids, "temperature": 0, "max_tokens": 8, "echo": True, "logprobs": 2}
        whole = await ai.completions.create(**asked, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
    logprobs = whole.choices[0].logprobs
    assert logprobs and len(logprobs.tokens) == len(ids) + 8
    values = [e[0] for e in expected["input_token_logprobs"] + expected["output_token_logprobs"]]
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[1:] == pytest.approx(values[1:], abs=0.05)


async def test_several_answers_and_a_whole_batch_at_once(engine: Engine, tmp_path: Path):
    prompts = ["the worker sends", "one two three"]
    async with gateway(engine, tmp_path) as url, client(url) as ai:
        await fresh(engine)
        asked = {"model": NAME, "prompt": prompts, "n": 2, "temperature": 0, "max_tokens": 6}
        whole = await ai.completions.create(**asked, extra_body={"ignore_eos": True, "return_token_ids": True})
    assert [c.index for c in whole.choices] == [0, 1, 2, 3] and whole.usage
    assert all(len(c.token_ids) == 6 for c in whole.choices)
    assert whole.usage.completion_tokens == 24


async def test_a_chat_that_the_template_refuses_is_the_clients_error(engine: Engine, tmp_path: Path):
    """The engine's own check: a tool call whose arguments are no object."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{"}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    async with engine.client() as direct:
        own = await direct.post("/tokenize", json={"messages": messages})
    async with gateway(engine, tmp_path) as url, httpx.AsyncClient() as http:
        asked = {"model": NAME, "messages": messages, "max_tokens": 2}
        answer = await http.post(f"{url}/v1/chat/completions", json=asked, timeout=30)
    if own.status_code == 200:
        assert answer.status_code == 200
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (400, "invalid_request", "template_refused")
