"""The node daemon: how soon a dead rank is told, what supervising costs at rest, and what a daemon's own death breaks.

Eight groups of eight simulated ranks on this machine, one daemon without a configuration file, one gateway. Beside each
figure stands what was asked for, and the machine's load: neither is a gate.

`cpu_percent` is the CPU time that the kernel charged to the daemon's process, all its threads, over the time that went
by; not what etcd and the engines spend to answer it. On a busy machine the same work costs more: caches are cold.
`detect_ms` is from the kill to the moment at which the daemon made the fault's notice and sent its transaction,
`committed_ms` to the moment at which a watch showed it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.envelope import envelope, spread
from infctl.adapters.etcd import EtcdStore
from infctl.adapters.etcd_server import EmbeddedEtcd
from infctl.adapters.free_port import free_ports
from infctl.client.local.cluster import program
from infctl.ports.store import Events
from infctl.store.codec import decode, encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, FaultNotice, Generation, GroupSpec, PoolSpec, Restart

NAME = "noded"
MODEL = "m"
GROUPS, RANKS = 8, 8
STREAMS, TOKENS = 200, 160
ASKED: dict[str, dict[str, Any]] = {  # of the full size
    "idle": {"cpu_percent": "<= 1", "rss_mb": "<= 80"},
    "killed-rank": {"detect_ms": "p99 <= 20"},
    "started-at-once": {"missed": 0},
    "daemon-killed": {"streams": STREAMS, "broken": 0},
    "rank-died-meanwhile": {"told_after_ms": "<= 1000"},
}


@dataclass
class Host:
    """etcd, one daemon, one gateway; what a watch has shown of faults: launch → (notice, our epoch milliseconds)."""

    root: Path
    endpoint: str
    store: EtcdStore
    listen: int
    admin: int
    groups: int
    keys: Keys = field(default_factory=Keys)
    faults: dict[str, tuple[FaultNotice, float]] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def spawn(self, name: str, argv: list[str]) -> None:
        with open(self.root / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [*argv, "--endpoints", self.endpoint], stdout=log, stderr=log, start_new_session=True
            )

    def start_daemon(self) -> None:
        argv = [*program("infctl-noded", "infctl_daemon.node.main"), "--node", "n1"]
        self.spawn("noded", [*argv, "--state-dir", str(self.root / "node"), "--run-dir", str(self.root / "run")])

    def start_gateway(self) -> None:
        argv = [*program("infctl-gateway", "infctl_daemon.gateway.main"), "--name", "gw"]
        argv += ["--listen", f"127.0.0.1:{self.listen}", "--admin", f"127.0.0.1:{self.admin}"]
        self.spawn("gateway", [*argv, "--state-dir", str(self.root / "gateway")])

    def kill_daemon(self) -> None:
        self.processes["noded"].kill()
        self.processes["noded"].wait(10)

    async def endpoints(self) -> dict[str, EndpointRecord]:
        found = [decode(EndpointRecord, kv.value) for kv in (await self.store.range(self.keys.endpoints)).kvs]
        return {e.group: e for e in found}

    async def ready(self, old: str = "") -> dict[str, EndpointRecord]:
        """Every group serves, none of them with the launch `old`."""
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            found = await self.endpoints()
            if len(found) == self.groups and all(e.launch != old for e in found.values()):
                return found
            await asyncio.sleep(0.2)
        raise TimeoutError(f"{len(found)} of {self.groups} groups are ready")

    async def registered(self) -> dict[str, str]:
        """The newest launch of every group, by group."""
        found = {}
        for group in (f"g{number}" for number in range(self.groups)):
            if (kv := await self.store.get(self.keys.group_generation(group))) is not None:
                found[group] = decode(Generation, kv.value).launch
        return found

    async def notice(self, launch: str) -> tuple[FaultNotice, float]:
        async with asyncio.timeout(30):
            while launch not in self.faults:
                self.news.clear()
                await self.news.wait()
        return self.faults[launch]

    async def watch_faults(self, revision: int) -> None:
        async with aclosing(self.store.watch(self.keys.faults, start_revision=revision + 1)) as items:
            async for item in items:
                if isinstance(item, Events):
                    seen = time.time() * 1000.0
                    for event in item.events:
                        if event.value is not None:
                            notice = decode(FaultNotice, event.value)
                            self.faults[notice.launch] = (notice, seen)
                    self.news.set()

    def ranks(self, launch: str) -> list[psutil.Process]:
        return self.all_ranks().get(launch, [])

    def all_ranks(self) -> dict[str, list[psutil.Process]]:
        """By launch, whoever's it is."""
        found: dict[str, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if "scheduler_TP" in " ".join(process.cmdline()):
                    found.setdefault(process.environ().get("INFCTL_LAUNCH", ""), []).append(process)
        return found


async def run(args: list[str], *, quick: bool) -> dict[str, Any]:
    groups, kills = (3, 6) if quick else (GROUPS, 40)
    results: dict[str, Any] = {}
    async with host(groups) as here:
        for key, work in (
            ("idle", idle(here, 10.0 if quick else 90.0)),
            ("killed-rank", killed_ranks(here, kills)),
            ("started-at-once", started_at_once(here, 2 if quick else 5)),
            ("daemon-killed", daemon_killed(here, 40 if quick else STREAMS)),
            ("rank-died-meanwhile", died_meanwhile(here, 2 if quick else 5)),
        ):
            results[key] = {**await work, "asked": ASKED[key], "load_1m": round(os.getloadavg()[0], 1)}
            sys.stderr.write(f"{key}: {json.dumps(results[key])}\n")
    return envelope(results, ["infctl"])


@asynccontextmanager
async def host(groups: int) -> AsyncIterator[Host]:
    with tempfile.TemporaryDirectory(prefix="infctl-bench-") as folder:
        root = Path(folder)
        etcd = EmbeddedEtcd(root / "etcd")
        running = await etcd.start()
        store = EtcdStore([running.endpoint])
        here = Host(root, running.endpoint, store, *free_ports(2), groups)
        tasks: list[asyncio.Task[None]] = []
        try:
            await apply(here)
            tasks.append(asyncio.create_task(here.watch_faults((await store.range(here.keys.faults)).revision)))
            here.start_daemon()
            here.start_gateway()
            await here.ready()
            yield here
        finally:
            for task in tasks:
                task.cancel()
            await store.close()
            end(here)
            await etcd.stop()


def end(here: Host) -> None:
    """The daemon that is there now takes its groups with it."""
    if (daemon := here.processes.get("noded")) is not None:
        daemon.kill()
        daemon.wait(10)
        argv = [*program("infctl-noded", "infctl_daemon.node.main"), "--node", "n1", "--stop-groups-on-exit"]
        log = here.root / "noded.log"
        begun = log.stat().st_size
        here.spawn("noded", [*argv, "--state-dir", str(here.root / "node"), "--run-dir", str(here.root / "run")])
        patience = time.monotonic() + 60
        # one that is told to stop before it listens to signals would leave the engines behind
        while b'"starting"' not in log.read_bytes()[begun:] and time.monotonic() < patience:
            time.sleep(0.1)
        time.sleep(3.0)
    for process in here.processes.values():
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.terminate()
            process.wait(60)


async def apply(here: Host) -> None:
    model = here.root / "model"
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "infctl_daemon.engine.sim.model", str(model), stdout=subprocess.DEVNULL
    )
    await asyncio.wait_for(made.wait(), 60)
    await here.store.put(here.keys.pool_spec("p"), encode(PoolSpec(name="p", model=MODEL)))
    for number in range(here.groups):
        spec = GroupSpec(
            name=f"g{number}", pool="p", node="n1", engine="sim", model_path=str(model), tp=RANKS,
            max_running=256, max_queued=64, restart=Restart(first_delay=0.2, max_delay=0.2, attempts=10_000),
            engine_args=["--sim-load-seconds", "0.1"],
        )  # fmt: skip
        await here.store.put(here.keys.group_spec(spec.name), encode(spec))


