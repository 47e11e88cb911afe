"""A client of several answers in one stream: it keeps each apart by its index, and checks every mark it is given."""

from __future__ import annotations

import json
import struct
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Chorus:
    """Answers by index. `broken` names every promise that did not hold."""

    headers: dict[str, str] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    text: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    logprobs: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    finish: dict[int, str] = field(default_factory=dict)
    response_ids: set[str] = field(default_factory=set)
    usage: dict[str, int] | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    broken: list[str] = field(default_factory=list)
    marks: int = 0

    def line(self, raw: str, total: int) -> None:
        if raw.startswith("id: "):
            self._mark(raw[4:], total)
        elif raw == "data: [DONE]":
            self.done = True
        elif raw.startswith("data: "):
            self._data(json.loads(raw[6:]))

    def _mark(self, mark: str, total: int) -> None:
        self.marks += 1
        positions, _, digest = mark.partition("-")
        have = [self.ids[i] for i in range(total)]
        if positions != ".".join(str(len(ids)) for ids in have):
            self.broken.append(f"positions {positions} with {[len(i) for i in have]} ids")
        crcs = [zlib.crc32(struct.pack(f"<{len(ids)}I", *ids)) for ids in have]
        if int(digest, 16) != (crcs[0] if total == 1 else zlib.crc32(struct.pack(f"<{total}I", *crcs))):
            self.broken.append(f"digest of {positions} does not fit the ids")

    def _data(self, frame: dict[str, Any]) -> None:
        if "error" in frame:
            self.error = frame["error"]
            return
        self.response_ids.add(frame["id"])
        self.usage = frame.get("usage") or self.usage
        for choice in frame["choices"]:
            number = choice["index"]
            if number in self.finish:
                self.broken.append(f"answer {number} went on after its end")
            self.ids[number] += choice.get("token_ids") or []
            self.text[number] += choice["text"]
            if choice.get("logprobs"):
                self.logprobs[number].append(choice["logprobs"])
            if choice["finish_reason"]:
                self.finish[number] = choice["finish_reason"]

    def told(self, number: int, name: str) -> list[Any]:
        """One list of the log probabilities of an answer, over all its frames."""
        return [one for frame in self.logprobs[number] for one in frame[name]]


async def listen(
    url: str, request: dict[str, Any], total: int, heard: Chorus | None = None, group: str = "", timeout: float = 60.0
) -> Chorus:
    """Run one request for `total` answers to its end; `heard` can be looked at meanwhile."""
    heard = heard if heard is not None else Chorus()
    headers = {"x-infctl-group": group} if group else {}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout), read_bufsize=2**20) as http,
        http.post(f"{url}/v1/completions", json=request, headers=headers) as answer,
    ):
        heard.headers = dict(answer.headers)
        if answer.content_type != "text/event-stream":
            heard.error = (await answer.json()).get("error")
            return heard
        async for raw in answer.content:
            heard.line(raw.decode().rstrip("\n"), total)
    return heard
