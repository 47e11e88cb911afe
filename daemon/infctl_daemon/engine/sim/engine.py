"""The HTTP process's side of the engine: live requests, their answers, and the way to rank 0 and back.

What stays true: a live request id exists once; an abort reaches the scheduler only for an id that is live here, and
matches there by prefix; a reader that is slow skips frames and gets the newest.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from infctl_daemon.engine.sim.frames import Answer
from infctl_daemon.engine.sim.intake import Generate, Refused
from infctl_daemon.engine.sim.logprobs import Lists
from infctl_daemon.engine.sim.wire import PeerGone, dump, read


class Live:
    """One request between submission and its last frame."""

    __slots__ = ("answer", "changed")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.changed = asyncio.Event()


class Engine:
    """`on_tokens` is told the longest output of each batch (a fault may wait for it)."""

    def __init__(
        self, weight_version: str, on_tokens: Callable[[int], None], decode: Callable[[int], str] = str
    ) -> None:
        self._version = weight_version
        self._on_tokens = on_tokens
        self.decode = decode
        self._live: dict[str, Live] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self.last_output = 0.0
        self.ready = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return len(self._live)

    async def run(self, control: Any, output: Any) -> None:
        """Reads both sockets until one ends; raises `PeerGone` then."""
        reader, self._writer = await asyncio.open_connection(sock=control)
        results, _ = await asyncio.open_connection(sock=output, limit=1 << 20)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_control(reader))
            group.create_task(self._read_output(results))

    async def _read_control(self, reader: asyncio.StreamReader) -> None:
        while True:
            match await read(reader):
                case ("ready",):
                    self.ready.set()
                case (_, number, value):
                    future = self._asked.pop(number, None)
                    if future is not None and not future.done():
                        future.set_result(value)

    async def _read_output(self, reader: asyncio.StreamReader) -> None:
        while True:
            longest = 0
            for rid, new, added, finish, prompt_tokens, cached, logs in await read(reader):
                live = self._live.get(rid)
                if live is None:
                    continue
                if finish is not None:
                    del self._live[rid]
                live.answer.take(new, added, finish, prompt_tokens, cached)
                if logs is not None and live.answer.logs is not None:
                    live.answer.logs.take(*logs)
                longest = max(longest, live.answer.completion)
                live.changed.set()
            self.last_output = time.monotonic()
            self._on_tokens(longest)

    def send(self, message: object) -> None:
        if self._writer is None or self._writer.is_closing():
            raise PeerGone
        self._writer.write(dump(message))

    async def ask(self, kind: str) -> Any:
        """Asks rank 0 and waits for its answer, for as long as it takes (SGLang sets no limit either)."""
        self._number += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[self._number] = future
        self.send((kind, self._number))
        return await future

    def submit(self, request: Generate) -> Live:
        """Raises `Refused` when the id is live."""
        if request.rid in self._live:
            raise Refused(f"Duplicate request ID detected: {request.rid}")
        logs = Lists(request.logs, self.decode) if request.logs is not None else None
        live = self._live[request.rid] = Live(Answer(request.rid, self._version, logs))
        if request.too_long is not None:
            del self._live[request.rid]
            finish = {"type": "abort", "message": request.too_long, "status_code": 400, "err_type": "BadRequestError"}
            live.answer.take([0], "", finish, 1, 0)
            live.changed.set()
        else:
            self.send(("add", request.rid, request.ids, request.params))
        return live

    def abort(self, rid: str) -> None:
        """Ignores an id that is not live here."""
        if rid and rid in self._live:
            self.send(("abort", rid))

    def abort_all(self) -> None:
        self.send(("abort", ""))

    async def updates(self, live: Live) -> AsyncIterator[Answer]:
        """The answer each time it has grown, until it is complete. Leaving early aborts the request."""
        try:
            while True:
                await live.changed.wait()
                live.changed.clear()
                yield live.answer
                if live.answer.finish is not None:
                    return
        finally:
            if live.answer.finish is None:
                with contextlib.suppress(PeerGone):
                    self.abort(live.answer.rid)
