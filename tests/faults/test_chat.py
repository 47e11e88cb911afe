"""Chats through the official client: what its users see when a worker dies, freezes, or refuses what they sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio

from tests.support.cluster import BIN, Cluster, running
from tests.support.witness import until

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

QUICK = {"restart": {"firstDelaySeconds": 0.3, "maxDelaySeconds": 0.3, "attempts": 1000}}
MESSAGES: list[Any] = [
    {"role": "system", "content": "Say what happens."},
    {"role": "user", "content": [{"type": "text", "text": "A worker dies \N{GRINNING FACE}"}]},
]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
GREEDY: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0}
IDS = {"return_token_ids": True, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    config = folder / "gateway.yaml"
    config.write_text("apiVersion: infctl/v1\nkind: GatewayConfig\nkeepAliveSeconds: 0.3\n")
    command = [str(BIN / "infctl-gateway"), "--config", str(config)]
    async with running(folder, sim=("--sim-decode-seconds", "0.02"), gateway=command, **QUICK) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared: Cluster) -> AsyncIterator[Cluster]:
    await shared.ready("a", "b")
    yield shared


def client(cluster: Cluster, group: str = "") -> openai.AsyncOpenAI:
    headers = {"x-infctl-group": group} if group else {}
    return openai.AsyncOpenAI(
        base_url=f"{cluster.url}/v1", api_key="none", default_headers=headers, max_retries=0, timeout=60
    )


class Heard:
    """What a user of the client keeps of a stream."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.roles: list[str] = []
        self.finish: list[str] = []
        self.responses: set[str] = set()
        self.usage: Any = None

    def take(self, chunk: Any) -> None:
        self.responses.add(chunk.id)
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            self.text += choice.delta.content or ""
            self.ids += getattr(choice, "token_ids", None) or []
            self.roles += [choice.delta.role] if choice.delta.role else []
            self.finish += [choice.finish_reason] if choice.finish_reason else []


async def talk(cluster: Cluster, heard: Heard, group: str = "", **more: Any) -> Heard:
    given = {**GREEDY, "extra_body": IDS, "stream_options": {"include_usage": True}, **more}
    async with client(cluster, group) as ai:
        stream = await ai.chat.completions.create(stream=True, **given)
        async for chunk in stream:
            heard.take(chunk)
    return heard


def assert_same(heard: Heard, expected: Heard) -> None:
    assert heard.ids == expected.ids and heard.text == expected.text
    assert heard.roles == ["assistant"] and heard.finish == expected.finish and len(heard.responses) == 1
    assert heard.usage == expected.usage and heard.usage.completion_tokens == len(expected.ids)


async def test_the_async_client_reads_on_over_a_killed_rank(cluster: Cluster) -> None:
    expected = await talk(cluster, Heard(), "b", max_tokens=150)
    heard = Heard()
    task = asyncio.create_task(talk(cluster, heard, "a", max_tokens=150))
    await until(lambda: len(heard.ids) >= 60, 20, "60 tokens")
    (await cluster.rank("a", 1)).kill()
    await task
    assert_same(heard, expected)
    assert len(heard.ids) == 150 and "\ufffd" not in heard.text


async def test_the_sync_client_reads_on_over_a_killed_rank(cluster: Cluster) -> None:
    expected = await talk(cluster, Heard(), "b", max_completion_tokens=120)
    heard = Heard()

    def read() -> None:
        with openai.OpenAI(
            base_url=f"{cluster.url}/v1", api_key="none", default_headers={"x-infctl-group": "a"}, max_retries=0
        ) as ai:
            options: Any = {"include_usage": True}
            for chunk in ai.chat.completions.create(
                stream=True, max_completion_tokens=120, extra_body=IDS, stream_options=options, **GREEDY
            ):
                heard.take(chunk)

    task = asyncio.create_task(asyncio.to_thread(read))
    await until(lambda: len(heard.ids) >= 40, 20, "40 tokens")
    (await cluster.rank("a", 0)).kill()
    await task
    assert_same(heard, expected)


async def test_the_client_lives_through_keep_alives_of_a_frozen_rank(cluster: Cluster) -> None:
    expected = await talk(cluster, Heard(), "b", max_tokens=80)
    heard = Heard()
    task = asyncio.create_task(talk(cluster, heard, "a", max_tokens=80))
    raw = asyncio.create_task(_raw(cluster, "a", 80))
    await until(lambda: len(heard.ids) >= 20, 20, "20 tokens")
    (await cluster.rank("a", 1)).suspend()
    await task
    lines = await raw
    assert_same(heard, expected)
    pings = [i for i, line in enumerate(lines) if line == ": ping"]
    assert pings, "a silence of two seconds is filled"
    assert all(lines[i + 1] != "" for i in pings), "no comment is a block of its own"
    assert any(line.startswith(": infctl migrated") for line in lines)


async def _raw(cluster: Cluster, group: str, tokens: int) -> list[str]:
    asked = {**GREEDY, **IDS, "max_tokens": tokens, "stream": True}
    async with (
        aiohttp.ClientSession(read_bufsize=2**20) as http,
        http.post(f"{cluster.url}/v1/chat/completions", json=asked, headers={"x-infctl-group": group}) as answer,
    ):
        return [raw.decode().rstrip("\n") async for raw in answer.content]


