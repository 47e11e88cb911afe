"""Recovery: what the clients of a group see when one of its ranks is killed or frozen under load.

One group carries all streams, the other is idle. Gap, prefill and net gap are those of every stream; lost and repeated
are counted from the bytes of a separate client process against an uninterrupted run on the other group.
`longest_pause_ms` is the longest of the whole stream: behind the seam an engine may pause a stream again while it
prefills the others.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import psutil

from bench.envelope import envelope, spread
from infctl.adapters.etcd import EtcdStore
from infctl.client.local.cluster import LocalCluster, Running
from infctl.client.local.plan import MODEL, Engine, Layout
from infctl.store.codec import decode
from infctl.store.keys import Keys
from infctl.store.records import EventRecord, FaultNotice, GroupStatus

NAME = "recovery"


async def run(args: list[str], *, quick: bool) -> dict[str, Any]:
    engine = Engine.SGLANG if "--sglang" in args else Engine.SIM
    streams = 1 if engine is Engine.SGLANG else (20 if quick else 100)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="infctl-bench-") as folder:
        cluster = LocalCluster(Layout(Path(folder)), lambda line: None)
        try:
            running = await cluster.start(engine, streams=streams)
            for fault, number in (("kill-rank", signal.SIGKILL), ("freeze-rank", signal.SIGSTOP)):
                for round_ in range(1 if quick else 3):
                    await settled(running)
                    key = f"{engine.value}.{fault}.{round_}"
                    results[key] = await one(running, streams, number, tokens=200 if engine is Engine.SGLANG else 120)
                    sys.stderr.write(f"{key}: {json.dumps(results[key])}\n")
        finally:
            await cluster.stop()
    return envelope(results, ["infctl"])


async def settled(running: Running) -> None:
    """Both groups ready and the machine quiet again."""
    import urllib.request

    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{running.admin}/v1/status", timeout=5) as answer:  # noqa: ASYNC210
            if len(json.load(answer)["routable"]) == 2:
                await asyncio.sleep(1.0)
                return
        await asyncio.sleep(0.3)
    raise TimeoutError("the groups are not ready again")


async def load(running: Running, streams: int, tokens: int, group: str, at: list[int]) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "bench.load", "--url", running.gateway, "--model", MODEL]
    command += ["--streams", str(streams), "--tokens", str(tokens), "--group", group]
    if at:
        command += ["--at", *map(str, at)]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, limit=2**26)


async def one(running: Running, streams: int, number: signal.Signals, tokens: int) -> dict[str, Any]:
    keys = Keys()
    store = EtcdStore([running.endpoint])
    try:
        status = await store.get(keys.group_status("a"))
        assert status is not None
        pid = decode(GroupStatus, status.value).pid
        rank = next(p for p in psutil.Process(pid).children(recursive=True) if "scheduler_TP1" in " ".join(p.cmdline()))
        client = await load(running, streams, tokens, "a", [tokens // 3])
        assert client.stdout is not None
        await asyncio.wait_for(client.stdout.readline(), 60)
        hurt_at, hurt_ms = time.monotonic(), time.time() * 1000.0
        os.kill(rank.pid, number)
        got = json.loads(await asyncio.wait_for(client.stdout.readline(), 120))
        await client.wait()
        second = await load(running, streams, tokens, "b", [])
        assert second.stdout is not None
        truth = json.loads(await asyncio.wait_for(second.stdout.readline(), 120))
        await second.wait()
        await asyncio.sleep(1.0)
        events = [decode(EventRecord, kv.value) for kv in (await store.range(keys.events)).kvs]
        faults = [decode(FaultNotice, kv.value) for kv in (await store.range(keys.faults)).kvs]
    finally:
        await store.close()
    return judge(got, truth, events, faults, hurt_at, hurt_ms)


def judge(
    got: dict[str, Any],
    truth: dict[str, Any],
    events: list[EventRecord],
    faults: list[FaultNotice],
    hurt_at: float,
    hurt_ms: float,
) -> dict[str, Any]:
    mine = {s["id"] for s in got["streams"]}
    moved = {
        e.fields["stream"]: e.fields for e in events if e.kind == "stream.migrating" and e.fields["stream"] in mine
    }
    back = {e.fields["stream"]: e.fields for e in events if e.kind == "stream.resumed" and e.fields["stream"] in mine}
    gaps, nets, prefills, detects, pauses = [], [], [], [], []
    lost = repeated = wrong = unfinished = 0
    for stream, other in zip(got["streams"], truth["streams"], strict=True):
        lost += max(0, len(other["ids"]) - len(stream["ids"]))
        repeated += max(0, len(stream["ids"]) - len(other["ids"]))
        wrong += stream["ids"] != other["ids"] or bool(stream["faults"])
        unfinished += not stream["done"]
        times = stream["times"]
        steps = sorted(b - a for a, b in pairwise(times))
        sid = stream["id"]
        if sid not in back or sid not in moved:
            continue
        # the seam: the last token of the old attempt, the first of the new one
        upto = list(accumulate(stream["counts"]))
        seam = next(i for i, count in enumerate(upto) if count > moved[sid]["committed"])
        gap = (times[seam] - times[seam - 1] - steps[len(steps) // 2]) * 1000.0
        pauses.append((max(b - a for a, b in pairwise(times)) - steps[len(steps) // 2]) * 1000.0)
        gaps.append(gap)
        prefills.append(back[sid]["prefill_ms"])
        nets.append(gap - back[sid]["prefill_ms"])
        detects.append(moved[sid]["at_ms"] - hurt_ms)
    notice = min((f.at_ms - hurt_ms for f in faults if f.at_ms > hurt_ms - 50), default=float("nan"))
    return {
        "streams": len(got["streams"]),
        "migrated": len(back),
        "lost": lost,
        "repeated": repeated,
        "not_equal": wrong,
        "unfinished": unfinished,
        "gap_ms": spread(gaps),
        "net_gap_ms": spread(nets),
        "prefill_ms": spread(prefills),
        "longest_pause_ms": spread(pauses),
        "detect_ms": spread(detects),
        "notice_ms": round(notice, 1),
    }
