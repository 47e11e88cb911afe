"""Calls to an engine, and its answers taken apart: raw frames as they came, with the time of each."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.conformance.engines import Engine

_numbers = itertools.count(1)

PROMPT = "the worker sends tokens before the deadline"


def fresh_rid(name: str = "case") -> str:
    return f"{name}-{next(_numbers):05d}"


def body(rid: str | None = None, *, max_new: int = 8, stream: bool = True, **more: Any) -> dict[str, Any]:
    """A greedy request. `ids=` replaces the text; other keywords are sampling parameters."""
    ids = more.pop("ids", None)
    text = more.pop("text", PROMPT)
    params = {"temperature": 0, "max_new_tokens": max_new, "ignore_eos": True, **more}
    prompt = {"text": text} if ids is None else {"input_ids": ids}
    return {"rid": rid or fresh_rid(), **prompt, "stream": stream, "sampling_params": params}


@dataclass
class Stream:
    """What one streaming call gave. `broken` when the connection ended without the end of the body."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    raw: list[bytes] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    broken: bool = False
    ended: float = 0.0

    @property
    def frames(self) -> list[dict[str, Any]]:
        return [json.loads(f[len(b"data: ") :]) for f in self.raw if f != b"data: [DONE]"]

    @property
    def done(self) -> bool:
        return bool(self.raw) and self.raw[-1] == b"data: [DONE]"

    @property
    def last(self) -> dict[str, Any]:
        return self.frames[-1]

    @property
    def ids(self) -> list[int]:
        return list(self.last["output_ids"])

    @property
    def finish(self) -> Any:
        return self.last["meta_info"]["finish_reason"]


OnFrame = Callable[[int], Awaitable[None]]


async def stream(
    engine: Engine, request: dict[str, Any], *, on_frame: OnFrame | None = None, seconds: float = 60.0
) -> Stream:
    """Reads a whole stream; `on_frame(n)` runs after the n-th frame."""
    out = Stream()
    async with asyncio.timeout(seconds), engine.client() as client:
        try:
            async with client.stream("POST", "/generate", json=request) as response:
                out.status = response.status_code
                out.headers = dict(response.headers)
                buffer = b""
                async for chunk in response.aiter_raw():
                    buffer += chunk
                    while b"\n\n" in buffer:
                        frame, _, buffer = buffer.partition(b"\n\n")
                        out.raw.append(frame)
                        out.at.append(time.monotonic())
                        if on_frame:
                            await on_frame(len(out.raw))
                assert buffer == b"", buffer
        except (httpx.RemoteProtocolError, httpx.ReadError):
            out.broken = True
        out.ended = time.monotonic()
    return out


async def call(engine: Engine, request: dict[str, Any]) -> httpx.Response:
    async with engine.client() as client:
        return await client.post("/generate", json=request)


async def loads(engine: Engine) -> dict[str, Any]:
    async with engine.client(timeout=3.0) as client:
        answer = (await client.get("/v1/loads")).json()
    return dict(answer["loads"][0])


async def until(check: Callable[[], Awaitable[bool]], seconds: float, what: str) -> None:
    """Waits for `check`; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not await check():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        await asyncio.sleep(0.05)


async def quiet(engine: Engine) -> None:
    """Waits until nothing runs or waits in the engine."""

    async def idle() -> bool:
        load = await loads(engine)
        return load["num_running_reqs"] == 0 and load["num_waiting_reqs"] == 0

    await until(idle, 30, "the engine is idle")
