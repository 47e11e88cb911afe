"""Open-loop traffic from raw sockets: new requests at a steady rate, whatever became of those before.

Cheap on purpose (no HTTP library): on two cores the clients must not be what is measured. A request counts as served
only when its stream is whole: status 200, the last position is the number of tokens asked for, then `[DONE]`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Traffic:
    """`failures` holds (seconds since the start, what the client saw)."""

    url: str
    rate: float
    tokens: int = 3
    sent: int = 0
    served: int = 0
    slowest: float = 0.0
    failures: list[tuple[float, str]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until `stop`; then the requests under way are waited for."""
        under_way: set[asyncio.Task[None]] = set()
        due = time.monotonic()
        while not self._stop.is_set():
            task = asyncio.create_task(self._one(self.sent))
            self.sent += 1
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            due += 1.0 / self.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*under_way)

    def stop(self) -> None:
        self._stop.set()

    async def _one(self, number: int) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(20):
                answer = await self._ask(number)
        except (OSError, TimeoutError) as error:
            answer = repr(error).encode()
        self.slowest = max(self.slowest, time.monotonic() - began)
        head, _, rest = answer.partition(b"\r\n\r\n")
        last = rest.rpartition(b"id: ")[2].partition(b"-")[0]
        if head.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in rest and last == b"%d" % self.tokens:
            self.served += 1
        else:
            self.failures.append((began - self.began, answer[-400:].decode(errors="replace")))

    async def _ask(self, number: int) -> bytes:
        at = urlsplit(self.url)
        body = json.dumps(
            {
                "model": "tiny",
                "prompt": [7 + number % 200, 8, 9],
                "max_tokens": self.tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        try:
            writer.write(head.encode() + body)
            return await reader.read(-1)
        finally:
            writer.close()


@asynccontextmanager
async def traffic(url: str, rate: float) -> AsyncIterator[Traffic]:
    """Traffic for as long as the block runs."""
    made = Traffic(url, rate)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        made.stop()
        await task
