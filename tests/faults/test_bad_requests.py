"""Bad input gets a clear error and nothing is lost: every refusal over real HTTP, and the cluster serves on."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from tests.support.cluster import Cluster, running
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with running(tmp_path_factory.mktemp("cluster"), ("a",), tp=1, maxRunning=8, maxQueued=4) as one:
        yield one


async def post(cluster: Cluster, path: str, data: bytes) -> tuple[int, dict[str, object], dict[str, str]]:
    async with aiohttp.ClientSession() as http, http.post(cluster.url + path, data=io.BytesIO(data)) as answer:
        return answer.status, await answer.json(), dict(answer.headers)


GOOD = {"model": "tiny", "prompt": "x", "max_tokens": 4}
HUGE = 10**9


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("change", "status", "kind", "param"),
    [
        ({"model": "gpt-9"}, 404, "model_not_found", "model"),
        ({"prompt": [1, HUGE]}, 400, "invalid_request", "prompt"),
        ({"prompt": [-1]}, 400, "invalid_request", "prompt"),
        ({"prompt": []}, 400, "invalid_request", "prompt"),
        ({"prompt": [5] * 40_000}, 400, "invalid_request", "prompt"),
        ({"max_tokens": 0}, 400, "invalid_request", "max_tokens"),
        ({"max_tokens": -5}, 400, "invalid_request", "max_tokens"),
        ({"max_tokens": HUGE}, 400, "invalid_request", "max_tokens"),
        ({"min_tokens": -1}, 400, "invalid_request", "min_tokens"),
        ({"max_tokens": "ten"}, 400, "invalid_request", "max_tokens"),
        ({"custom_logit_processor": "gASVAAAA"}, 400, "invalid_request", "custom_logit_processor"),
        ({"logit_bias": {str(HUGE): 1}}, 400, "invalid_request", "logit_bias"),
        ({"n": 0}, 400, "invalid_request", "n"),
        ({"n": 129}, 400, "invalid_request", "n"),
        ({"prompt": ["x"] * 3, "n": 100}, 400, "invalid_request", "n"),
        ({"prompt": ["x", [1, HUGE]]}, 400, "invalid_request", "prompt"),
        ({"prompt": [[1], [HUGE]]}, 400, "invalid_request", "prompt"),
        ({"logprobs": HUGE}, 400, "invalid_request", "logprobs"),
        ({"best_of": 2, "n": 3}, 400, "invalid_request", "best_of"),
        ({"suffix": "end"}, 400, "invalid_request", "suffix"),
    ],
)
async def test_a_bad_field_is_named(cluster: Cluster, change, status, kind, param, stream) -> None:
    got, answer, _ = await post(cluster, "/v1/completions", json.dumps({**GOOD, "stream": stream, **change}).encode())
    error = answer["error"]
    assert (got, error["type"], error["param"]) == (status, kind, param)
    assert error["retryable"] is False and error["message"]


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"[1]", b'"x"', b"\xff\xfe\x00", b"[" * 100_000])
@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
async def test_malformed_json_is_a_400(cluster: Cluster, path: str, data: bytes) -> None:
    status, answer, _ = await post(cluster, path, data)
    assert status == 400 and answer["error"]["type"] == "invalid_request"


async def test_a_body_of_fifty_megabytes_is_refused(cluster: Cluster) -> None:
    data = json.dumps({**GOOD, "prompt": "x" * 50_000_000}).encode()
    try:
        status, answer, _ = await post(cluster, "/v1/completions", data)
    except aiohttp.ClientConnectionError:
        # refused while the client was still sending: the connection may go before the answer is read
        pass
    else:
        assert status == 413 and answer["error"]["code"] == "body_too_large"

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * 1_000_000

    async with aiohttp.ClientSession() as http:
        try:
            async with http.post(cluster.url + "/v1/completions", data=pieces()) as answered:
                assert answered.status == 413
        except aiohttp.ClientConnectionError:
            pass


async def test_an_unknown_path_and_a_wrong_method_have_the_same_shape(cluster: Cluster) -> None:
    status, answer, _ = await post(cluster, "/v1/nothing", b"{}")
    assert status == 404 and answer["error"]["type"] == "invalid_request"
    async with aiohttp.ClientSession() as http, http.get(cluster.url + "/v1/completions") as answered:
        assert answered.status == 405 and (await answered.json())["error"]["message"]


async def test_a_full_group_sheds_with_a_typed_error_and_writes_nothing(cluster: Cluster) -> None:
    before = len((await cluster.store.range(cluster.keys.streams)).kvs)
    room = await cluster.endpoint("a")
    assert room
    seen = [Seen() for _ in range(room.max_running + room.max_queued)]
    full = []
    for one in seen:
        # one after the other: an engine counts a burst against its queue before it schedules any of it
        full.append(asyncio.create_task(watch(cluster.url, body(tokens=2000), one)))
        if len(full) <= room.max_running:
            await until(lambda o=one: o.ids, 20, "it runs")
    await until(lambda: _loaded(cluster, room.launch, len(full)), 20, "the group is full")
    status, answer, headers = await post(cluster, "/v1/completions", json.dumps(GOOD).encode())
    assert (status, answer["error"]["type"], answer["error"]["retryable"]) == (503, "overloaded", True)
    assert headers["Retry-After"]
    assert not any(s.broken or s.error for s in seen), "those inside are not disturbed"
    for task in full:
        task.cancel()
    await asyncio.gather(*full, return_exceptions=True)
    await until(lambda: _loaded(cluster, room.launch, 0), 10, "the group is empty again")
    await asyncio.sleep(0.3)
    assert len((await cluster.store.range(cluster.keys.streams)).kvs) == before + len(full)


async def _loaded(cluster: Cluster, launch: str, count: int) -> bool:
    launches = await cluster.get(cluster.admin + "/v1/launches")
    return launches.get(launch, {}).get("running") == count  # type: ignore[attr-defined]


async def test_a_launch_whose_key_changed_is_dropped_and_never_shown(cluster: Cluster) -> None:
    """401 from the engine means another launch: the client sees `unavailable`, not `unauthorized`."""
    key = cluster.keys.secret("a")
    kept = await cluster.store.get(key)
    assert kept
    wrong = kept.value.replace(json.loads(kept.value)["api_key"].encode(), b"wrong")
    await cluster.store.put(key, wrong, lease=kept.lease)
    await asyncio.sleep(0.3)
    status, answer, headers = await post(cluster, "/v1/completions", json.dumps(GOOD).encode())
    assert status in (502, 503) and answer["error"]["type"] in ("unavailable", "not_recoverable")
    assert headers.get("Retry-After") or status == 502


async def test_after_all_that_the_cluster_still_serves(cluster: Cluster) -> None:
    """Runs last in this file, on the same engine: nothing above may have hurt it."""
    before = (await cluster.status("a")).launch
    os_pid = (await cluster.status("a")).pid
    (await cluster.tree("a"))[0].kill()
    await cluster.ready("a", above=1, timeout=20)
    assert (await cluster.status("a")).pid != os_pid and (await cluster.status("a")).launch != before
    seen = await watch(cluster.url, body(tokens=5))
    assert seen.error is None and len(seen.ids) == 5
