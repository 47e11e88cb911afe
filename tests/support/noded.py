"""A real node daemon over a real etcd, with the simulated engine: started for one test, nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from infctl.adapters.etcd import EtcdStore
from infctl.ports.store import Delete, Put
from infctl.store.codec import decode, encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, FaultNotice, GroupSpec, GroupStatus, PoolSpec, Restart
from infctl_daemon.proc import procfs
from infctl_daemon.proc.state_file import GroupState, Process, StateFile
from tests.support.code import ENGINE_ENV
from tests.support.containers import remove_cgroups
from tests.support.etcd import BINARIES, LiveEtcd, live_etcd, store_on
from tests.support.left_behind import Footprint, footprint, nothing_left, sweep

T = TypeVar("T")

QUICK = Restart(first_delay=0.2, max_delay=0.5, attempts=20, load_deadline=30.0, canary_deadline=20.0)
LIMITS = {"loadsPollSeconds": 0.4, "stallSeconds": 1.2, "probeSeconds": 0.3, "leaseTtlSeconds": 3}


async def until(what: Callable[[], Awaitable[T | None]], seconds: float = 25.0, why: str = "") -> T:
    """The first true answer, or a failed test."""
    end = time.monotonic() + seconds
    while True:
        got = await what()
        if got:
            return got
        assert time.monotonic() < end, f"not within {seconds:g} s: {why or what}"
        await asyncio.sleep(0.03)


def model(folder: Path) -> Path:
    """A model folder that the simulated engine and the canary can use: small, and the same each time."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"vocab_size": len(alphabet), "max_position_embeddings": 4096, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights of the simulated engine")
    return folder


class Noded:
    """One daemon process; its files survive it."""

    def __init__(self, folder: Path, endpoint: str, node: str = "n1", limits: dict[str, float] | None = None) -> None:
        self.folder, self.endpoint, self.node = folder, endpoint, node
        self.limits = {**LIMITS, **(limits or {})}
        self.state = StateFile(folder / "state")
        self.log = folder / "noded.log"
        self.record = folder / "record"
        self.process: subprocess.Popen[bytes] | None = None
        self.read_api: dict[str, Any] = {"listen": "127.0.0.1:0"}
        self.flags: list[str] = []
        self.inside: list[str] = []  # words before the command, by which it runs elsewhere
        self._seen: set[Process] = set()

    def start(self, *, stop_groups: bool = True, crash_at: str = "") -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "node.yaml"
        head = {"apiVersion": "infctl/v1", "kind": "NodeConfig"}
        config.write_text(json.dumps({**head, "limits": self.limits, "readApi": self.read_api}))
        argv = [sys.executable, "-m", "infctl_daemon.node.main", "--config", str(config), "--node", self.node]
        argv += ["--endpoints", self.endpoint, "--log-level", "debug"]
        argv += ["--state-dir", str(self.folder / "state"), "--run-dir", str(self.folder / "run")]
        argv += ["--stop-groups-on-exit"] if stop_groups else []
        argv = [*self.inside, *argv, *self.flags]
        env = {**os.environ, "INFCTL_RECORD": str(self.record), "INFCTL_CRASH_AT": crash_at}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(argv, stderr=log, env=env)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self, seconds: float = 30.0) -> int:
        """Its exit code."""
        assert self.process is not None
        process = self.process

        async def code() -> tuple[int] | None:
            return None if process.poll() is None else (process.returncode,)

        return (await until(code, seconds, "the daemon ends"))[0]

    def known(self, group: str) -> GroupState:
        state = self.state.read(group)
        self._seen.update(state.processes)
        return state

    def pid(self, group: str, title: str) -> int:
        """The process of the group's launch whose title ends so; "main" is the first."""
        processes = self.known(group).processes
        if title == "main":
            return processes[0].pid
        return next(p.pid for p in processes if p.title.endswith(title))

    def alive(self) -> list[Process]:
        """Processes of any launch seen by the test that still run."""
        return [p for p in self._seen if procfs.is_alive(p.ident)]

    async def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.terminate()
            try:
                await self.ended(15.0)
            finally:
                if self.process.poll() is None:
                    self.process.kill()
                    self.process.wait(5.0)
        for group in self.state.groups():
            self.known(group)
        for process in self.alive():
            os.kill(process.pid, signal.SIGKILL)
        remove_cgroups(self.folder / "state")
        sweep(self.folder / "state")


