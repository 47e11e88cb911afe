"""A whole cluster on this machine for tests: etcd, the node daemon, a gateway, groups of simulated engines.

All are real processes started by the commands users run; specs go in through `infctl apply`. Whatever a test kills or
freezes, leaving the context ends every process that was started here, by pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml

from infctl.adapters.etcd import EtcdStore, TlsFiles
from infctl.store.codec import Record, decode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, EventRecord, FaultNotice, GroupStatus, StreamRecord
from infctl_daemon.engine.sim.model import write_model
from infctl_daemon.proc import kill
from infctl_daemon.proc.state_file import StateFile
from tests.support.code import ENGINE_ENV
from tests.support.containers import remove_cgroups
from tests.support.etcd import BINARIES, LiveCluster, LiveEtcd
from tests.support.left_behind import Footprint, footprint, nothing_left, sweep
from tests.support.witness import until

BIN = Path(sys.executable).parent


class Cluster:
    """Handles to look at the cluster and to hurt it."""

    def __init__(self, folder: Path, etcd: Any, record: bool, tls: TlsFiles | None = None) -> None:
        self.folder = folder
        self.etcd = etcd
        self.keys = Keys()
        self.store = EtcdStore(etcd.endpoints, tls=tls)
        self.env = {**os.environ, "INFCTL_ENDPOINTS": ",".join(etcd.endpoints), "HOME": str(folder / "home")}
        self.env["XDG_STATE_HOME"] = self.env["XDG_CACHE_HOME"] = self.env["XDG_CONFIG_HOME"] = str(folder / "home")
        self.record_dir = folder / "record"
        if record:
            self.env["INFCTL_RECORD"] = str(self.record_dir)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.gateway_flags: list[str] = []
        self.daemon_flags: list[str] = []
        self.stops_groups = True
        self.ports: dict[str, int] = {}  # of groups that are not to choose theirs
        self.url = ""
        self.admin = ""

    def spawn(self, name: str, command: Sequence[str]) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=self.env, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def start_daemon(self) -> None:
        command = [str(BIN / "infctl-noded"), "--node", "n1", "--state-dir", str(self.folder / "node")]
        command += ["--stop-groups-on-exit"] if self.stops_groups else []
        command += ["--run-dir", str(self.folder / "run"), "--read-api", "127.0.0.1:0"]
        self.spawn("noded", [*command, *self.daemon_flags])

    async def start_gateway(self, command: Sequence[str] = ()) -> None:
        before = self.log("gateway").count("gateway.listening") if (self.folder / "gateway.log").exists() else 0
        run = list(command or [str(BIN / "infctl-gateway")])
        run = [*run, "--name", "gw1", "--state-dir", str(self.folder / "gateway"), *self.gateway_flags]
        self.spawn("gateway", [*run, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        await until(lambda: self.log("gateway").count("gateway.listening") > before, 15, "the gateway listens")
        line = [one for one in self.log("gateway").splitlines() if "gateway.listening" in one][-1]
        self.url = re.search(r'"url": "([^"]+)"', line)[1]  # type: ignore[index]
        self.admin = re.search(r'"admin": "([^"]+)"', line)[1]  # type: ignore[index]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    async def cli(self, *arguments: str, timeout: float = 20.0) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            str(BIN / "infctl"), *arguments, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(timeout):
            out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def apply_groups(self, names: Sequence[str], *, tp: int, sim: Sequence[str], **spec: object) -> None:
        model = self.folder / "model"
        if not model.exists():
            write_model(model)
        head = {"apiVersion": "infctl/v1"}
        documents: list[dict[str, object]] = [
            {**head, "kind": "Pool", "metadata": {"name": "tiny"}, "spec": {"model": "tiny"}}
        ]
        for name in names:
            body = {
                "pool": "tiny",
                "node": "n1",
                "engine": "sim",
                "modelPath": str(model),
                "tensorParallel": tp,
                "maxRunning": 256,
                "maxQueued": 64,
                "engineArgs": list(sim),
                **spec,
            }
            if body["engine"] == "sim":
                body["engineArgs"], body["env"] = [*sim, "--sim-named-memory"], ENGINE_ENV
            if name in self.ports:
                body["port"] = self.ports[name]
            documents.append({**head, "kind": "Group", "metadata": {"name": name}, "spec": body})
        file = self.folder / "specs.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        code, out, err = await self.cli("apply", "-f", str(file))
        assert code == 0, out + err

    # looking
    async def one(self, key: str, kind: type[Record]) -> Record | None:
        found = await self.store.get(key)
        return decode(kind, found.value) if found else None

    async def endpoint(self, group: str) -> EndpointRecord | None:
        found = await self.store.get(self.keys.endpoint(group))
        return decode(EndpointRecord, found.value) if found else None

    async def ready(self, *groups: str, timeout: float = 30.0, above: int = 0) -> list[EndpointRecord]:
        """Wait until every group has an endpoint (of a generation above `above`) and the gateway routes to it."""

        async def routed() -> list[EndpointRecord] | None:
            found = [await self.endpoint(g) for g in groups]
            good = [e for e in found if e is not None and e.generation > above]
            if len(good) < len(groups):
                return None
            status = await self.get(self.admin + "/v1/status") if self.admin else {"routable": [e.launch for e in good]}
            return good if {e.launch for e in good} <= set(status["routable"]) else None

        result: list[EndpointRecord] = await until(routed, timeout, f"{', '.join(groups)} ready", every=0.05)
        return result

    async def get(self, url: str) -> dict[str, object]:
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            result: dict[str, object] = await answer.json()
            return result

    async def status(self, group: str) -> GroupStatus:
        found = await self.store.get(self.keys.group_status(group))
        assert found is not None
        return decode(GroupStatus, found.value)

    async def events(self, kind: str = "") -> list[EventRecord]:
        listed = await self.store.range(self.keys.events)
        every = [decode(EventRecord, kv.value) for kv in listed.kvs]
        return [e for e in every if not kind or e.kind == kind]

    async def faults(self) -> list[FaultNotice]:
        return [decode(FaultNotice, kv.value) for kv in (await self.store.range(self.keys.faults)).kvs]

    async def stream(self, stream: str) -> StreamRecord | None:
        found = await self.store.get(self.keys.stream(stream))
        return decode(StreamRecord, found.value) if found else None

    def footprint(self, group: str) -> Footprint:
        return footprint(self.folder / "node", self.folder / "run", group)

    async def nothing_left(self, seen: Footprint, seconds: float = 5.0) -> None:
        await nothing_left(self.store, self.keys, seen, seconds)

    # hurting
    async def tree(self, group: str) -> list[psutil.Process]:
        """The processes of the group's launch: main first."""
        main = psutil.Process((await self.status(group)).pid)
        return [main, *main.children(recursive=True)]

    async def rank(self, group: str, rank: int) -> psutil.Process:
        for process in await self.tree(group):
            with contextlib.suppress(psutil.NoSuchProcess):
                if re.search(rf"scheduler_TP{rank}\b", " ".join(process.cmdline())):
                    return process
        raise AssertionError(f"{group} has no rank {rank}")

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await self.store.close()
        for name in ("gateway", "noded"):
            if (process := self.processes.get(name)) is not None and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.terminate()
        deadline = time.monotonic() + 20
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        state = StateFile(self.folder / "node")
        for group in state.groups():
            if processes := state.leftovers(group):
                kill.kill_recorded(processes[0].ident, frozenset(p.ident for p in processes))
        remove_cgroups(self.folder / "node")
        sweep(self.folder / "node")


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    groups: Sequence[str] = ("a", "b"),
    *,
    tp: int = 2,
    sim: Sequence[str] = (),
    record: bool = False,
    gateway: Sequence[str] = (),
    etcd_members: int = 1,
    stops_groups: bool = True,
    patience: float = 30.0,
    ports: Mapping[str, int] | None = None,
    **spec: object,
) -> AsyncIterator[Cluster]:
    """A cluster with ready groups; `cluster.etcd` is a `LiveCluster` where there are three members; extra keywords go
    into every group's spec; `patience` is for the start of all of it."""
    kind: Any = LiveEtcd if etcd_members == 1 else LiveCluster
    etcd = await kind(BINARIES[0], folder / "etcd").start()
    cluster = Cluster(folder, etcd, record)
    cluster.stops_groups = stops_groups
    cluster.ports = dict(ports or {})
    try:
        cluster.start_daemon()
        await cluster.start_gateway(gateway)
        await cluster.apply_groups(groups, tp=tp, sim=sim, **spec)
        await cluster.ready(*groups, timeout=patience)
        yield cluster
    finally:
        await cluster.close()
        await etcd.close()
