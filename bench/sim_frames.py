"""How many stream frames a second the simulated engine puts out for one core, all of its processes together.

One engine of one rank without simulated costs; a client process reads raw bytes and counts frames. The engine is held
on one core and the client on another where there are two, so `frames_per_s` is what one core gives;
`frames_per_cpu_s` divides by the engine's CPU time instead of the clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.envelope import envelope
from infctl.adapters.free_port import free_port

_TICK = os.sysconf("SC_CLK_TCK")
_READY_SECONDS = 20.0
_RUN_SECONDS = 300.0


def _tree(pid: int) -> list[int]:
    """A process and its children."""
    found = [pid]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def _cpu_seconds(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICK


async def _one(port: int, number: int, tokens: int) -> int:
    """Frames of one stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    body = {
        "input_ids": [300, 301, number % 250 + 20],
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
    }
    raw = json.dumps(body).encode()
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(raw) + raw)
    count, tail = 0, b""
    while not tail.endswith(b"0\r\n\r\n"):
        data = await reader.read(1 << 20)
        if not data:
            raise ConnectionError("the engine closed a stream")
        count += (tail + data).count(b'data: {"text"') - tail.count(b'data: {"text"')
        tail = (tail + data)[-16:]
    writer.close()
    return count


async def client(port: int, streams: int, rounds: int, tokens: int) -> int:
    total = 0
    for turn in range(rounds):
        total += sum(await asyncio.gather(*(_one(port, turn * streams + i, tokens) for i in range(streams))))
    return total


def _pin(pid: int, core: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(pid, {cores[core]})


def _start(model: Path, port: int, log: Path, *flags: str) -> subprocess.Popen[bytes]:
    words = ["--model-path", str(model), "--port", str(port), "--max-running-requests", "4096"]
    knobs = ["--sim-load-seconds", "0", "--sim-decode-seconds", "0", "--sim-first-token-seconds", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "infctl_daemon.engine.sim", *words, *knobs, *flags],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    deadline = time.monotonic() + _READY_SECONDS
    while b"ready to roll" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise TimeoutError(log.read_text(errors="replace")[-2000:])
        time.sleep(0.05)
    return process


def _measure(model: Path, folder: Path, steps: int, streams: int, rounds: int, tokens: int) -> dict[str, float]:
    port = free_port()
    process = _start(model, port, folder / f"{port}.log", "--sim-steps-per-turn", str(steps))
    try:
        pids = _tree(process.pid)
        for pid in pids:
            _pin(pid, 0)
        used, began = _cpu_seconds(pids), time.monotonic()
        words = [sys.executable, "-m", "bench.sim_frames", str(port), str(streams), str(rounds), str(tokens)]
        out = subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=_RUN_SECONDS)
        wall, cpu = time.monotonic() - began, _cpu_seconds(pids) - used
        frames, inner = json.loads(out.stdout)
        return {
            "frames": frames,
            "frames_per_stream": round(frames / (streams * rounds), 1),
            "frames_per_s": round(frames / inner),
            "frames_per_cpu_s": round(frames / cpu),
            "cpu_of_wall": round(cpu / wall, 2),
        }
    finally:
        process.kill()
        process.wait(timeout=10)


async def run(argv: list[str], *, quick: bool) -> dict[str, Any]:
    from infctl_daemon.engine.sim.model import write_model

    streams, rounds, tokens = 200, 2 if quick else 10, 100
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "model")
        for steps in (1, 4, 10):
            results[f"{steps}_frames_a_write"] = await asyncio.to_thread(
                _measure, folder / "model", folder, steps, streams, rounds, tokens
            )
    return envelope(results, ["sim"])


def main() -> None:
    port, streams, rounds, tokens = map(int, sys.argv[1:])
    _pin(0, 1)
    began = time.monotonic()
    frames = asyncio.run(client(port, streams, rounds, tokens))
    print(json.dumps([frames, time.monotonic() - began]))


if __name__ == "__main__":
    main()
