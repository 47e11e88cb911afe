"""The store: how long a put takes to be seen by a watch, and how long a watch is blind when its member dies or freezes.

`blind_ms` is the time from the signal to the first event of a write that was sent after it, through the other members;
where the leader dies the cluster elects one first, and nothing can be written meanwhile. `lease_kept`: a lease of 10 s
on the same connection was never past its deadline and still exists. Loopback, and the disk of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.envelope import envelope, spread
from infctl.adapters.etcd import EtcdStore
from infctl.adapters.etcd_cluster import EmbeddedCluster
from infctl.adapters.etcd_server import RunningEtcd
from infctl.domain.errors import StoreUnavailable
from infctl.domain.lease import Holding
from infctl.ports.store import Alive, Events
from infctl.store.lease_keeper import LeaseKeeper

NAME = "store"
VALUE = b"." * 200
LEASE_S = 10.0


async def run(args: list[str], *, quick: bool) -> dict[str, Any]:
    results: dict[str, Any] = {}
    version = ""
    with tempfile.TemporaryDirectory(prefix="infctl-bench-") as folder:
        for size in (1, 3):
            async with members_of(Path(folder) / f"latency-{size}", size) as cluster:
                running = list(cluster.running.values())
                version = running[0].version
                results[f"members-{size}"] = await latency(running, 500 if quick else 3000)
                tell(results, f"members-{size}")
        rounds = {"kill": 2 if quick else 10, "freeze": 1 if quick else 5}
        for fault, number in (("kill", signal.SIGKILL), ("freeze", signal.SIGSTOP)):
            for used in ("follower", "leader"):
                async with members_of(Path(folder) / f"{fault}-{used}", 3) as cluster:
                    found = [await failover(cluster, number, used) for _ in range(rounds[fault])]
                results[f"{fault}-{used}"] = {
                    "blind_ms": spread([blind for blind, _, _ in found]),
                    "lease_kept": all(kept for _, kept, _ in found),
                    "lost_or_repeated": sum(wrong for _, _, wrong in found),
                    "rounds": len(found),
                }
                tell(results, f"{fault}-{used}")
    report = envelope(results, ["infctl"])
    report["versions"]["etcd"] = version
    return report


def tell(results: dict[str, Any], key: str) -> None:
    sys.stderr.write(f"{key}: {json.dumps(results[key])}\n")


@contextlib.asynccontextmanager
async def members_of(folder: Path, size: int) -> AsyncIterator[EmbeddedCluster]:
    cluster = EmbeddedCluster(folder, size)
    try:
        await cluster.start()
        yield cluster
    finally:
        for running in cluster.running.values():
            os.kill(running.pid, signal.SIGKILL)
        await cluster.stop()


async def latency(running: list[RunningEtcd], count: int) -> dict[str, Any]:
    """One writer, one watcher, one after the other: the shortest way from a put to its event."""
    endpoints = [member.endpoint for member in running]
    writer, store = EtcdStore(endpoints), EtcdStore(endpoints)
    seen = asyncio.Event()
    at = 0.0
    try:
        watch = store.watch("b/", start_revision=1 + await writer.put("b/k", VALUE))

        async def read() -> None:
            nonlocal at
            async for item in watch:
                if isinstance(item, Events):
                    at = time.perf_counter()
                    seen.set()

        task = asyncio.create_task(read())
        puts, events = [], []
        for n in range(count + 50):
            seen.clear()
            began = time.perf_counter()
            await writer.put("b/k", VALUE)
            put = time.perf_counter()
            await asyncio.wait_for(seen.wait(), 5)
            if n >= 50:  # warm by now
                puts.append((put - began) * 1000)
                events.append((at - began) * 1000)
        await watch.aclose()
        await task
    finally:
        await store.close()
        await writer.close()
    return {"put_to_event_ms": spread(events, 2), "put_ms": spread(puts, 2), "puts": count}


async def leader_of(running: list[RunningEtcd]) -> RunningEtcd:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        for member in running:
            store = EtcdStore([member.endpoint])
            try:
                status = await store.status(timeout=1)
                if status.leader == status.member_id:
                    return member
            except StoreUnavailable:
                continue
            finally:
                await store.close()
        await asyncio.sleep(0.05)
    raise TimeoutError("no etcd member leads")


async def failover(cluster: EmbeddedCluster, number: signal.Signals, role: str) -> tuple[float, bool, int]:
    """Milliseconds without a view, whether the lease was kept, and how many events were lost or came twice."""
    running = list(cluster.running.values())
    leader = await leader_of(running)
    used = leader if role == "leader" else next(m for m in running if m is not leader)
    rest = [member.endpoint for member in running if member is not used]
    store, writer = EtcdStore([used.endpoint, *rest]), EtcdStore(rest)
    uncertain: list[Holding] = []
    keeper = LeaseKeeper(store, LEASE_S, on_change=uncertain.append)
    confirmed: dict[int, float] = {}  # revision: when it was sent
    seen: list[tuple[int, float]] = []
    tasks: list[asyncio.Task[None]] = []
    fresh = asyncio.Event()
    try:
        await keeper.start()
        start = await store.put("b/lease", b"", lease=keeper.lease_id)
        watch = store.watch("b/k", start_revision=start)

        async def read() -> None:
            async for item in watch:
                if isinstance(item, Alive):
                    fresh.set()
                if isinstance(item, Events):
                    seen.extend((event.mod_revision, time.monotonic()) for event in item.events)

        async def put() -> None:
            sent_at = time.monotonic()
            with contextlib.suppress(StoreUnavailable):
                confirmed[await writer.put("b/k", VALUE, timeout=1.0)] = sent_at

        async def write() -> None:  # open loop: a write that hangs holds up no other
            async with asyncio.TaskGroup() as writes:
                while True:
                    writes.create_task(put())
                    await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(read())]
        await asyncio.wait_for(fresh.wait(), 5)
        tasks.append(asyncio.create_task(write()))
        await asyncio.sleep(1.0 + 0.4 * (time.monotonic() % 1))  # at no special moment between two pings
        hurt_at = time.monotonic()
        os.kill(used.pid, number)
        first = None
        while first is None and time.monotonic() < hurt_at + 20:
            await asyncio.sleep(0.02)
            first = next((at for revision, at in seen if confirmed.get(revision, 0.0) > hurt_at), None)
        if number == signal.SIGSTOP:
            await asyncio.sleep(max(0.0, hurt_at + LEASE_S + 1.0 - time.monotonic()))
        kept = not uncertain and (await store.get("b/lease", timeout=5)) is not None
        if number == signal.SIGSTOP:
            os.kill(used.pid, signal.SIGCONT)
        else:
            await cluster.start()
        tasks[1].cancel()
        await asyncio.sleep(1.0)
        revisions = [revision for revision, _ in seen]
        wrong = len(set(confirmed) - set(revisions)) + len(revisions) - len(set(revisions))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await keeper.stop(revoke=False)
        await store.close()
        await writer.close()
    return (first - hurt_at) * 1000 if first is not None else float("nan"), kept, wrong
