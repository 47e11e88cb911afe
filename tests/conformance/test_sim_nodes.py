"""Simulated engines over several nodes: how they meet, and how each end of one reaches the other."""

import asyncio
import contextlib
import signal
import socket
import time

import httpx
import pytest

from infctl.adapters.free_port import free_port
from tests.conformance.engines import children
from tests.conformance.sims import Sim, Start, wait_gone, wait_ready
from tests.conformance.streams import loads
from tests.conformance.test_sim_faults import watch


@pytest.fixture
def flags() -> list[str]:
    """Of a group of four ranks on two nodes; the node-rank comes last."""
    return ["--tp", "4", "--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{free_port()}", "--node-rank"]


def both(start_sim: Start, flags: list[str]) -> tuple[Sim, Sim]:
    one = start_sim(*flags, "1", ready=False)
    zero = start_sim(*flags, "0")
    wait_ready(one, path="/health")
    assert set(zero.pids) == {"main", "0", "1", "detokenizer"}
    assert set(one.pids) == {"main", "2", "3"}
    return zero, one


def says(sim: Sim, path: str) -> int | None:
    """Status of a GET; None while nothing listens."""
    try:
        return httpx.get(sim.url + path, timeout=20).status_code
    except httpx.ConnectError:
        return None


def wait_log(sim: Sim, words: str, seconds: float = 45.0) -> None:
    deadline = time.monotonic() + seconds
    while words not in sim.log.read_text():
        assert time.monotonic() < deadline, sim.log.read_text()
        time.sleep(0.02)


async def flow(zero: Sim) -> asyncio.Task[tuple[int, bool]]:
    """A long stream that has begun."""
    flowing = asyncio.Event()
    task = asyncio.create_task(watch(zero, n=4000, flowing=flowing))
    await asyncio.wait_for(flowing.wait(), 45)
    return task


@pytest.mark.parametrize("order", ["01", "10"])
def test_no_node_opens_its_port_before_all_ranks_have_joined_and_loaded(start_sim: Start, flags: list[str], order: str):
    """The part that is started later also loads longer."""
    first = start_sim(*flags, order[0], ready=False)
    time.sleep(1.0)
    assert says(first, "/health") is None
    second = start_sim(*flags, order[1], "--sim-load-seconds", "2", ready=False)
    zero, one = (first, second) if order == "01" else (second, first)
    began = time.monotonic()
    wait_ready(zero)
    assert time.monotonic() - began > 2
    wait_ready(one, path="/health")
    alone = start_sim("--tp", "1")
    assert zero.say(16) == alone.say(16)


async def test_stream_ends_with_the_remote_rank_and_so_does_every_process(start_sim: Start, flags: list[str]):
    zero, one = both(start_sim, flags)
    task = await flow(zero)
    one.send("3", signal.SIGKILL)
    got, ended_well = await task
    assert got > 5
    assert not ended_well
    assert wait_gone(zero) == -signal.SIGKILL
    assert wait_gone(one) == -signal.SIGKILL  # rank 2 fails because rank 0 is gone


async def test_remote_node_killed_whole_ends_the_leader(start_sim: Start, flags: list[str]):
    zero, one = both(start_sim, flags)
    one.send("main", signal.SIGKILL)
    assert wait_gone(one) == -signal.SIGKILL
    assert wait_gone(zero) == -signal.SIGKILL


@pytest.mark.parametrize("victim", ["main", "0", "1"])
def test_any_end_of_the_leader_ends_the_other_node(start_sim: Start, flags: list[str], victim: str):
    zero, one = both(start_sim, flags)
    zero.send(victim, signal.SIGKILL)
    assert wait_gone(zero) == -signal.SIGKILL
    assert wait_gone(one) == -signal.SIGKILL


async def test_frozen_remote_rank_stands_everything_still_until_it_is_thawed(start_sim: Start, flags: list[str]):
    zero, one = both(start_sim, flags)
    one.send("2", signal.SIGSTOP)
    task = asyncio.create_task(watch(zero, n=20))
    await asyncio.sleep(1.0)
    before = (await loads(zero))["timestamp"]
    await asyncio.sleep(1.0)
    assert (await loads(zero))["timestamp"] == before
    assert (says(zero, "/ready"), says(one, "/health")) == (200, 200)
    assert not task.done()
    one.send("2", signal.SIGCONT)
    assert await task == (20, True)


async def test_watchdog_of_the_leader_ends_it_and_the_frozen_node_stays(start_sim: Start, flags: list[str]):
    zero, one = both(start_sim, ["--watchdog-timeout", "3", "--dist-timeout", "45", *flags])
    task = await flow(zero)
    for name in ("2", "3"):
        one.send(name, signal.SIGSTOP)
    assert not (await task)[1]
    assert wait_gone(zero) == -signal.SIGKILL
    assert set(one.survivors()) == {"main", "2", "3"}
    assert says(one, "/health") == 200
    for name in ("2", "3"):
        one.send(name, signal.SIGCONT)
    assert wait_gone(one) == -signal.SIGKILL