async def idle(here: Host, seconds: float) -> dict[str, Any]:
    """Nothing happens: what eight groups cost."""
    await asyncio.sleep(5.0)
    process = psutil.Process(here.processes["noded"].pid)
    before, began = process.cpu_times(), time.monotonic()
    await asyncio.sleep(seconds)
    after, took = process.cpu_times(), time.monotonic() - began
    cpu = after.user + after.system - before.user - before.system
    memory = process.memory_full_info()
    return {
        "groups": here.groups,
        "ranks": here.groups * RANKS,
        "cpu_percent": round(100.0 * cpu / took, 2),
        "user_percent": round(100.0 * (after.user - before.user) / took, 2),
        "rss_mb": round(memory.rss / 2**20, 1),
        "pss_mb": round(memory.pss / 2**20, 1),
        "threads": process.num_threads(),
    }


async def killed_ranks(here: Host, count: int) -> dict[str, Any]:
    detect, committed = [], []
    for number in range(count):
        found = await here.ready()
        launch = found[f"g{number % here.groups}"].launch
        victim = random.choice(here.ranks(launch))
        await asyncio.sleep(0.5 + random.random())
        at = time.time() * 1000.0
        os.kill(victim.pid, signal.SIGKILL)
        notice, seen = await here.notice(launch)
        detect.append(notice.at_ms - at)
        committed.append(seen - at)
        await here.ready(launch)
    return {"kills": count, "detect_ms": spread(detect), "committed_ms": spread(committed)}


