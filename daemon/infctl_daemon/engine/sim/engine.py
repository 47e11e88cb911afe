"""The HTTP process's side of the engine: live requests, their answers, and the way to rank 0 and back.

What stays true: a live request id exists once; an abort reaches the scheduler only for an id that is live here, and
matches there by prefix; what has come for a client when its turn comes leaves in one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from infctl_daemon.engine.sim.frames import Answer
from infctl_daemon.engine.sim.intake import Generate, Refused
from infctl_daemon.engine.sim.logprobs import Lists
from infctl_daemon.engine.sim.wire import Messages, PeerGone, dump, read


class Sink(Protocol):
    """Where answers go. `feed` is told of every update, `flush` of the end of a batch of updates."""

    def feed(self, answer: Answer) -> None: ...

    def flush(self) -> None: ...


class Nowhere:
    """For the warm-up and health checks."""

    def feed(self, answer: Answer) -> None: ...

    def flush(self) -> None: ...


class Live:
    """One request between its arrival and its last frame."""

    __slots__ = ("answer", "dispatched", "request", "sink")

    def __init__(self, request: Generate, answer: Answer, sink: Sink) -> None:
        self.request = request
        self.answer = answer
        self.sink = sink
        self.dispatched = False


class Engine:
    """`on_tokens` is told the longest output of each batch (a fault may wait for it)."""

    def __init__(self, weight_version: str, on_tokens: Callable[[int], None]) -> None:
        self.version = weight_version
        self.decode: Callable[[int], str] = str
        self._on_tokens = on_tokens
        self._live: dict[str, Live] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self.last_output = 0.0
        self.ready = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return len(self._live)

    @property
    def dispatched(self) -> int:
        """How many of them the scheduler knows."""
        return sum(live.dispatched for live in self._live.values())

    def uses(self, adapter: str) -> bool:
        """Whether a live request asked for this adapter."""
        return any(live.request.params.get("adapter") == adapter for live in self._live.values())

    async def run(self, control: Any, output: Any) -> None:
        """Reads both sockets until one ends; raises `PeerGone` then."""
        reader, self._writer = await asyncio.open_connection(sock=control)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(lambda: Messages(self._deliver, ended), sock=output)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_control(reader))
            group.create_task(_raise_when(ended))

    async def _read_control(self, reader: asyncio.StreamReader) -> None:
        while True:
            message = await read(reader)
            self.last_output = time.monotonic()
            match message:
                case ("ready",):
                    self.ready.set()
                case (_, number, value):
                    future = self._asked.pop(number, None)
                    if future is not None and not future.done():
                        future.set_result(value)

    def _deliver(self, batch: Iterable[tuple[Any, ...]]) -> None:
        longest = 0
        touched: dict[Sink, None] = {}
        lives = self._live
        for rid, new, added, finish, base, logs in batch:
            live = lives.get(rid)
            if live is None:
                continue
            if finish is not None:
                del lives[rid]
            answer, sink = live.answer, live.sink
            answer.take(new, added, finish, base)
            if logs is not None and answer.logs is not None:
                answer.logs.take(*logs)
            if answer.completion > longest:
                longest = answer.completion
            sink.feed(answer)
            touched[sink] = None
        for sink in touched:
            sink.flush()
        self.last_output = time.monotonic()
        self._on_tokens(longest)

    def send(self, *messages: object) -> None:
        if self._writer is None or self._writer.is_closing():
            raise PeerGone
        self._writer.write(b"".join(map(dump, messages)))

    async def ask(self, kind: str) -> Any:
        """Asks rank 0 and waits for its answer, for as long as it takes (SGLang sets no limit either)."""
        self._number += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[self._number] = future
        self.send((kind, self._number))
        return await future

    # -- requests -------------------------------------------------------------------------------------------

    def enter(self, requests: Iterable[Generate], sink: Sink) -> list[Live]:
        """Makes requests live, all or none; raises `Refused` when an id is live already."""
        entered: list[Live] = []
        wanted = list(requests)
        seen: set[str] = set()
        for request in wanted:
            if request.rid in seen and len(wanted) > 1:
                raise Refused(f"Duplicate request IDs detected within the request: {[request.rid]}")
            if request.rid in self._live:
                raise Refused(f"Duplicate request ID detected: {request.rid}")
            seen.add(request.rid)
        for request in wanted:
            logs = Lists(request.logs, self.decode) if request.logs is not None else None
            live = Live(request, Answer(request.rid, self.version, logs, request.tail), sink)
            self._live[request.rid] = live
            entered.append(live)
        return entered

    def dispatch(self, *lives: Live) -> None:
        """Hands live requests to the scheduler, all in one write: a burst is there before any of it runs."""
        fits = [live for live in lives if live.request.too_long is None]
        for live in lives:
            live.dispatched = True
        if fits:
            self.send(*(("add", live.request.rid, live.request.ids, live.request.params) for live in fits))
        for live in lives:
            if live.request.too_long is not None:
                self._refuse(live)

    def _refuse(self, live: Live) -> None:
        """Ends a request that the scheduler would not take."""
        request = live.request
        del self._live[request.rid]
        finish = {"type": "abort", "message": request.too_long, "status_code": 400, "err_type": "BadRequestError"}
        live.answer.take([0], "", finish, (1, 0, 0))
        live.sink.feed(live.answer)
        live.sink.flush()

    def submit(self, request: Generate, sink: Sink) -> Live:
        """Both at once; raises `Refused`."""
        (live,) = self.enter([request], sink)
        self.dispatch(live)
        return live

    def forget(self, live: Live) -> None:
        """Its answer, if one comes, belongs to nobody."""
        self._live.pop(live.request.rid, None)

    def leave(self, lives: Iterable[Live]) -> None:
        """Ends what is left of a call whose client has gone."""
        for live in lives:
            if live.answer.finish is None:
                if not live.dispatched:
                    self._live.pop(live.request.rid, None)
                with contextlib.suppress(PeerGone):
                    self.abort(live.request.rid)

    def abort(self, rid: str) -> None:
        """Ignores an id that is not live here."""
        if rid and rid in self._live:
            self.send(("abort", rid))

    def abort_all(self) -> None:
        self.send(("abort", ""))

    def label(self, weight_version: str) -> None:
        """Gives the weights another name, in running answers as well."""
        self.version = weight_version
        for live in self._live.values():
            live.answer.label(weight_version)


async def _raise_when(ended: asyncio.Future[None]) -> None:
    await ended
    raise PeerGone
