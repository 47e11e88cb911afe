"""Asks one engine how it is. Every question has a deadline; what is not a definite answer is `NotReady`.

An engine that is full says so: `Rejected` with the reason `Shed`, which is no fault of anybody.

Only cheap questions: `/ready` and `/model_info` are answered by the HTTP process alone, `/v1/loads` from shared memory.
`/server_info` is never asked: it waits for ever on a stuck scheduler and makes later askers wait behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from infctl.domain.errors import NotReady, Rejected
from infctl_daemon.engine.kept import KeptGets

SHED = "Shed"


@dataclass(frozen=True, slots=True)
class Loads:
    """The schedulers' own time stamps, one for each DP rank (they move while it works), and the requests they hold."""

    stamps: tuple[float, ...]
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished generation."""

    ids: tuple[int, ...]
    text: str
    weight_version: str


class Engine:
    """One launch's HTTP API, from the daemon's loop.

    What is only read goes through `kept`, whose connections stay open: one that has broken is replaced and the question
    put again, so a dead engine is seen as well as before. A generation takes a new connection of `fresh` each time, as
    clients do: an engine that lets nobody new in must not look well. Without `kept` every question does.
    """

    def __init__(self, fresh: aiohttp.ClientSession, kept: KeptGets | None, url: str, api_key: str) -> None:
        self._fresh = fresh
        self._kept = kept
        self.url = url
        self._headers = {"authorization": f"Bearer {api_key}"}
        at = urlsplit(url)
        self._at = at.hostname or "", at.port or 80
        self._head = f" HTTP/1.1\r\nhost: {at.netloc}\r\nauthorization: Bearer {api_key}\r\n\r\n".encode()

    async def _ask(self, method: str, path: str, timeout: float, body: Any = None) -> tuple[int, Any]:
        """Status and decoded JSON (None where there is none). Raises NotReady."""
        try:
            if method == "GET" and self._kept is not None:
                head = f"GET {path}".encode() + self._head
                status, raw = await self._kept.get(*self._at, head, timeout)
            else:
                limit = aiohttp.ClientTimeout(total=timeout)
                async with self._fresh.request(
                    method, self.url + path, json=body, headers=self._headers, timeout=limit
                ) as response:
                    status, raw = response.status, await response.read()
        except TimeoutError:
            raise NotReady(f"{path}: no answer within {timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NotReady(f"{path}: {type(error).__name__}: {error}") from None
        try:
            return status, msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            return status, None

    async def answers(self, timeout: float = 1.0) -> int:
        """The status of `/ready`: whether there is an engine at all, whatever it says. Raises NotReady.

        `/health` would not do: at rank 0 it waits for a generation.
        """
        return (await self._ask("GET", "/ready", timeout))[0]

    async def part_loaded(self, timeout: float = 1.0) -> bool:
        """Of node-rank 1 and up: its server, which says 200 whatever is, starts when its ranks have loaded."""
        try:
            return (await self._ask("GET", "/health", timeout))[0] == 200
        except NotReady:
            return False

    async def ready(self, timeout: float = 1.0) -> bool:
        """The engine has loaded and warmed up. Says nothing about a stuck scheduler."""
        try:
            status, _ = await self._ask("GET", "/ready", timeout)
        except NotReady:
            return False
        return status == 200

    async def weight_version(self, timeout: float = 2.0) -> str:
        """What the engine says it serves. Raises NotReady or Rejected."""
        status, data = await self._ask("GET", "/model_info", timeout)
        if status != 200 or not isinstance(data, dict):
            raise Rejected(f"/model_info: status {status}")
        return str(data.get("weight_version", ""))

    async def loads(self, timeout: float = 0.5) -> Loads:
        """`/v1/loads`. Raises NotReady: no answer within half a second is a blocked HTTP loop."""
        status, data = await self._ask("GET", "/v1/loads?include=core", timeout)
        loads = data.get("loads") if isinstance(data, dict) else None
        if status != 200 or not isinstance(loads, list):
            raise NotReady(f"/v1/loads: status {status}")
        ranks = [one for one in loads if isinstance(one, dict)]
        return Loads(
            tuple(float(one.get("timestamp") or 0.0) for one in ranks),
            sum(int(one.get("num_running_reqs") or 0) for one in ranks),
            sum(int(one.get("num_waiting_reqs") or 0) for one in ranks),
        )

    async def in_flight(self, timeout: float = 1.0) -> tuple[int, tuple[float, ...]]:
        """Requests that the schedulers say they have, running or queued anywhere, and their time stamps.

        The counts are as old as the stamps: busy schedulers write them every few batches. Raises NotReady.
        """
        status, data = await self._ask("GET", "/v1/loads?include=core,queues", timeout)
        loads = data.get("loads") if isinstance(data, dict) else None
        if status != 200 or not isinstance(loads, list):
            raise NotReady(f"/v1/loads: status {status}")
        ranks = [one for one in loads if isinstance(one, dict)]
        return sum(map(_requests, ranks)), tuple(float(one.get("timestamp") or 0.0) for one in ranks)

    async def generate(self, input_ids: list[int], tokens: int, rid: str, timeout: float) -> Answer:
        """`tokens` greedy tokens after `input_ids`. Raises NotReady (no answer) or Rejected (the answer is no)."""
        body = {
            "rid": rid,
            "input_ids": input_ids,
            "stream": False,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        }
        status, data = await self._ask("POST", "/generate", timeout, body)
        if status != 200 or not isinstance(data, dict):
            raise Rejected(f"/generate: status {status}: {str(data)[:200]}", reason=SHED if status == 503 else None)
        meta = data.get("meta_info") or {}
        finish = meta.get("finish_reason") or {}
        if isinstance(finish, dict) and finish.get("type") == "abort":
            shed = SHED if finish.get("status_code") == 503 else None
            raise Rejected(f"/generate: aborted: {finish.get('message', '')}", reason=shed)
        ids = data.get("output_ids")
        if not isinstance(ids, list) or not ids:
            raise Rejected("/generate: no output_ids")
        return Answer(tuple(int(i) for i in ids), str(data.get("text", "")), str(meta.get("weight_version", "")))


def _requests(rank: dict[str, Any]) -> int:
    """One rank's requests; `queues.waiting` is the same as `num_waiting_reqs`."""
    queues = rank.get("queues")
    others = [n for name, n in queues.items() if name != "waiting"] if isinstance(queues, dict) else []
    counts = [rank.get("num_running_reqs"), rank.get("num_waiting_reqs"), *others]
    return sum(int(n) for n in counts if isinstance(n, int | float))
