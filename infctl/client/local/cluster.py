"""Starts, watches and stops one cluster on this machine: etcd, a daemon, a gateway, two groups of two ranks.

Kept true: whatever was started is stopped by `stop`, from this process or a later one, and nothing else is; every
wait has a deadline and says what it waits for; a process that ends early is reported with the end of its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infctl.adapters.etcd import EtcdStore
from infctl.adapters.etcd_cluster import EmbeddedCluster
from infctl.adapters.etcd_server import start_ticks
from infctl.client.apply import apply_specs
from infctl.client.local.containers import remove_containers
from infctl.client.local.plan import GATEWAY, GROUPS, NODE, Engine, Layout, Profile, documents, profile
from infctl.client.local.processes import ProcessBook, launched, send, wait_gone
from infctl.client.specs import to_specs
from infctl.config.load import load_documents
from infctl.domain.errors import DeadlineExceeded, StartFailed, StoreError
from infctl.store.codec import BadRecord, decode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, GatewayRecord, GroupStatus

Say = Callable[[str], None]

_POLL = 0.1
_TELL_EVERY = 5.0
NODED, GATEWAYD = "noded", "gateway"


@dataclass(frozen=True, slots=True)
class Running:
    """Where a cluster that runs can be reached."""

    endpoints: tuple[str, ...]
    gateway: str
    admin: str

    @property
    def endpoint(self) -> str:
        """One member that is as good as any."""
        return self.endpoints[0]


class LocalCluster:
    """One cluster over one folder. `say` gets a line for everything that takes longer than a moment."""

    def __init__(
        self,
        layout: Layout,
        say: Say,
        *,
        listen: str = "127.0.0.1:0",
        cluster: str = "default",
        etcd_members: int = 1,
    ) -> None:
        self.layout = layout
        self.keys = Keys(cluster)
        self.book = ProcessBook(layout.book)
        self.etcd = EmbeddedCluster(layout.etcd(etcd_members), etcd_members)
        self._listen = listen
        self._say = say

    async def start(self, engine: Engine, *, streams: int = 1) -> Running:
        """Bring up what does not run yet and wait until both groups serve. Raises StartFailed and the like."""
        chosen = profile(engine, self.layout, streams=streams)
        self.layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        members = await self.etcd.start()
        endpoints = tuple(member.endpoint for member in members)
        how = "joined" if self.etcd.attached else "started"
        self._say(f"etcd {members[0].version} {how} at {', '.join(endpoints)}")
        if engine is Engine.SIM:
            await self._write_sim_model()
        self._spawn(endpoints)
        store = EtcdStore(endpoints)
        try:
            await self._apply(store, chosen)
            return await self._wait_ready(store, endpoints, chosen)
        finally:
            await store.close()

    async def stop(self, *, hurry: bool = False) -> list[str]:
        """Stop everything of this cluster; returns the names of what ran. Safe to call again."""
        stopped: list[str] = []
        engines = [r for r in launched(self.layout.node_state) if r.alive]
        names = (NODED, GATEWAYD)
        again = 0.1 if hurry else 3.0
        done = await asyncio.gather(
            self.book.stop(NODED, timeout=20.0, again_after=again), self.book.stop(GATEWAYD, timeout=10.0)
        )
        stopped += [name for name, ran in zip(names, done, strict=True) if ran]
        # the daemon ends its groups; what it could not end any more is ended here
        left = [r for r in {*engines, *launched(self.layout.node_state)} if r.alive]
        for record in left:
            send(record, signal.SIGKILL)
        await wait_gone(left, 10.0)
        await remove_containers(self.layout.node_state)
        stopped += await self.etcd.stop()
        if engines:
            stopped.append(f"{len(engines)} engine processes")
        self.book.forget()
        return stopped

    def log_tail(self, name: str, lines: int = 12) -> str:
        try:
            text = (self.layout.logs / f"{name}.log").read_bytes()[-4000:].decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _spawn(self, endpoints: tuple[str, ...]) -> None:
        common = ["--endpoints", ",".join(endpoints), "--cluster", self.keys.cluster]
        if self.book.alive(NODED) is None:
            argv = [
                *program("infctl-noded", "infctl_daemon.node.main"),
                *common,
                "--node",
                NODE,
                "--stop-groups-on-exit",
            ]
            argv += ["--state-dir", str(self.layout.node_state), "--run-dir", str(self.layout.node_run)]
            argv += ["--read-api", "127.0.0.1:0"]
            self.book.spawn(NODED, argv, self.layout.logs / f"{NODED}.log")
        if self.book.alive(GATEWAYD) is None:
            argv = [*program("infctl-gateway", "infctl_daemon.gateway.main"), *common, "--name", GATEWAY]
            argv += ["--listen", self._listen, "--admin", "127.0.0.1:0", "--state-dir", str(self.layout.gateway_state)]
            self.book.spawn(GATEWAYD, argv, self.layout.logs / f"{GATEWAYD}.log")

    async def _write_sim_model(self) -> None:
        if (self.layout.sim_model / "tokenizer.json").exists():
            return
        argv = [sys.executable, "-m", "infctl_daemon.engine.sim.model", str(self.layout.sim_model)]
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            _, err = await asyncio.wait_for(process.communicate(), 60.0)
        except TimeoutError:
            process.kill()
            raise DeadlineExceeded("writing the simulated engine's model took more than 60 s") from None
        if process.returncode:
            raise StartFailed(f"cannot write the simulated engine's model: {err.decode(errors='replace')[-500:]}")

    async def _apply(self, store: EtcdStore, chosen: Profile) -> None:
        # JSON is YAML: the same road as `infctl apply -f`
        sources = [(f"<{d['kind'].lower()} {d['metadata']['name']}>", json.dumps(d)) for d in documents(chosen)]
        async for applied in apply_specs(store, self.keys, to_specs(load_documents(sources))):
            self._say(f"{applied.address} {applied.outcome}")

    async def _wait_ready(self, store: EtcdStore, endpoints: tuple[str, ...], chosen: Profile) -> Running:
        loop = asyncio.get_running_loop()
        began = told = loop.time()
        shown: dict[str, str] = {}
        while True:
            self._check_alive()
            phases, gateway = await self._look(store)
            waited = loop.time() - began
            for name, phase in phases.items():
                if shown.get(name) != phase:
                    shown[name] = phase
                    self._say(f"group/{name} {phase} ({waited:.1f} s)")
                    told = loop.time()
            if gateway is not None and all(phases[g] == "ready" for g in GROUPS) and await _ready(gateway.url):
                return Running(endpoints, gateway.url, str(gateway.stats.get("admin", "")))
            if waited > chosen.start_deadline:
                raise DeadlineExceeded(
                    f"the groups are not ready after {chosen.start_deadline:.0f} s: "
                    + ", ".join(f"group/{g} {phases[g]}" for g in GROUPS),
                    hint=f"logs are in {self.layout.logs} and {self.layout.node_state}",
                )
            if loop.time() - told >= _TELL_EVERY:
                told = loop.time()
                waiting = ", ".join(f"group/{g} {p}" for g, p in phases.items() if p != "ready") or "the gateway"
                self._say(f"waiting for {waiting} ({waited:.0f} s)")
            await asyncio.sleep(_POLL)

    async def _look(self, store: EtcdStore) -> tuple[dict[str, str], GatewayRecord | None]:
        """The phase of each group, `ready` once its endpoint is published; the gateway's record."""
        phases = dict.fromkeys(GROUPS, "waiting")
        gateway = None
        with contextlib.suppress(StoreError, BadRecord):
            for group in GROUPS:
                found = await store.get(self.keys.group_status(group))
                endpoint = await store.get(self.keys.endpoint(group))
                if found is None:
                    continue
                status = decode(GroupStatus, found.value)
                published = decode(EndpointRecord, endpoint.value) if endpoint is not None else None
                if (
                    published is not None
                    and published.state == "ready"
                    and published.launch == status.launch
                    # an endpoint may outlive a killed cluster by its lease: the process must be there, too
                    and start_ticks(status.pid) is not None
                ):
                    phases[group] = "ready"
                elif status.phase != "ready":
                    phases[group] = status.phase + (f": {status.message}" if status.message else "")
            found = await store.get(self.keys.gateway(GATEWAY))
            gateway = decode(GatewayRecord, found.value) if found is not None else None
        return phases, gateway

    def _check_alive(self) -> None:
        for name in (NODED, GATEWAYD):
            if self.book.alive(name) is None:
                raise StartFailed(
                    f"the {name} process ended:\n{self.log_tail(name)}",
                    reason="ProcessEnded",
                    hint=f"the whole log: {self.layout.logs / name}.log",
                )


def program(script: str, module: str) -> list[str]:
    """How a daemon is started: `INFCTL_<NAME>_COMMAND`, the console script beside our interpreter, or its module."""
    named = os.environ.get(f"{script.upper().replace('-', '_')}_COMMAND")
    if named:
        return shlex.split(named)
    beside = Path(sys.executable).parent / script
    return [str(beside)] if os.access(beside, os.X_OK) else [sys.executable, "-m", module]


def free_or_any(port: int) -> str:
    """`127.0.0.1:port` when nobody listens there, else port 0: the gateway takes a free one and publishes it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"
    return "127.0.0.1:0"


async def _ready(url: str) -> bool:
    """GET /ready says 200."""
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(f"GET /ready HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                return (await reader.readline()).split()[1:2] == [b"200"]
            finally:
                writer.close()
    except (OSError, ValueError, TimeoutError):
        return False