async def test_watchdog_of_the_other_node_ends_it_while_a_frozen_rank_0_stays(start_sim: Start, flags: list[str]):
    zero, one = both(start_sim, ["--watchdog-timeout", "3", "--dist-timeout", "45", *flags])
    task = await flow(zero)
    zero.send("0", signal.SIGSTOP)
    assert wait_gone(one) == -signal.SIGKILL
    assert "Scheduler watchdog timeout" in one.log.read_text()
    zero.send("0", signal.SIGCONT)
    assert not (await task)[1]
    assert wait_gone(zero) == -signal.SIGKILL


async def test_sigterm_to_the_leader_lets_streams_end_and_both_nodes_leave_with_0(start_sim: Start, flags: list[str]):
    zero, one = both(start_sim, flags)
    flowing = asyncio.Event()
    task = asyncio.create_task(watch(zero, n=100, flowing=flowing))
    await asyncio.wait_for(flowing.wait(), 45)
    one.send("main", signal.SIGTERM)  # noted, and no more
    wait_log(one, "SIGTERM received on node_rank 1")
    zero.send("main", signal.SIGTERM)
    assert await task == (100, True)
    assert wait_gone(zero) == 0
    assert wait_gone(one) == 0
    assert "terminated with 0" in one.log.read_text()


async def test_sigterm_ends_a_node_that_still_loads_and_so_its_leader(start_sim: Start, flags: list[str]):
    zero = start_sim(*flags, "0", ready=False)
    one = start_sim(*flags, "1", "--sim-load-seconds", "30", ready=False)
    wait_log(zero, "all ranks have joined")
    one.send("main", signal.SIGTERM)
    assert wait_gone(one) == -signal.SIGTERM
    assert wait_gone(zero) == -signal.SIGKILL


def test_rank_killed_while_it_loads_ends_both_nodes(start_sim: Start, flags: list[str]):
    zero = start_sim(*flags, "0", ready=False)
    one = start_sim(*flags, "1", "--sim-load-seconds", "30", ready=False)
    wait_log(zero, "all ranks have joined")
    one.pids.update(children(one.process.pid))
    one.send("3", signal.SIGKILL)
    assert wait_gone(one) == 1
    assert wait_gone(zero) == -signal.SIGKILL


@pytest.mark.parametrize("node", ["0", "1"])
def test_node_that_nobody_joins_gives_up(start_sim: Start, flags: list[str], node: str):
    sim = start_sim("--dist-timeout", "1", *flags, node, ready=False)
    assert wait_gone(sim) == -signal.SIGKILL
    assert ("ranks 2, 3 did not join" if node == "0" else "no rank 0 at 127.0.0.1") in sim.log.read_text()


def test_who_does_not_belong_is_told_why_and_holds_up_nobody(start_sim: Start, flags: list[str]):
    zero = start_sim(*flags, "0", ready=False)
    host, port = "127.0.0.1", int(flags[5].rpartition(":")[2])
    with contextlib.ExitStack() as open_ones:
        silent = _connect(host, port, 45)
        open_ones.enter_context(silent)
        garbage = open_ones.enter_context(_connect(host, port, 45))
        garbage.sendall(b"GET / HTTP/1.1\r\n\r\n")
        other = start_sim(*flags, "1", "--weight-version", "rev-9", ready=False)
        assert wait_gone(other) == -signal.SIGKILL
        assert "another group: weight version 'rev-9', not 'default'" in other.log.read_text()
        wide = start_sim(*flags, "1", "--tp", "8", ready=False)
        assert wait_gone(wide) == -signal.SIGKILL
        assert "another group: world size 8, not 4" in wide.log.read_text()
        assert children(zero.process.pid)
        one = start_sim(*flags, "1", ready=False)
        wait_ready(zero)
        wait_ready(one, path="/health")
    assert len(zero.say(8)) == 8


def test_second_node_of_the_same_rank_is_refused_and_the_first_one_serves(start_sim: Start):
    address = f"127.0.0.1:{free_port()}"
    flags = ["--tp", "3", "--nnodes", "3", "--dist-init-addr", address, "--node-rank"]
    zero = start_sim(*flags, "0", ready=False)
    one = start_sim(*flags, "1", ready=False)
    twin = start_sim(*flags, "1", ready=False)
    deadline = time.monotonic() + 45
    while one.alive and twin.alive:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    late, first = (one, twin) if not one.alive else (twin, one)
    assert wait_gone(late) == -signal.SIGKILL
    assert "rank 1 (node rank 1) has joined already" in late.log.read_text()
    two = start_sim(*flags, "2", ready=False)
    wait_ready(zero)
    for sim in (first, two):
        wait_ready(sim, path="/health")
    assert len(zero.say(8)) == 8


def _connect(host: str, port: int, seconds: float) -> socket.socket:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((host, port), timeout=5)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
