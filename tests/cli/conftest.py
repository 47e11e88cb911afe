"""A real etcd with a small cluster written into it, and `infctl` run as a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infctl.adapters.etcd import EtcdStore
from infctl.adapters.etcd_server import EmbeddedEtcd
from infctl.store.codec import Record, encode
from infctl.store.keys import Keys
from infctl.store.records import (
    Condition,
    EndpointRecord,
    EventRecord,
    FaultNotice,
    GatewayRecord,
    Generation,
    GroupSpec,
    GroupStatus,
    NodeLease,
    NodeSpec,
    NodeStatus,
    PoolSpec,
    StreamRecord,
)
from tests.support.command import Run

AT = "2026-01-02T03:04:05.678Z"
K = Keys("golden")
LAUNCH = "a-abcdefgh"


def cluster() -> dict[str, Record]:
    """One of everything, and of some kinds one that is half known."""
    return {
        K.node_lease("n1"): NodeLease(node="n1", boot_id="b", incarnation="i", address="10.0.0.1:8070", version="0.1.0",
                                      started_at=AT),
        K.node_status("n1"): NodeStatus(node="n1", cpus=64, memory_bytes=512 * 2**30, updated_at=AT),
        K.node_spec("n2"): NodeSpec(cordoned=True, reason="fan noise", actor="amy"),
        K.pool_spec("p"): PoolSpec(name="p", model="llama", min_ready=2),
        K.group_spec("a"): GroupSpec(name="a", pool="p", node="n1", engine="sim", model_path="/m", tp=2, max_running=4,
                                     max_queued=8, env={"K": "V"}),
        K.group_spec("new"): GroupSpec(name="new", pool="p", node="n1", engine="sim", model_path="/m", max_running=4,
                                       max_queued=8),
        K.group_status("a"): GroupStatus(group="a", node="n1", phase="ready", generation=3, launch=LAUNCH, pid=4321,
                                         processes=4, restarts=2, updated_at=AT, conditions=[
                                             Condition(type="Live", status="True", reason="Answers", since=AT),
                                             Condition(type="Ready", status="True", reason="Serves", since=AT)]),
        K.group_generation("a"): Generation(generation=3, launch=LAUNCH, owner="n1", at=AT),
        K.endpoint("a"): EndpointRecord(group="a", pool="p", node="n1", generation=3, launch=LAUNCH,
                                        url="http://127.0.0.1:12000", model="llama", revision="r1",
                                        tokenizer="/m/tokenizer.json", tokenizer_digest="d", context_length=4096,
                                        vocab_size=512, max_running=4, max_queued=8, published_at=AT),
        K.fault("a", "a-old"): FaultNotice(fault_id="f1", group="a", launch="a-old", generation=2,
                                           reason="process-exited", at=AT, at_ms=1.0),
        K.gateway("gw"): GatewayRecord(gateway="gw", incarnation="x", url="http://127.0.0.1:8080", streams=1,
                                       snapshot_revision=9, snapshot_age_ms=250.0, started_at=AT, updated_at=AT,
                                       stats={"admin": "http://127.0.0.1:8081"}),
        K.stream("r2"): StreamRecord(stream="r2", owner="gw", term=1, attempt=2, state="DECODING", model="llama",
                                     contract="continuable", contract_reason="endpoint-not-deterministic", group="a",
                                     launch=LAUNCH, prompt_tokens=7, committed=127, migrations=1, replayed_tokens=134,
                                     started_at=AT),
        K.event("e1"): EventRecord(at=AT, kind="launch.failed", subject="group/a", actor="node/n1",
                                   reason="process-exited", fault_id="f1", message="rank 1: signal 9",
                                   fields={"at_ms": 1.0}),
    }  # fmt: skip


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = EmbeddedEtcd(tmp_path_factory.mktemp("etcd"))

    async def start() -> str:
        running = await server.start()
        store = EtcdStore([running.endpoint])
        try:
            for key, record in cluster().items():
                await store.put(key, encode(record))
        finally:
            await store.close()
        return running.endpoint

    try:
        yield asyncio.run(start())
    finally:
        asyncio.run(server.stop())


@pytest.fixture
def infctl(endpoint: str, tmp_path: Path) -> Run:
    """`infctl(*words, stdin=, env=)`: the command as a user runs it, against the golden cluster."""

    def run(*words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("INFCTL_")}
        full = {**clean, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"),
                "INFCTL_ENDPOINTS": endpoint, "INFCTL_CLUSTER": "golden", "TZ": "UTC", **env}  # fmt: skip
        argv = [sys.executable, "-m", "infctl.cli.entry", *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, env=full, input=stdin)

    return run
