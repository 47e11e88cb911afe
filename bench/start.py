"""Start: how long a gateway takes from its first instruction to `/ready`, with a thousand endpoints in the store.

Records only, no engines: the urls lead nowhere. `listen_ms` is when the port answers at all, `ready_ms` when `/ready`
is 200 and names every group; `cpu_ms` is what the process had used by then, which a busy machine hardly changes.
`snapshot` starts without a store, from the file that the run before left behind; its workers are all dead, so
`answer_ms` is when it says that it serves from the file (half a second of it is the wait for the store).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.envelope import envelope, spread
from infctl.adapters.etcd import EtcdStore
from infctl.adapters.etcd_server import EmbeddedEtcd
from infctl.adapters.free_port import free_port
from infctl.client.local.cluster import program
from infctl.ports.store import Op, Put
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, Generation, GroupSpec, GroupStatus, LaunchRecord, PoolSpec, Secret

NAME = "start"
ENDPOINTS = 1000
DEADLINE = 60.0


async def run(args: list[str], *, quick: bool) -> dict[str, Any]:
    rounds = 3 if quick else 10
    with tempfile.TemporaryDirectory(prefix="infctl-bench-") as folder:
        root = Path(folder)
        etcd = EmbeddedEtcd(root / "etcd", unsafe_no_fsync=True)
        running = await etcd.start()
        try:
            await fill(running.endpoint, root)
            store = [one(root, running.endpoint, from_file=False) for _ in range(rounds)]
        finally:
            await etcd.stop()
        file = [one(root, running.endpoint, from_file=True) for _ in range(rounds)]
    results = {
        f"store.{ENDPOINTS}": {name: spread([r[name] for r in store]) for name in ("listen_ms", "ready_ms", "cpu_ms")},
        f"snapshot.{ENDPOINTS}": {
            name: spread([r[name] for r in file]) for name in ("listen_ms", "answer_ms", "cpu_ms")
        },
    }
    return envelope(results, ["infctl"])


async def fill(endpoint: str, root: Path) -> None:
    """Everything that the daemons of so many groups of one model would have written."""
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "infctl_daemon.engine.sim.model", str(root / "model"), stdout=subprocess.DEVNULL
    )
    await asyncio.wait_for(made.wait(), 60)
    tokenizer = root / "model" / "tokenizer.json"
    digest = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    keys = Keys()
    store = EtcdStore([endpoint])
    try:
        lease = (await store.grant(3600)).id
        await store.put(keys.pool_spec("p"), encode(PoolSpec(name="p", model="m")))
        for number in range(ENDPOINTS):
            group = f"g{number:04}"
            launch = f"{group}-aaaaaaaa"
            record = EndpointRecord(
                group=group,
                pool="p",
                node=f"n{number // 8}",
                generation=3,
                launch=launch,
                url=f"http://127.0.0.1:{1 + number % 900}",
                model="m",
                revision="r",
                tokenizer=str(tokenizer),
                tokenizer_digest=digest,
                context_length=32768,
                vocab_size=500,
                max_running=64,
                max_queued=64,
            )
            spec = GroupSpec(name=group, pool="p", node="n", model_path="/m", max_running=64, max_queued=64)
            ops: list[Op] = [
                Put(keys.group_spec(group), encode(spec)),
                Put(keys.group_status(group), encode(GroupStatus(group=group, node="n", phase="ready"))),
                Put(keys.group_generation(group), encode(Generation(generation=3, launch=launch))),
                Put(keys.group_launch(group, launch), encode(LaunchRecord(launch=launch, group=group, node="n"))),
                Put(keys.secret(group), encode(Secret(launch=launch, api_key="k" * 48)), lease),
                Put(keys.endpoint(group), encode(record), lease),
            ]
            await store.txn((), ops)
    finally:
        await store.close()


def one(root: Path, endpoint: str, *, from_file: bool) -> dict[str, float]:
    """Start, wait, kill: milliseconds since the spawn."""
    port = free_port()
    argv = [*program("infctl-gateway", "infctl_daemon.gateway.main"), "--endpoints", endpoint, "--name", "bench"]
    argv += ["--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", "--state-dir", str(root / "gateway")]
    with open(root / "gateway.log", "ab") as log:
        began = time.monotonic()
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    found: dict[str, float] = {}
    try:
        while True:
            if process.poll() is not None or time.monotonic() - began > DEADLINE:
                raise RuntimeError(f"the gateway is not ready:\n{(root / 'gateway.log').read_text()[-2000:]}")
            said = ask(port)
            now = (time.monotonic() - began) * 1000.0
            if said is None:
                time.sleep(0.005)
                continue
            found.setdefault("listen_ms", now)
            done = said["from_snapshot"] if from_file else said["ready"] and len(said["groups"]) == ENDPOINTS
            if done:
                found["answer_ms" if from_file else "ready_ms"] = now
                used = psutil.Process(process.pid).cpu_times()
                found["cpu_ms"] = (used.user + used.system) * 1000.0
                break
            time.sleep(0.01)
        if not from_file:
            kept = root / "gateway" / "bench.snapshot.json"
            while (
                not (kept.exists() and kept.stat().st_mtime > time.time() - 5) and time.monotonic() - began < DEADLINE
            ):
                time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    return found


def ask(port: int) -> dict[str, Any] | None:
    """`GET /ready`, None where nobody listens yet."""
    try:
        with socket.create_connection(("127.0.0.1", port), 2.0) as sock:
            sock.sendall(b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            data = b""
            while chunk := sock.recv(1 << 16):
                data += chunk
    except OSError:
        return None
    said: dict[str, Any] = json.loads(data.partition(b"\r\n\r\n")[2])
    return said
