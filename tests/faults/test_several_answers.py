"""Several answers, log probabilities and echoes: each answer of a request lives on by itself when its worker dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.support.chorus import Chorus, listen
from tests.support.cluster import Cluster, running
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

QUICK = {"restart": {"firstDelaySeconds": 0.3, "maxDelaySeconds": 0.3, "attempts": 1000}}
PROMPTS = ["The worker", "A gateway counts", "One lease"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    async with running(folder, sim=("--sim-decode-seconds", "0.02"), **QUICK) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared: Cluster) -> AsyncIterator[Cluster]:
    await shared.ready("a", "b")
    yield shared


async def post(cluster: Cluster, path: str, data: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
    limit = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=limit) as http, http.post(cluster.url + path, json=data) as answer:
        return answer.status, await answer.json(), dict(answer.headers)


async def alone(cluster: Cluster, prompt: str, tokens: int, **more: Any) -> Seen:
    seen = await watch(cluster.url, body(prompt, tokens, **more), group="b")
    assert seen.error is None and seen.done
    return seen


async def test_every_answer_of_a_request_survives_a_killed_rank(cluster: Cluster) -> None:
    expected = [await alone(cluster, prompt, 100) for prompt in PROMPTS]
    heard = Chorus()
    task = asyncio.create_task(listen(cluster.url, body(PROMPTS, 100, n=2, logprobs=1), 6, heard, group="a"))  # type: ignore[arg-type]
    await until(lambda: len(heard.ids) == 6 and min(map(len, heard.ids.values())) >= 30, 20, "30 tokens each")
    (await cluster.rank("a", 1)).kill()
    await task
    assert heard.error is None and heard.broken == [] and heard.done
    assert len(heard.response_ids) == 1 and heard.headers["x-infctl-recovery"].startswith("continuable")
    for number in range(6):
        whole = expected[number // 2]
        assert heard.ids[number] == whole.ids
        assert heard.text[number] == whole.text and heard.finish[number] == "length"
        assert len(heard.told(number, "token_logprobs")) == 100
    prompts = sum(whole.usage["prompt_tokens"] for whole in expected)  # type: ignore[index]
    assert heard.usage == {"prompt_tokens": prompts, "completion_tokens": 600, "total_tokens": prompts + 600}
    parent = heard.headers["x-infctl-request-id"]
    records = [await cluster.stream(f"{parent}{n:02x}") for n in range(6)]
    assert all(r is not None and r.migrations == 1 and r.group == "b" for r in records)


async def test_log_probabilities_go_on_over_a_killed_rank(cluster: Cluster) -> None:
    whole = await listen(cluster.url, body(PROMPTS[0], 80, logprobs=2), 1, group="b")
    heard = Chorus()
    task = asyncio.create_task(listen(cluster.url, body(PROMPTS[0], 80, logprobs=2), 1, heard, group="a"))
    await until(lambda: len(heard.ids[0]) >= 30, 20, "30 tokens")
    (await cluster.rank("a", 0)).kill()
    await task
    assert heard.error is None and heard.broken == [] and heard.ids[0] == whole.ids[0]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert heard.told(0, name) == whole.told(0, name), name
    offsets = heard.told(0, "text_offset")
    assert offsets == sorted(offsets) and offsets[0] == 0
    assert all(max(top.values()) <= 0 for top in heard.told(0, "top_logprobs"))


async def test_a_native_stream_keeps_the_log_probabilities_of_its_dead_worker(cluster: Cluster) -> None:
    asked = {
        "text": PROMPTS[0],
        "sampling_params": {"max_new_tokens": 60, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
    }
    _, whole, _ = await post(cluster, "/generate", asked)
    before = await cluster.endpoint("a")
    task = asyncio.create_task(_native(cluster, asked))
    await asyncio.sleep(0.6)
    (await cluster.rank("a", 1)).kill()
    last = await task
    assert before and last["output_ids"] == whole["output_ids"]
    for name in ("output_token_logprobs", "output_top_logprobs", "input_token_logprobs", "input_top_logprobs"):
        assert last["meta_info"][name] == whole["meta_info"][name], name
    assert len(last["meta_info"]["output_token_logprobs"]) == 60


async def _native(cluster: Cluster, asked: dict[str, Any]) -> Any:
    import json

    last: Any = None
    async with (
        aiohttp.ClientSession(read_bufsize=2**20) as http,
        http.post(f"{cluster.url}/generate", json={**asked, "stream": True}, headers={"x-infctl-group": "a"}) as answer,
    ):
        async for raw in answer.content:
            line = raw.decode().rstrip("\n")
            if line.startswith("data: {"):
                last = json.loads(line[6:])
    return last


async def test_a_native_batch_answers_as_the_engine_would(cluster: Cluster) -> None:
    asked = {"text": PROMPTS[:2], "sampling_params": {"max_new_tokens": 6, "temperature": 0, "n": 2}}
    status, answers, headers = await post(cluster, "/generate", asked)
    assert status == 200 and [a["index"] for a in answers] == [0, 1, 2, 3]
    for number, answer in enumerate(answers):
        one = {"text": PROMPTS[number // 2], "sampling_params": {"max_new_tokens": 6, "temperature": 0}}
        _, single, _ = await post(cluster, "/generate", one)
        assert answer["output_ids"] == single["output_ids"] and answer["text"] == single["text"]
        assert answer["meta_info"]["id"] == f"{headers['x-infctl-request-id']}{number:02x}"


async def test_an_echoed_prompt_comes_with_its_own_log_probabilities(cluster: Cluster) -> None:
    asked = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 1}
    _, whole, _ = await post(cluster, "/v1/completions", asked)
    (choice,) = whole["choices"]
    told = choice["logprobs"]
    assert choice["text"].startswith(PROMPTS[0])
    assert len(told["tokens"]) == whole["usage"]["prompt_tokens"] + 3
    assert told["token_logprobs"][0] is None and all(v <= 0 for v in told["token_logprobs"][1:])
    for token, at in zip(told["tokens"], told["text_offset"], strict=True):
        assert "\ufffd" in token or choice["text"][at : at + len(token)] == token
    heard = await listen(cluster.url, {**asked, "stream": True, "return_token_ids": True}, 1)
    assert heard.text[0] == choice["text"] and heard.broken == []
    assert heard.told(0, "token_logprobs") == told["token_logprobs"]
    _, scored, _ = await post(cluster, "/v1/completions", {**asked, "max_tokens": 0})
    (only,) = scored["choices"]
    assert only["text"] == PROMPTS[0] and only["finish_reason"] == "length"
    assert only["logprobs"]["token_logprobs"] == told["token_logprobs"][: len(told["tokens"]) - 3]
    assert scored["usage"]["completion_tokens"] == 0


async def test_the_best_answers_are_those_with_the_highest_mean_log_probability(cluster: Cluster) -> None:
    asked = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 8, "temperature": 1, "best_of": 5, "n": 2}
    _, whole, _ = await post(cluster, "/v1/completions", {**asked, "logprobs": 0, "ignore_eos": True})
    assert [c["index"] for c in whole["choices"]] == [0, 1]
    means = [sum(c["logprobs"]["token_logprobs"]) / 8 for c in whole["choices"]]
    assert means[0] >= means[1] and whole["usage"]["completion_tokens"] == 40


async def test_a_cancelled_request_ends_all_its_answers(cluster: Cluster) -> None:
    heard = Chorus()
    task = asyncio.create_task(listen(cluster.url, body(PROMPTS, 2000, n=2), 6, heard))  # type: ignore[arg-type]
    await until(lambda: len(heard.ids) == 6, 20, "all speak")
    parent = heard.headers["x-infctl-request-id"]
    async with aiohttp.ClientSession() as http, http.delete(f"{cluster.url}/v1/streams/{parent}") as answer:
        assert answer.status == 200 and (await answer.json())["id"] == parent
    await asyncio.wait_for(task, 5)
    assert heard.error and heard.error["type"] == "cancelled" and not heard.done and heard.broken == []
    await until(lambda: _idle(cluster), 10, "no engine works on it any more")


async def _idle(cluster: Cluster) -> bool:
    launches = await cluster.get(cluster.admin + "/v1/launches")
    return all(one.get("running", 0) == 0 for one in launches.values())  # type: ignore[attr-defined]


async def test_one_answer_that_cannot_be_saved_ends_the_request_honestly(cluster: Cluster) -> None:
    heard = Chorus()
    asked = body(PROMPTS, 2000, regex="a+")  # type: ignore[arg-type]
    task = asyncio.create_task(listen(cluster.url, asked, 3, heard, group="a"))
    await until(lambda: len(heard.ids) == 3, 20, "all speak")
    assert heard.headers["x-infctl-recovery"] == "none; reason=grammar"
    (await cluster.rank("a", 1)).kill()
    await asyncio.wait_for(task, 10)
    assert heard.error and heard.error["type"] == "not_recoverable" and not heard.done
