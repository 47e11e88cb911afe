"""A client that believes only the bytes it receives: it checks ids, positions and digests, and notes when each came."""

from __future__ import annotations

import asyncio
import json
import struct
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Seen:
    """One stream as its client saw it. `broken` names every promise that did not hold."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    response_ids: set[str] = field(default_factory=set)
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    usage: dict[str, int] | None = None
    error: dict[str, Any] | None = None
    comments: list[str] = field(default_factory=list)
    done: bool = False
    broken: list[str] = field(default_factory=list)
    position: int = 0

    @property
    def stream(self) -> str:
        return self.headers.get("x-infctl-request-id", "")

    def gap_over(self, moment: float) -> float:
        """Seconds from the last token before `moment` to the first after it, less the median spacing."""
        before = max((t for t in self.times if t <= moment), default=moment)
        after = min((t for t in self.times if t > moment), default=float("inf"))
        spacing = sorted(b - a for a, b in zip(self.times, self.times[1:], strict=False))
        return after - before - (spacing[len(spacing) // 2] if spacing else 0.0)

    def line(self, raw: str) -> None:
        if raw.startswith("data: "):
            self._data(raw[6:])
        elif raw.startswith("id: "):
            position, _, digest = raw[4:].partition("-")
            if int(position) <= self.position:
                self.broken.append(f"position {position} after {self.position}")
            self.position = int(position)
            if self.position != len(self.ids):
                self.broken.append(f"position {position} with {len(self.ids)} ids")
            if int(digest, 16) != zlib.crc32(struct.pack(f"<{len(self.ids)}I", *self.ids)):
                self.broken.append(f"digest of {position} does not fit its ids")
        elif raw.startswith(": "):
            self.comments.append(raw[2:])

    def _data(self, data: str) -> None:
        if data == "[DONE]":
            self.done = True
            return
        frame = json.loads(data)
        if "error" in frame:
            self.error = frame["error"]
            return
        self.response_ids.add(frame["id"])
        for choice in frame["choices"]:
            if choice.get("token_ids"):
                self.ids += choice["token_ids"]
                self.times.append(time.monotonic())
            self.text += choice["text"]
            self.finish = choice["finish_reason"] or self.finish
        self.usage = frame.get("usage") or self.usage


def body(prompt: str | list[int] = "The worker streams", tokens: int = 60, **more: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        **more,
    }


async def watch(
    url: str, request: dict[str, Any], seen: Seen | None = None, group: str = "", timeout: float = 60.0
) -> Seen:
    """Run one request to its end; `seen` can be looked at meanwhile."""
    seen = seen if seen is not None else Seen()
    headers = {"x-infctl-group": group} if group else {}
    limit = aiohttp.ClientTimeout(total=timeout)
    async with (
        aiohttp.ClientSession(timeout=limit, read_bufsize=2**20) as http,
        http.post(f"{url}/v1/completions", json=request, headers=headers) as answer,
    ):
        seen.status, seen.headers = answer.status, dict(answer.headers)
        if answer.content_type != "text/event-stream":
            seen.error = (await answer.json()).get("error")
            return seen
        async for raw in answer.content:
            seen.line(raw.decode().rstrip("\n"))
    return seen


async def until(condition: Any, timeout: float, what: str, every: float = 0.02) -> Any:
    """Wait until `condition()` is true (it may be a coroutine function); fails with `what` at the deadline."""
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        await asyncio.sleep(every)
