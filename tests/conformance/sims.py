"""Simulated engines with flags of one's own, for cases that only they can show."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from infctl.adapters.free_port import free_ports
from tests.conformance.engines import Engine, children, environment

BODY = {"text": "the worker sends", "stream": True}
GREEDY = {"temperature": 0, "max_new_tokens": 60}


class Sim(Engine):
    admin_port: int = 0

    def fault(self, **what: object) -> None:
        answer = httpx.post(f"http://127.0.0.1:{self.admin_port}/fault", json=what, timeout=5)
        assert answer.status_code == 200, answer.text

    def say(self, n: int = 8) -> list[int]:
        body = {**BODY, "stream": False, "sampling_params": {**GREEDY, "max_new_tokens": n}}
        return list(httpx.post(self.url + "/generate", json=body, timeout=20).json()["output_ids"])


Start = Callable[..., Sim]


def launch(model: Path, folder: Path, *flags: str) -> Sim:
    port, admin = free_ports(2)
    log = folder / f"{port}.log"
    words = ["--model-path", str(model), "--port", str(port), "--sim-admin-port", str(admin)]
    words += ["--sim-decode-seconds", "0.01", "--sim-load-seconds", "0.05", *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "infctl_daemon.engine.sim", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment(diagnostics=False),
            start_new_session=True,
        )
    sim = Sim("sim", process, port, log, {"main": process.pid})
    sim.admin_port = admin
    return sim


def wait_ready(sim: Sim, seconds: float = 45.0, path: str = "/ready") -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if httpx.get(sim.url + path, timeout=2).status_code == 200:
                sim.pids.update(children(sim.process.pid))
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline and sim.alive, sim.log.read_text()
        time.sleep(0.02)


def wait_gone(sim: Sim, seconds: float = 45.0) -> int:
    deadline = time.monotonic() + seconds
    while sim.process.poll() is None or sim.survivors():
        assert time.monotonic() < deadline, sim.survivors()
        time.sleep(0.02)
    return int(sim.process.returncode)