async def test_a_character_that_a_death_cuts_in_two_comes_out_whole(cluster: Cluster) -> None:
    """Each of many streams is cut at another place; some cuts fall inside a character of several tokens."""
    prompts = [
        f"Say {word} \N{GRINNING FACE}" for word in ("one", "two", "three", "four", "five", "six", "seven", "eight")
    ]
    asked = [{"messages": [{"role": "user", "content": p}], "max_tokens": 160} for p in prompts]
    expected = await asyncio.gather(*(talk(cluster, Heard(), "b", **one) for one in asked))
    heard = [Heard() for _ in asked]
    tasks = [asyncio.create_task(talk(cluster, h, "a", **one)) for h, one in zip(heard, asked, strict=True)]
    await until(lambda: min(len(h.ids) for h in heard) >= 50, 20, "50 tokens each")
    (await cluster.rank("a", 1)).kill()
    await asyncio.gather(*tasks)
    for got, whole in zip(heard, expected, strict=True):
        assert_same(got, whole)
        assert "\ufffd" not in got.text
    sizes = {len(char.encode()) for got in heard for char in got.text}
    assert sizes >= {1, 3, 4}, "longer characters did occur, emoji among them"


async def test_a_whole_answer_has_choices_usage_and_log_probabilities(cluster: Cluster) -> None:
    async with client(cluster) as ai:
        whole = await ai.chat.completions.create(
            **GREEDY, max_tokens=12, n=2, logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True}
        )
    assert [c.index for c in whole.choices] == [0, 1] and whole.object == "chat.completion"
    for choice in whole.choices:
        assert choice.message.role == "assistant" and choice.finish_reason == "length"
        assert choice.logprobs and choice.logprobs.content and len(choice.logprobs.content) == 12
        assert all(len(one.top_logprobs) == 3 and one.logprob <= 0 for one in choice.logprobs.content)
    assert whole.usage and whole.usage.completion_tokens == 24
    assert whole.id.startswith("chatcmpl-r")


async def test_stop_strings_and_stop_ids_end_a_chat(cluster: Cluster) -> None:
    async with client(cluster) as ai:
        free = await ai.chat.completions.create(**GREEDY, max_tokens=40, extra_body=IDS)
        text, ids = free.choices[0].message.content or "", free.choices[0].token_ids  # type: ignore[attr-defined]
        word = text.split(" ")[4]
        cut = await ai.chat.completions.create(**GREEDY, max_tokens=40, stop=[" " + word], extra_body=IDS)
        assert cut.choices[0].finish_reason == "stop"
        assert cut.choices[0].message.content == text[: text.index(" " + word)]
        by_id = await ai.chat.completions.create(**GREEDY, max_tokens=40, extra_body={"stop_token_ids": [ids[7]]})
        assert by_id.choices[0].finish_reason == "stop"
        assert by_id.usage and by_id.usage.completion_tokens == ids.index(ids[7]) + 1


async def test_tools_and_template_arguments_reach_the_template(cluster: Cluster) -> None:
    async with client(cluster) as ai:
        plain = await ai.chat.completions.create(**GREEDY, max_tokens=1)
        tools = await ai.chat.completions.create(**GREEDY, max_tokens=1, tools=[TOOL])  # type: ignore[list-item]
    assert plain.usage and tools.usage and tools.usage.prompt_tokens > plain.usage.prompt_tokens


async def test_a_worker_that_cannot_render_is_passed_over(cluster: Cluster) -> None:
    """A frozen main process accepts and never answers: the chat is rendered by the other group in time."""
    main = (await cluster.tree("a"))[0]
    main.suspend()
    try:
        heard = await asyncio.wait_for(talk(cluster, Heard(), max_tokens=5), 20)
        assert len(heard.ids) == 5
    finally:
        main.resume()


GOOD = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
HUGE = [{"role": "user", "content": "word " * 4}] * 10_000


REFUSED = {"type": "function", "function": {"name": "f", "parameters": {"type": "magic"}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": "x"}, 400, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content"),
        ({"messages": HUGE}, 400, "prompt"),
        ({"n": 0}, 400, "n"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, 400, "max_completion_tokens"),
        ({"max_tokens": -1}, 400, "max_tokens"),
        ({"max_tokens": 4, "min_tokens": 5}, 400, "min_tokens"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
        ({"tools": [{"type": "magic"}]}, 400, "tools[0]"),
        ({"tools": [REFUSED]}, 400, "tools"),
        ({"tool_choice": "required", "tools": [TOOL]}, 400, "tool_choice"),
        ({"functions": [{"name": "f"}]}, 400, "functions"),
        ({"modalities": ["audio"]}, 400, "modalities"),
        ({"custom_logit_processor": "gASV"}, 400, "custom_logit_processor"),
        ({"model": "gpt-9"}, 404, "model"),
    ],
)
async def test_a_bad_chat_names_its_field(cluster: Cluster, change, status, param, stream) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.post(cluster.url + "/v1/chat/completions", json={**GOOD, "stream": stream, **change}) as answer,
    ):
        error = (await answer.json())["error"]
    assert (answer.status, error["param"], error["retryable"]) == (status, param, False)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b'{"model":"tiny","messages":[{"role":"user","content":"\xff"}]}']
)
async def test_what_is_no_utf8_json_is_refused(cluster: Cluster, data: bytes) -> None:
    async with aiohttp.ClientSession() as http, http.post(cluster.url + "/v1/chat/completions", data=data) as answer:
        error = json.loads(await answer.read())["error"]
    assert answer.status == 400 and error["code"] == "malformed_json"
