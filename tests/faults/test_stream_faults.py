"""A stream outlives what breaks under it: real processes, real signals; the verdict is the client's alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from tests.support.cluster import Cluster, running
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

FAST = ("--sim-decode-seconds", "0.02")
QUICK = {"restart": {"firstDelaySeconds": 0.3, "maxDelaySeconds": 0.3, "attempts": 1000}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with running(tmp_path_factory.mktemp("cluster"), sim=FAST, **QUICK) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(shared: Cluster) -> AsyncIterator[Cluster]:
    """The shared cluster, with both groups ready again whatever the test before did."""
    await shared.ready("a", "b")
    yield shared


async def start(
    cluster: Cluster, tokens: int, at: int, group: str = "a", **more: object
) -> tuple[Seen, asyncio.Task[Seen]]:
    """A stream on `group` that has put out at least `at` tokens."""
    seen = Seen()
    task = asyncio.create_task(watch(cluster.url, body(tokens=tokens, **more), seen, group=group))
    await until(lambda: len(seen.ids) >= at or task.done(), 20, f"{at} tokens")
    return seen, task


async def reference(cluster: Cluster, tokens: int, **more: object) -> Seen:
    return await watch(cluster.url, body(tokens=tokens, **more), group="b")


def assert_whole(seen: Seen, expected: Seen) -> None:
    assert seen.error is None
    assert seen.broken == []
    assert seen.ids == expected.ids
    assert seen.text == expected.text
    assert seen.finish == expected.finish
    assert seen.usage == expected.usage, "usage counts the prompt once and every token once"
    assert seen.done and len(seen.response_ids) == 1


async def test_a_killed_rank_does_not_end_its_stream(cluster: Cluster) -> None:
    expected = await reference(cluster, 150)
    before = await cluster.endpoint("a")
    assert before
    seen, task = await start(cluster, 150, at=127)
    (await cluster.rank("a", 1)).kill()
    await task
    assert_whole(seen, expected)
    record = await until(lambda: _finished(cluster, seen.stream), 5, "the record of the end")
    assert record.group == "b" and record.migrations == 1
    (again,) = await cluster.ready("a", above=before.generation)
    assert again.launch != before.launch and again.generation == before.generation + 1


async def test_a_killed_main_process_does_not_end_its_stream(cluster: Cluster) -> None:
    expected = await reference(cluster, 80)
    seen, task = await start(cluster, 80, at=30)
    os.kill((await cluster.status("a")).pid, signal.SIGKILL)
    await task
    assert_whole(seen, expected)


async def test_a_frozen_rank_does_not_hold_its_stream_for_five_seconds(cluster: Cluster) -> None:
    expected = await reference(cluster, 120)
    seen, task = await start(cluster, 120, at=40)
    rank = await cluster.rank("a", 1)
    stopped_at = time.monotonic()
    rank.suspend()
    try:
        await task
    finally:
        with contextlib.suppress(Exception):
            rank.resume()
    assert_whole(seen, expected)
    assert seen.gap_over(stopped_at) < 5.0


async def test_a_doubted_group_gets_no_new_request_before_it_is_ended(cluster: Cluster) -> None:
    """Nothing runs on it, so no gateway can have noticed: its daemon says so in the endpoint."""
    rank = await cluster.rank("a", 1)
    rank.suspend()
    try:
        await until(lambda: _endpoint_is(cluster, "a", "suspect"), 10, "its daemon doubts it")
        served = await asyncio.gather(*(watch(cluster.url, body(tokens=5)) for _ in range(6)))
    finally:
        with contextlib.suppress(Exception):
            rank.resume()
    for seen in served:
        record = await until(lambda name=seen.stream: _finished(cluster, name), 5, "the record of the end")
        assert record.group == "b" and record.migrations == 0
    await cluster.ready("a")


async def _endpoint_is(cluster: Cluster, group: str, state: str) -> bool:
    found = await cluster.endpoint(group)
    return found is not None and found.state == state


async def test_a_frozen_group_does_not_hold_its_stream(cluster: Cluster) -> None:
    """Every process stopped: the heartbeat does not answer at all."""
    expected = await reference(cluster, 100)
    seen, task = await start(cluster, 100, at=40)
    stopped_at = time.monotonic()
    tree = await cluster.tree("a")
    for process in tree:
        process.suspend()
    try:
        await task
    finally:
        for process in tree:
            with contextlib.suppress(Exception):
                process.resume()
    assert_whole(seen, expected)
    assert seen.gap_over(stopped_at) < 5.0


async def test_a_death_that_nobody_reports_moves_the_stream_on_eof(cluster: Cluster) -> None:
    """The daemon is frozen too: only the broken connection tells."""
    expected = await reference(cluster, 80)
    seen, task = await start(cluster, 80, at=30)
    tree = await cluster.tree("a")
    os.kill(cluster.processes["noded"].pid, signal.SIGSTOP)
    try:
        killed_at = time.monotonic()
        for process in tree:
            process.kill()
        await task
        assert_whole(seen, expected)
        assert seen.gap_over(killed_at) < 2.0
        # and new requests are not sent into the dark
        fresh = await watch(cluster.url, body(tokens=5))
        assert fresh.error is None and len(fresh.ids) == 5
    finally:
        os.kill(cluster.processes["noded"].pid, signal.SIGCONT)


async def test_a_rank_dies_while_etcd_is_frozen_and_streams_move(cluster: Cluster) -> None:
    expected = await reference(cluster, 120)
    before = await cluster.endpoint("a")
    assert before
    seen, task = await start(cluster, 120, at=30)
    rank = await cluster.rank("a", 1)
    cluster.etcd.freeze()
    try:
        killed_at = time.monotonic()
        rank.kill()
        await task
        assert_whole(seen, expected)
        assert seen.gap_over(killed_at) < 5.0
    finally:
        cluster.etcd.thaw()
    await cluster.ready("a", above=before.generation)


async def test_a_stream_alone_on_its_pool_waits_for_the_new_launch(cluster: Cluster) -> None:
    expected = await reference(cluster, 100)
    for process in await cluster.tree("b"):
        process.suspend()
    tree_b = await cluster.tree("b")
    try:
        seen, task = await start(cluster, 100, at=30)
        (await cluster.rank("a", 0)).kill()
        await task
        assert_whole(seen, expected)
    finally:
        for process in tree_b:
            with contextlib.suppress(Exception):
                process.resume()


async def test_after_the_notice_no_request_goes_to_the_old_launch(cluster: Cluster) -> None:
    before = await cluster.endpoint("a")
    assert before
    stop = asyncio.Event()
    outcomes: list[Seen] = []

    async def traffic() -> None:
        while not stop.is_set():
            outcomes.append(await watch(cluster.url, body(tokens=3)))

    clients = [asyncio.create_task(traffic()) for _ in range(4)]
    await asyncio.sleep(0.5)
    (await cluster.rank("a", 1)).kill()
    await until(lambda: _noticed(cluster, before.launch), 5, "the fault notice")
    await asyncio.sleep(1.0)
    stop.set()
    await asyncio.gather(*clients)
    (notice,) = [f for f in await cluster.faults() if f.launch == before.launch]
    launches = await cluster.get(cluster.admin + "/v1/launches")
    last = launches[before.launch]["last_dispatch_at_ms"]  # type: ignore[index]
    assert last > 0, "the old launch had work before"
    # the notice is stamped before its transaction commits; the watch brings it a few milliseconds later
    assert last <= notice.at_ms + 50.0
    assert [s for s in outcomes if s.error or len(s.ids) != 3] == []


async def _noticed(cluster: Cluster, launch: str) -> bool:
    return any(f.launch == launch for f in await cluster.faults())


async def test_a_hundred_streams_outlive_their_group(cluster: Cluster) -> None:
    expected = await reference(cluster, 60)
    before = await cluster.endpoint("a")
    assert before
    seen = [Seen() for _ in range(100)]
    tasks = [asyncio.create_task(watch(cluster.url, body(tokens=60), s, group="a")) for s in seen]
    await until(lambda: all(len(s.ids) >= 15 for s in seen), 30, "every stream runs")
    (await cluster.rank("a", 1)).kill()
    await asyncio.gather(*tasks)
    for one in seen:
        assert_whole(one, expected)
    assert len({s.stream for s in seen}) == 100


async def test_a_request_that_cannot_be_replayed_is_served_and_ends_honestly(cluster: Cluster) -> None:
    seen, task = await start(cluster, 200, at=20, repetition_penalty=1.1)
    assert seen.headers["x-infctl-recovery"] == "none; reason=repetition-penalty"
    (await cluster.rank("a", 1)).kill()
    await task
    assert seen.error is not None
    assert seen.error["type"] == "not_recoverable" and seen.error["retryable"] is True
    assert not seen.done and seen.broken == []


async def test_a_client_that_leaves_ends_the_work_on_the_engine(cluster: Cluster) -> None:
    for wanted in (0, 10):  # before the first token, and after some
        request = body(prompt=list(range(10, 40)) * 300 if wanted == 0 else "go", tokens=400)
        seen = Seen()
        task = asyncio.create_task(watch(cluster.url, request, seen, group="a"))
        await until(lambda s=seen, w=wanted: s.status == 200 and len(s.ids) >= w, 10, "the stream runs")
        assert wanted or not seen.ids, "the client leaves before the first token"
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await until(lambda: _idle(cluster, "a"), 3, "the engine is idle again")
        await until(lambda s=seen: _state(cluster, s.stream, "CANCELLED"), 4, "the record says CANCELLED")


async def _idle(cluster: Cluster, group: str) -> bool:
    endpoint = await cluster.endpoint(group)
    assert endpoint
    key = await cluster.store.get(cluster.keys.secret(group))
    assert key
    headers = {"authorization": "Bearer " + json.loads(key.value)["api_key"]}
    async with aiohttp.ClientSession() as http, http.get(endpoint.url + "/v1/loads", headers=headers) as answer:
        loads = (await answer.json())["loads"]
    return sum(one["num_running_reqs"] + one["num_waiting_reqs"] for one in loads) == 0


async def _state(cluster: Cluster, stream: str, state: str) -> bool:
    record = await cluster.stream(stream)
    return record is not None and record.state == state


async def test_a_slow_reader_on_a_one_stream_worker_is_no_quarantine(cluster: Cluster) -> None:
    """The client reads nothing for longer than the stall time while megabytes wait for it."""
    host, port = cluster.url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await loop.sock_connect(sock, (host, int(port)))
        sampling = {"max_new_tokens": 400, "temperature": 0, "ignore_eos": True}
        payload = json.dumps({"input_ids": [5, 6, 7], "stream": True, "sampling_params": sampling}).encode()
        head = f"POST /generate HTTP/1.1\r\nhost: x\r\nx-infctl-group: a\r\ncontent-length: {len(payload)}\r\n\r\n"
        await loop.sock_sendall(sock, head.encode() + payload)
        await asyncio.sleep(9.0)  # 400 tokens at 20 ms are out by now; nothing was read
        status = await cluster.get(cluster.admin + "/v1/status")
        assert status["quarantined"] == {}
        data = b""
        async with asyncio.timeout(20):
            while not data.endswith(b"0\r\n\r\n"):
                chunk = await loop.sock_recv(sock, 1 << 16)
                assert chunk, "the stream was cut"
                data += chunk
    assert b"data: [DONE]" in data
    positions = [int(line[4:].split(b"-")[0]) for line in data.split(b"\n") if line.startswith(b"id: ")]
    assert positions == sorted(set(positions)) and positions[-1] == 400


async def _finished(cluster: Cluster, stream: str) -> object:
    record = await cluster.stream(stream)
    return record if record is not None and record.state == "COMPLETED" else None


@pytest.mark.parametrize("kind", ["noded", "gateway"])
async def test_a_process_without_a_store_keeps_trying_and_says_so(tmp_path, kind: str) -> None:
    from tests.support.cluster import BIN

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    arguments: dict[str, list[str]] = {
        "noded": ["--node", "n1", "--state-dir", str(tmp_path / "s"), "--run-dir", str(tmp_path / "r")],
        "gateway": ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
    }
    process = await asyncio.create_subprocess_exec(
        str(BIN / f"infctl-{kind}"), "--endpoints", f"127.0.0.1:{port}", *arguments[kind],
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said = ""
    try:
        assert process.stdout
        async with asyncio.timeout(20):
            while "unavailable" not in said.lower():
                line = await process.stdout.readline()
                assert line, f"it ended: {said}"
                said += line.decode()
        await asyncio.sleep(1.0)
        assert process.returncode is None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        async with asyncio.timeout(20):
            await process.communicate()


async def test_a_taken_port_is_told_at_once(cluster: Cluster) -> None:
    from tests.support.cluster import BIN

    process = await asyncio.create_subprocess_exec(
        str(BIN / "infctl-gateway"), "--endpoints", cluster.etcd.endpoint,
        "--listen", cluster.url.removeprefix("http://"), "--admin", "127.0.0.1:0",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(15):
        _, err = await process.communicate()
    assert process.returncode == 6, "a conflict: under systemd it is tried again"
    assert b"in use" in err and b"hint:" in err