class Cluster:
    """Etcd, one daemon and our own view of the store."""

    def __init__(self, etcd: LiveEtcd, store: EtcdStore, noded: Noded, model_path: Path) -> None:
        self.etcd, self.store, self.noded, self.model_path = etcd, store, noded, model_path
        self.keys = Keys("default")

    def spec(self, name: str = "a", **other: Any) -> GroupSpec:
        base = GroupSpec(
            name=name,
            pool="p",
            node="n1",
            engine="sim",
            model_path=str(self.model_path),
            tp=2,
            max_running=4,
            max_queued=4,
            engine_args=["--sim-load-seconds", "0.1", "--sim-decode-seconds", "0.01"],
            restart=QUICK,
        )
        spec = msgspec.structs.replace(base, **other)
        # what is killed leaves names in /dev/shm, as SGLang's processes do
        args = [*spec.engine_args, "--sim-named-memory"]
        return msgspec.structs.replace(spec, engine_args=args, env={**ENGINE_ENV, **spec.env})

    def footprint(self, group: str = "a") -> Footprint:
        return footprint(self.noded.folder / "state", self.noded.folder / "run", group)

    async def nothing_left(self, seen: Footprint, seconds: float = 5.0) -> None:
        await nothing_left(self.store, self.keys, seen, seconds)

    async def apply(self, spec: GroupSpec) -> None:
        pool = PoolSpec(name="p", model="tiny")
        await self.store.put(self.keys.pool_spec("p"), encode(pool))
        await self.store.put(self.keys.group_spec(spec.name), encode(spec))

    async def delete(self, group: str) -> None:
        await self.store.txn([], [Delete(self.keys.group_spec(group))])

    async def endpoint(self, group: str = "a") -> EndpointRecord | None:
        kv = await self.store.get(self.keys.endpoint(group))
        return decode(EndpointRecord, kv.value) if kv else None

    async def ready(self, group: str = "a", not_launch: str = "", seconds: float = 25.0) -> EndpointRecord:
        """The endpoint, of another launch than `not_launch`; its processes are noted."""

        async def look() -> EndpointRecord | None:
            found = await self.endpoint(group)
            return found if found is not None and found.launch != not_launch else None

        found = await until(look, seconds, f"endpoint of {group}")
        self.noded.known(group)
        return found

    async def fault(self, launch: str, group: str = "a", seconds: float = 25.0) -> FaultNotice:
        async def look() -> FaultNotice | None:
            kv = await self.store.get(self.keys.fault(group, launch))
            return decode(FaultNotice, kv.value) if kv else None

        return await until(look, seconds, f"fault notice of {launch}")

    async def put(self, key: str, value: msgspec.Struct, lease: int = 0) -> None:
        await self.store.txn([], [Put(key, msgspec.json.encode(value), lease)])

    async def status(self, group: str = "a", phase: str = "", reason: str = "", seconds: float = 25.0) -> GroupStatus:
        """The group's status once it has this phase and this reason."""

        async def look() -> GroupStatus | None:
            kv = await self.store.get(self.keys.group_status(group))
            found = decode(GroupStatus, kv.value) if kv else None
            fits = found and (not phase or found.phase == phase) and (not reason or found.reason == reason)
            return found if fits else None

        return await until(look, seconds, f"status {phase} {reason} of {group}")


@asynccontextmanager
async def node_cluster(folder: Path, *, start: bool = True) -> AsyncIterator[Cluster]:
    async with live_etcd(BINARIES[0], folder / "etcd") as etcd, store_on(etcd.endpoint) as store:
        noded = Noded(folder / "n1", etcd.endpoint)
        try:
            if start:
                noded.start()
            yield Cluster(etcd, store, noded, model(folder / "model"))
        finally:
            await noded.close()
