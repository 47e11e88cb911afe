"""The demo's witness: a client process that knows only the bytes it received and an uninterrupted run.

It streams N completions through the gateway, pinned to one group at admission, prints a JSON line for each frame with
its arrival time, then asks the other group for the same completions in one piece and prints its verdict.
`--reference-first` turns the order round: real arithmetic gives equal tokens only where both groups start with equal
caches; the streams then wait for a line on stdin. No other word from the driver reaches it, none its counting.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict
from typing import Any, TextIO

import httpx

from infctl.client.demo.count import Received, compare

_READ_S = 120.0


class Witness:
    """All streams of one run. Lines go out as they come: the driver acts on them."""

    def __init__(self, args: argparse.Namespace, out: TextIO) -> None:
        self._args = args
        self._out = out
        self._received = [Received() for _ in range(args.streams)]

    def body(self, stream: int) -> dict[str, Any]:
        """The request of one stream: greedy, of a fixed length, its prompt unlike the others'."""
        return {
            "model": self._args.model,
            "prompt": self._args.prompt if stream == 0 else f"{self._args.prompt} {stream}",
            "max_tokens": self._args.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }

    async def run(self) -> bool:
        timeout = httpx.Timeout(10.0, read=_READ_S, pool=None)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._args.url, timeout=timeout, limits=limits, trust_env=False) as http:
            references = []
            if self._args.reference_first:
                references = await self._references(http)
                await asyncio.to_thread(sys.stdin.readline)
            ended = await asyncio.gather(*(self._stream(http, i) for i in range(self._args.streams)))
            if not self._args.reference_first:
                references = await self._references(http)
        counts = []
        for received, reference, error in zip(self._received, references, ended, strict=True):
            count = asdict(compare(received, reference or []))
            if error:
                count["faults"] = [*count["faults"], error]
            if reference is None:
                count["faults"] = [*count["faults"], "no uninterrupted run to compare with"]
                count["exact"] = False
            counts.append(count)
        self._say(kind="verdict", streams=counts)
        return all(c["exact"] and not c["lost"] and not c["repeated"] and not c["faults"] for c in counts)

    async def _stream(self, http: httpx.AsyncClient, stream: int) -> str:
        """Read one stream to its end; returns what went wrong with it, "" when it ended as it should."""
        body = {**self.body(stream), "stream": True}
        headers = {"x-infctl-group": self._args.group}
        done = False
        finish = ""
        try:
            async with http.stream("POST", "/v1/completions", json=body, headers=headers) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    return self._end(stream, f"status {response.status_code}: {text[:300]}")
                self._say(kind="opened", stream=stream, id=response.headers.get("x-infctl-request-id", ""))
                data, event_id = "", ""
                async for line in response.aiter_lines():
                    now = time.monotonic()
                    if line.startswith("data:"):
                        data = line[5:].strip()
                    elif line.startswith("id:"):
                        event_id = line[3:].strip()
                    elif line == "" and data:
                        if data == "[DONE]":
                            done = True
                        else:
                            frame = json.loads(data)
                            if "error" in frame:
                                return self._end(stream, str(frame["error"].get("message", frame["error"])))
                            choice = (frame.get("choices") or [{}])[0]
                            finish = choice.get("finish_reason") or finish
                            self._frame(stream, choice, event_id, now)
                        data, event_id = "", ""
        except (httpx.HTTPError, ValueError) as error:
            return self._end(stream, f"{type(error).__name__}: {error}")
        if not done:
            return self._end(stream, "the stream ended without [DONE]")
        if finish != "length":
            return self._end(stream, f"finish_reason {finish!r} where the limit should end it")
        return self._end(stream, "")

    def _frame(self, stream: int, choice: dict[str, Any], event_id: str, now: float) -> None:
        ids = choice.get("token_ids") or []
        received = self._received[stream]
        if ids:
            received.frame(ids, event_id)
        elif event_id:
            received.faults.append(f"a frame without tokens has the id {event_id!r}")
        if ids or choice.get("text"):
            self._say(
                kind="frame", stream=stream, n=len(ids), total=len(received.ids), text=choice.get("text", ""), t=now
            )

    def _end(self, stream: int, error: str) -> str:
        self._say(kind="ended", stream=stream, error=error)
        return error

    async def _references(self, http: httpx.AsyncClient) -> list[list[int] | None]:
        self._say(kind="reference", group=self._args.reference)
        found = await asyncio.gather(*(self._reference(http, i) for i in range(self._args.streams)))
        self._say(kind="referred")
        return list(found)

    async def _reference(self, http: httpx.AsyncClient, stream: int) -> list[int] | None:
        """The same request, in one piece, by the other group."""
        headers = {"x-infctl-group": self._args.reference}
        for _ in range(3):
            try:
                response = await http.post("/v1/completions", json=self.body(stream), headers=headers)
                if response.status_code == 200:
                    ids: list[int] = response.json()["choices"][0]["token_ids"]
                    return ids
                self._say(kind="note", text=f"reference: status {response.status_code}: {response.text[:300]}")
            except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
                self._say(kind="note", text=f"reference: {type(error).__name__}: {error}")
            await asyncio.sleep(1.0)
        return None

    def _say(self, **fields: Any) -> None:
        self._out.write(json.dumps(fields) + "\n")
        self._out.flush()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--group", required=True, help="the group that gets the streams")
    parser.add_argument("--reference", required=True, help="the group of the uninterrupted run")
    parser.add_argument("--reference-first", action="store_true")
    return 0 if asyncio.run(Witness(parser.parse_args(argv), sys.stdout).run()) else 1


if __name__ == "__main__":
    sys.exit(main())
