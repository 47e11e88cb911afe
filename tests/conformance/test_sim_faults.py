"""The simulated engine's own side: faults on demand, its flags, a group over two nodes."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from infctl.adapters.free_port import free_port
from infctl_daemon.engine.sim import argv
from infctl_daemon.engine.sim.faults import parse
from infctl_daemon.proc import procfs
from tests.conformance.sims import BODY, GREEDY, Sim, Start, launch, wait_gone, wait_ready


@pytest.fixture(scope="module")
def lasting(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    """One engine for the cases that leave it as it was."""
    sim = launch(model, tmp_path_factory.mktemp("lasting"))
    wait_ready(sim)
    yield sim
    sim.end()


@pytest.fixture
def sim(lasting: Sim) -> Iterator[Sim]:
    yield lasting
    lasting.fault(kind="clear")
    wait_ready(lasting)


async def watch(sim: Sim, n: int = 60, seconds: float = 40.0, flowing: asyncio.Event | None = None) -> tuple[int, bool]:
    """Tokens received of a stream of n, and whether it ended well. Sets `flowing` when the first have come."""
    body = {**BODY, "sampling_params": {**GREEDY, "max_new_tokens": n}}
    got = 0
    async with asyncio.timeout(seconds), httpx.AsyncClient(timeout=seconds) as client:
        try:
            async with client.stream("POST", sim.url + "/generate", json=body) as response:
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        return got, True
                    if line:
                        got = len(json.loads(line[6:])["output_ids"])
                        if flowing and got > 5:
                            flowing.set()
        except httpx.HTTPError:
            pass
    return got, False


async def test_rank_dies_when_a_stream_has_so_many_tokens(start_sim: Start):
    sim = start_sim("--tp", "2", "--sim-fault", "die:rank=1,tokens=20")
    got, ended_well = await watch(sim, n=500)
    assert not ended_well
    assert 20 <= got < 60
    assert wait_gone(sim) == -signal.SIGKILL


async def test_freeze_and_thaw(start_sim: Start):
    sim = start_sim("--tp", "2", "--sim-fault", "freeze:rank=1,tokens=10")
    task = asyncio.create_task(watch(sim, n=40))
    await asyncio.sleep(1.5)
    assert not task.done()
    sim.fault(kind="thaw", rank=1)
    assert await task == (40, True)


async def test_diagnostics_freeze_waits_longer_while_a_rank_lives(start_sim: Start):
    """A frozen rank beside the dead one is still alive, so the wait for core dumps comes on top."""
    flags = ["--tp", "3", "--sim-diagnostics-seconds", "0.5", "--sim-coredump-seconds", "1.5"]
    sim = start_sim(*flags)
    sim.fault(kind="diagnostics_freeze")
    sim.fault(kind="freeze", rank=2)
    began = time.monotonic()
    sim.fault(kind="die", rank=1)
    assert wait_gone(sim) == -signal.SIGKILL
    assert time.monotonic() - began > 1.9


def test_main_killed_takes_all_children_along(start_sim: Start):
    sim = start_sim("--tp", "3")
    assert set(sim.pids) == {"main", "0", "1", "2", "detokenizer"}
    sim.send("main", signal.SIGKILL)
    assert wait_gone(sim) == -signal.SIGKILL


@pytest.mark.parametrize("victim", ["0", "detokenizer"])
def test_any_child_killed_ends_all(start_sim: Start, victim: str):
    sim = start_sim("--tp", "2")
    sim.send(victim, signal.SIGKILL)
    assert wait_gone(sim) == -signal.SIGKILL


def test_refuse_connections_for_a_while(sim: Sim):
    sim.fault(kind="refuse", mode="connection")
    deadline = time.monotonic() + 5
    while True:
        try:
            httpx.get(sim.url + "/ready", timeout=1)
        except httpx.ConnectError:
            break
        assert time.monotonic() < deadline
    sim.fault(kind="clear")
    wait_ready(sim)


def test_refuse_with_503(sim: Sim):
    sim.fault(kind="refuse", mode="503", seconds=1.0)
    deadline = time.monotonic() + 10
    for expected in (503, 200):
        while httpx.get(sim.url + "/v1/models").status_code != expected:
            assert time.monotonic() < deadline, expected
            time.sleep(0.02)


def test_wrong_tokens_and_back(sim: Sim):
    right = sim.say()
    sim.fault(kind="wrong_token")
    assert sim.say() != right
    sim.fault(kind="clear")
    assert sim.say() == right


def test_slow(sim: Sim):
    began = time.monotonic()
    sim.say(20)
    fast = time.monotonic() - began
    sim.fault(kind="slow", factor=8)
    began = time.monotonic()
    sim.say(20)
    assert time.monotonic() - began > 2 * fast


def test_sigterm_can_be_ignored(start_sim: Start):
    sim = start_sim()
    sim.fault(kind="ignore_sigterm")
    time.sleep(0.1)
    sim.send("main", signal.SIGTERM)
    time.sleep(0.8)
    assert httpx.get(sim.url + "/ready").status_code == 200
    sim.fault(kind="clear")
    time.sleep(0.1)
    sim.send("main", signal.SIGTERM)
    assert wait_gone(sim) == 0


def test_a_rank_leaves_with_code_0(start_sim: Start):
    sim = start_sim("--tp", "2")
    sim.fault(kind="leave", rank="1")
    assert wait_gone(sim) == -signal.SIGKILL  # its peer misses it


def test_a_detokenizer_that_leaves_with_code_0_is_not_missed(start_sim: Start):
    sim = start_sim("--sim-crash-delay", "0.1")
    sim.fault(kind="leave", rank="detokenizer")
    time.sleep(1.0)
    assert sim.alive and sim.survivors() == ["main", "0"]


def test_names_in_shared_memory_outlive_a_killed_tree_and_no_other(start_sim: Start):
    def names(sim: Sim) -> set[str]:
        mapped = procfs.shared_memory(sim.process.pid)
        return {n for n in os.listdir("/dev/shm") if n in mapped or n.endswith(f"_{sim.pids.get('0')}_0")}

    assert names(start_sim()) == set()
    killed, asked = start_sim("--sim-named-memory"), start_sim("--sim-named-memory")
    left, tidy = names(killed), names(asked)
    assert len(left) == len(tidy) == 2
    killed.send("main", signal.SIGKILL)
    asked.send("main", signal.SIGTERM)
    assert (wait_gone(killed), wait_gone(asked)) == (-signal.SIGKILL, 0)
    assert left <= set(os.listdir("/dev/shm")) and not tidy & set(os.listdir("/dev/shm"))
    for name in left:
        os.unlink(f"/dev/shm/{name}")


def test_bad_faults_are_refused(sim: Sim):
    url = f"http://127.0.0.1:{sim.admin_port}/fault"
    for body in ({"kind": "other"}, {"kind": "die", "rank": 9}, {"kind": "die", "after": "x"}, [1]):
        assert httpx.post(url, json=body).status_code == 400, body
    pids = httpx.get(f"http://127.0.0.1:{sim.admin_port}/processes").json()
    assert pids == dict(sim.pids.items())


def test_port_is_closed_while_loading(start_sim: Start):
    sim = start_sim("--sim-load-seconds", "3", ready=False)
    time.sleep(1.0)
    with pytest.raises(httpx.ConnectError):
        httpx.get(sim.url + "/ready")
    wait_ready(sim)


async def test_watchdog_ends_an_engine_that_makes_no_progress(start_sim: Start):
    sim = start_sim("--tp", "2", "--watchdog-timeout", "1.5", "--sim-fault", "freeze:rank=1,tokens=5")
    began = time.monotonic()
    _got, ended_well = await watch(sim, n=100)
    assert not ended_well
    assert 1.0 < time.monotonic() - began < 8
    assert wait_gone(sim) == -signal.SIGKILL


async def test_group_over_two_nodes_is_one_group(start_sim: Start):
    address = f"127.0.0.1:{free_port()}"
    flags = ["--tp", "4", "--nnodes", "2", "--dist-init-addr", address]
    zero = start_sim(*flags, "--node-rank", "0", ready=False)
    one = start_sim(*flags, "--node-rank", "1", ready=False)
    wait_ready(zero)
    wait_ready(one, path="/health")
    assert set(zero.pids) == {"main", "0", "1", "detokenizer"}
    assert set(one.pids) == {"main", "2", "3"}
    alone = start_sim("--tp", "1")
    assert zero.say(16) == alone.say(16)
    flowing = asyncio.Event()
    task = asyncio.create_task(watch(zero, n=4000, flowing=flowing))
    await asyncio.wait_for(flowing.wait(), 20)
    one.send("3", signal.SIGKILL)
    got, ended_well = await task
    assert got > 5
    assert not ended_well
    assert wait_gone(zero) == -signal.SIGKILL
    assert wait_gone(one) == -signal.SIGKILL


def test_flags_of_a_file_and_the_command_line_wins(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = tmp_path / "engine.yaml"
    file.write_text("model-path: m\ntp_size: 2\nport: 1234\nenable-metrics: true\nsleep-on-idle: true\napi-key: null\n")
    options = argv.parse(["--config", str(file), "--port", "99"])
    assert (options.model_path, options.world, options.port, options.api_key) == ("m", 2, 99, None)
    assert "--enable-metrics" in caplog.text


@pytest.mark.parametrize(
    "words",
    [[], ["--model-path", "m", "--tp", "3", "--nnodes", "2"], ["--model-path", "m", "--tp", "2", "--nnodes", "2"]],
)
def test_flags_that_cannot_be_meant(words: list[str]):
    with pytest.raises(SystemExit):
        argv.parse(words)


def test_fault_of_the_command_line():
    assert parse("die:rank=1,tokens=127") == {"kind": "die", "rank": "1", "tokens": "127"}
    assert parse("wrong_token:on=false") == {"kind": "wrong_token", "on": False}
