"""Hosts in network namespaces are what a test takes them for: they reach one another, and a cut is a cut."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import netns
from tests.support.hosts import Host, Hosts, hosts
from tests.support.needs import need

pytestmark = [pytest.mark.root]
PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def network() -> Iterator[Hosts]:
    need(netns.why_not())
    outside = _machine()
    with hosts("a", "b", "c") as made:
        yield made
    assert list(netns.NAMES.glob(f"infctl-t{os.getpid()}.*")) == []
    assert _machine() == outside, "the machine's own network is as it was"


@pytest.fixture
def three(network: Hosts) -> Iterator[Hosts]:
    yield network
    network.restore()


def _machine() -> list[str]:
    asked = (("link",), ("address",), ("route",), ("rule",))
    return [subprocess.run(["ip", "-o", *words], capture_output=True, text=True).stdout for words in asked]


@contextlib.contextmanager
def joined(client: Host, server: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection that has carried something; they wait a second for what comes."""
    with server.listen() as listening, client.connect(listening.getsockname()[1], server) as near:
        far, _ = listening.accept()
        with far:
            near.sendall(b"hello")
            assert far.recv(16) == b"hello"
            for end in (near, far):
                end.settimeout(1.0)
            yield near, far


def test_hosts_reach_one_another_and_the_test_reaches_them_only_through_the_observer(three: Hosts) -> None:
    for client in "abc":
        for server in "abc":
            with joined(three[client], three[server]) as (near, far):
                assert far.getpeername()[0] == three[client].address
                far.sendall(b"welcome")
                assert near.recv(16) == b"welcome"
    with three.a.listen() as listening:
        port = listening.getsockname()[1]
        with pytest.raises(OSError):
            socket.create_connection((three.a.address, port), 0.3)
        with socket.create_connection(three.reach(three.a.address, port), 5) as outside:
            far, peer = listening.accept()
            assert peer[0] == three.observer.address
            far.sendall(b"and back")
            far.close()
            assert outside.recv(16) == b"and back"
            assert outside.recv(16) == b""
    assert three.b.run(["cat", "/proc/net/dev"]).stdout.count("eth0:") == 1


@pytest.mark.parametrize("how", ["blackhole", "unreachable"])
def test_a_cut_stops_an_established_connection_without_a_reset_and_heals(three: Hosts, how: str) -> None:
    with joined(three.a, three.b) as (near, far), joined(three.a, three.c) as (aside, still):
        three.cut("a", "b", how)  # type: ignore[arg-type]
        near.sendall(b"1")
        far.sendall(b"2")
        for end in (near, far):
            with pytest.raises(TimeoutError):
                end.recv(16)
        with pytest.raises(TimeoutError if how == "blackhole" else OSError) as refused:
            three.a.connect(far.getsockname()[1], three.b, timeout=0.5)
        assert isinstance(refused.value, TimeoutError) == (how == "blackhole")
        aside.sendall(b"3")
        assert still.recv(16) == b"3", "the third host is not concerned"
        three.heal("a", "b")
        for end in (near, far):
            end.settimeout(15.0)
        assert (far.recv(16), near.recv(16)) == (b"1", b"2")


def test_a_host_that_loses_power_says_nothing_and_nobody_is_left_in_it(three: Hosts) -> None:
    talker = (
        "import socket, sys, time; s = socket.create_server((sys.argv[1], 7000)); print(flush=True); c, _ = s.accept();"
        "exec('while True: c.send(b\".\"); time.sleep(0.001)')"
    )
    process = three.b.popen([sys.executable, "-c", talker, three.b.address], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as out:
        out.readline()
    with three.a.connect(7000, three.b, timeout=1.0) as heard, joined(three.a, three.c) as (near, far):
        assert heard.recv(1) == b"."
        assert three.b.pids() == [process.pid]
        three.power_off("b")
        assert three.b.pids() == []
        assert process.wait(5) == -signal.SIGKILL
        with pytest.raises(TimeoutError):
            while heard.recv(65536):
                pass
        near.sendall(b"1")
        assert far.recv(16) == b"1"
    three.power_on("b")
    with joined(three.a, three.b):
        pass


def test_what_a_killed_run_left_is_swept_and_nothing_of_a_run_that_lives(three: Hosts) -> None:
    script = (
        "import sys, time; from tests.support.hosts import Hosts; made = Hosts('a'); made.open();"
        "p = made.a.popen(['sleep', '600']); print(made.router, made.a.namespace, p.pid, flush=True); time.sleep(600)"
    )
    env = {**os.environ, "PYTHONPATH": f"{PROJECT}:{PROJECT / 'daemon'}"}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env, text=True) as run:
        assert run.stdout is not None
        router, namespace, sleeper = run.stdout.readline().split()
        swept_early = netns.sweep()
        assert router not in swept_early
        assert Path(f"/proc/{sleeper}").exists()
        run.kill()
        run.wait(10)
    swept = netns.sweep()
    assert {router, namespace} <= set(swept)
    assert not (netns.NAMES / router).exists()
    end = time.monotonic() + 5
    while Path(f"/proc/{sleeper}").exists() and "\nState:\tZ" not in Path(f"/proc/{sleeper}/status").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
    with joined(three.a, three.b):
        pass
