"""The bench's client, a process of its own and as cheap as asyncio allows: N streams, the arrival of every frame.

It reads raw HTTP/1.1 (chunked, from our own gateway or a mock), checks positions and digests from the bytes alone, and
prints one JSON object at the end. Progress lines on stdout: `open`, then `at K` when every stream has K tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
import time
import zlib
from typing import Any
from urllib.parse import urlsplit


class StreamClient:
    """One stream: `ids` as received, `times` one for each frame that carried tokens (monotonic seconds)."""

    def __init__(self, request: bytes, notify: Any) -> None:
        self.request = request
        self.notify = notify
        self.id = ""
        self.ids: list[int] = []
        self.times: list[float] = []
        self.counts: list[int] = []
        self.faults: list[str] = []
        self.finish = ""
        self.done = False

    async def run(self, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port, limit=2**22)
        try:
            writer.write(self.request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if " 200 " not in head.partition("\r\n")[0]:
                self.faults.append(head.partition("\r\n")[0])
                return
            self.id = head.partition("x-infctl-request-id: ")[2].partition("\r\n")[0]
            pending = b""
            while True:
                size = int(await reader.readline(), 16)
                chunk = await reader.readexactly(size + 2)
                if not size:
                    return
                pending += chunk[:-2]
                blocks = pending.split(b"\n\n")
                pending = blocks.pop()
                now = time.monotonic()
                for block in blocks:
                    self.block(block, now)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            self.faults.append(f"cut: {error}")
        finally:
            writer.close()

    def block(self, block: bytes, now: float) -> None:
        for line in block.split(b"\n"):
            if line == b"data: [DONE]":
                self.done = True
            elif line.startswith(b"data: "):
                frame = json.loads(line[6:])
                if "error" in frame:
                    self.faults.append(frame["error"]["message"])
                    continue
                for choice in frame["choices"]:
                    fresh = choice.get("token_ids") or []
                    self.finish = choice["finish_reason"] or self.finish
                    if fresh:
                        self.ids += fresh
                        self.times.append(now)
                        self.counts.append(len(fresh))
            elif line.startswith(b"id: "):
                position, _, digest = line[4:].partition(b"-")
                if int(position) != len(self.ids):
                    self.faults.append(f"position {int(position)} with {len(self.ids)} ids")
                elif int(digest, 16) != zlib.crc32(struct.pack(f"<{len(self.ids)}I", *self.ids)):
                    self.faults.append(f"digest at {int(position)}")
        self.notify()


async def run(args: argparse.Namespace) -> dict[str, Any]:
    at = urlsplit(args.url)
    clients: list[StreamClient] = []
    told = 0

    def notify() -> None:
        nonlocal told
        if told < len(args.at) and min(len(c.ids) for c in clients) >= args.at[told]:
            sys.stdout.write(f"at {args.at[told]}\n")
            sys.stdout.flush()
            told += 1

    for number in range(args.streams):
        body = json.dumps(
            {
                "model": args.model,
                "prompt": f"{args.prompt} {number}",
                "max_tokens": args.tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "return_token_ids": True,
            }
        ).encode()
        pin = f"x-infctl-group: {args.group}\r\n" if args.group else ""
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {at.netloc}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n{pin}\r\n"
        )
        clients.append(StreamClient(head.encode() + body, notify))
    began = time.monotonic()
    async with asyncio.timeout(args.timeout):
        await asyncio.gather(*(c.run(at.hostname or "127.0.0.1", at.port or 80) for c in clients))
    return {
        "began": began,
        "ended": time.monotonic(),
        "cpu_s": time.process_time(),
        "streams": [
            {
                "id": c.id,
                "ids": c.ids,
                "times": c.times,
                "counts": c.counts,
                "faults": c.faults,
                "finish": c.finish,
                "done": c.done,
            }
            for c in clients
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", default="The worker streams its answer to client")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--group", default="")
    parser.add_argument("--at", type=int, nargs="*", default=[])
    parser.add_argument("--timeout", type=float, default=120.0)
    args = parser.parse_args()
    result = asyncio.run(run(args))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