async def started_at_once(here: Host, rounds: int) -> dict[str, Any]:
    """Every group dies at one moment, so that all start anew together; in each a rank dies as soon as it is there."""
    deaths, missed, told = 0, 0, []
    for _ in range(rounds):
        before = {e.launch for e in (await here.ready()).values()}
        ranks = here.all_ranks()
        dead = {launch: kill_one(ranks[launch]) for launch in before}
        again: dict[str, str] = {}  # by group: its launch that died as it started
        patience = time.monotonic() + 60
        while len(again) < here.groups and time.monotonic() < patience:
            ranks, newest = here.all_ranks(), await here.registered()
            for group, launch in newest.items():
                if launch not in before and group not in again and launch in ranks:
                    again[group] = launch
                    dead[launch] = kill_one(ranks[launch])
        deaths += 2 * here.groups  # a launch that was never seen to start counts as missed, too
        missed += here.groups - len(again)
        for launch, at in dead.items():
            try:
                told.append((await here.notice(launch))[0].at_ms - at)
            except TimeoutError:
                missed += 1
    return {"ranks": here.groups * RANKS, "deaths": deaths, "missed": missed, "detect_ms": spread(told)}


def kill_one(ranks: list[psutil.Process]) -> float:
    """Returns the moment, in epoch milliseconds."""
    at = time.time() * 1000.0
    with suppress(psutil.NoSuchProcess):
        random.choice(ranks).kill()
    return at


async def daemon_killed(here: Host, streams: int) -> dict[str, Any]:
    """The daemon dies by SIGKILL under running streams and is started again at once."""
    before = await here.ready()
    command = [sys.executable, "-m", "bench.load", "--url", f"http://127.0.0.1:{here.listen}", "--model", MODEL]
    command += ["--streams", str(streams), "--tokens", str(TOKENS), "--group", "", "--at", str(TOKENS // 4)]
    client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, limit=2**26)
    assert client.stdout is not None
    await asyncio.wait_for(client.stdout.readline(), 120)
    here.kill_daemon()
    here.start_daemon()
    got = json.loads(await asyncio.wait_for(client.stdout.readline(), 240))
    await client.wait()
    after = await here.ready()
    return {
        "streams": len(got["streams"]),
        "broken": sum(1 for s in got["streams"] if len(s["ids"]) != TOKENS or s.get("error")),
        "launches_kept": sum(after[g].launch == e.launch for g, e in before.items()),
        "generations_kept": sum(after[g].generation == e.generation for g, e in before.items()),
    }


async def died_meanwhile(here: Host, rounds: int) -> dict[str, Any]:
    """A rank dies while no daemon is there: from the start of the next one to the notice."""
    told = []
    for _ in range(rounds):
        launch = (await here.ready())["g0"].launch
        victim = random.choice(here.ranks(launch))
        here.kill_daemon()
        os.kill(victim.pid, signal.SIGKILL)
        await asyncio.sleep(1.0)
        began = time.time() * 1000.0
        here.start_daemon()
        _, seen = await here.notice(launch)
        told.append(seen - began)
        await here.ready(launch)
    return {"rounds": rounds, "told_after_ms": spread(told)}
