"""Starts and ends the two engines that the conformance cases run on: the simulated one and SGLang itself.

What stays true: each engine leads a session of its own and only pids that we started are signalled; every wait has a
deadline. The command of the real engine is the one that serves TP=2 on a plain CPU machine.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from infctl.adapters.free_port import free_port
from infctl_daemon.proc import kill, procfs

API_KEY = "key-of-the-pool"
ADMIN_KEY = "key-of-the-daemon"
REVISION = "rev-1"
NAME = "tiny"
CONTEXT = 4096
MAX_RUNNING = 4
MAX_QUEUED = 6
START_SECONDS = {"sim": 15.0, "sglang": 360.0}

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "infctl"
SGLANG_PYTHON = Path(os.environ.get("INFCTL_SGLANG_ENV") or _CACHE / "sglang") / "bin" / "python"
SGLANG_MODEL = _CACHE / "models" / "tiny-llama"

DIAGNOSTICS = ("SGLANG_PYSPY_DUMP_BEFORE_CRASH", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH")

_COMMON = [
    "--host", "127.0.0.1", "--random-seed", "1", "--tp", "2", "--weight-version", REVISION,
    "--served-model-name", NAME, "--api-key", API_KEY, "--admin-api-key", ADMIN_KEY,
    "--max-running-requests", str(MAX_RUNNING), "--max-queued-requests", str(MAX_QUEUED),
    "--watchdog-timeout", "60", "--load-snapshot-publish-interval", "1", "--sleep-on-idle",
]  # fmt: skip
_SGLANG = [
    "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
    "--mem-fraction-static", "0.1", "--max-total-tokens", "20000", "--dist-timeout", "60",
]  # fmt: skip


def command(kind: str, model: Path, port: int) -> list[str]:
    """The command line of one engine."""
    tail = ["--model-path", str(model), "--port", str(port), *_COMMON]
    if kind == "sim":
        return [sys.executable, "-m", "infctl_daemon.engine.sim", *tail, "--sim-decode-seconds", "0.01"]
    return [str(SGLANG_PYTHON), "-m", "sglang.launch_server", *tail, *_SGLANG]


def environment(*, diagnostics: bool) -> dict[str, str]:
    """What the real engine needs on a CPU machine; harmless for the other."""
    env = {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_NCCL_SO_PATH": "/nonexistent",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name in DIAGNOSTICS:
        env.pop(name, None)
        if not diagnostics:
            env[name] = "0"
    env.pop("PROMETHEUS_MULTIPROC_DIR", None)
    return env


@dataclass
class Engine:
    """One running engine. `pace` is a generous time for one token, in seconds."""

    kind: str
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    pids: dict[str, int] = field(default_factory=dict)
    frozen: set[int] = field(default_factory=set)
    began: float = field(default_factory=time.time)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def client(self, key: str | None = API_KEY, timeout: float = 60.0) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout)

    def admin(self) -> httpx.AsyncClient:
        return self.client(ADMIN_KEY)

    def send(self, name: str, number: signal.Signals) -> None:
        """Signals one process of the tree: "0", "1", "detokenizer" or "main"."""
        pid = self.pids[name]
        os.kill(pid, number)
        if number == signal.SIGSTOP:
            self.frozen.add(pid)
        elif number == signal.SIGCONT:
            self.frozen.discard(pid)

    def survivors(self) -> list[str]:
        """Names of the processes that are still there (a zombie is not)."""
        return [name for name, pid in self.pids.items() if _state(pid) not in (None, "Z", "X")]

    def end(self) -> None:
        """Kills whatever is left of this engine, and removes what it leaves in /dev/shm."""
        mapped = set().union(*(procfs.shared_memory(pid) for pid in self.pids.values()))
        for name in ("main", *self.pids):
            pid = self.pids.get(name)
            if pid is not None and _state(pid) not in (None, "Z", "X"):
                os.kill(pid, signal.SIGKILL)
        if self.alive:
            self.process.kill()
        self.process.wait(timeout=30)
        deadline = time.monotonic() + 30
        while self.survivors() and time.monotonic() < deadline:
            time.sleep(0.05)
        kill.remove_from_shm(kill.left_in_shm(mapped, frozenset(self.pids.values()), self.began))


def _state(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[0]


def children(pid: int) -> dict[str, int]:
    """Ranks and detokenizer of an engine, by their titles."""
    found: dict[str, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = (entry / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[1]
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if int(parent) != pid:
            continue
        rank = re.match(r"(?:sim|sglang)::scheduler_TP(\d+)", title)
        if rank:
            found[rank[1]] = int(entry.name)
        elif re.match(r"(?:sim|sglang)::detokenizer", title):
            found["detokenizer"] = int(entry.name)
    return found


def start(kind: str, model: Path, folder: Path, *, diagnostics: bool = False) -> Engine:
    """A ready engine; raises AssertionError with the end of its log when it does not get there."""
    port = free_port()
    log = folder / f"{kind}-{port}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(kind, model, port),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(diagnostics=diagnostics),
            start_new_session=True,
        )
    engine = Engine(kind, process, port, log, {"main": process.pid})
    deadline = time.monotonic() + START_SECONDS[kind]
    while time.monotonic() < deadline and engine.alive:
        try:
            if httpx.get(engine.url + "/ready", timeout=2).status_code == 200:
                engine.pids.update(children(process.pid))
                assert set(engine.pids) == {"main", "0", "1", "detokenizer"}, engine.pids
                return engine
        except httpx.HTTPError:
            pass
        time.sleep(0.05 if kind == "sim" else 0.5)
    engine.pids.update(children(process.pid))
    engine.end()
    raise AssertionError(f"{kind} did not start:\n" + log.read_text(errors="replace")[-3000:])
