"""Faults on demand: at start (`--sim-fault`), and at run time through POST /fault on the admin port.

What stays true: a fault acts on the real processes (signals) or on what they say, never on a client's bytes; all of
them can be undone except death.

`{"kind": K, ...}`, with `"after": seconds` or `"tokens": n` (once some stream has n output tokens) to wait first:
    die            rank: 0… | "main" | "detokenizer"             SIGKILL
    leave          rank: 0… | "detokenizer"                      exits with code 0, of its own accord
    freeze, thaw   rank: 0… | "main" | "detokenizer"             SIGSTOP, SIGCONT
    refuse         mode: "connection" | "503", seconds (0: until cleared)
    wrong_token    on: bool        the model says something else (a canary notices)
    slow           factor: float   each step takes that many times as long
    ignore_sigterm on: bool
    diagnostics_freeze on: bool    the crash freeze, whatever the environment says
    clear                          undoes refuse, wrong_token, slow, ignore_sigterm, diagnostics_freeze
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

log = logging.getLogger("sim")

SIGNALS = {"die": signal.SIGKILL, "leave": signal.SIGUSR2, "freeze": signal.SIGSTOP, "thaw": signal.SIGCONT}
KINDS = (*SIGNALS, "refuse", "wrong_token", "slow", "ignore_sigterm", "diagnostics_freeze", "clear")


class BadFault(Exception):
    """A fault that means nothing here."""


@dataclass
class Switches:
    """What the other parts look at."""

    refuse_503: bool = False
    ignore_sigterm: bool = False
    diagnostics_freeze: bool = False


def parse(text: str) -> dict[str, Any]:
    """`kind:key=value,key=value` of the command line as the JSON of the admin port."""
    kind, _, rest = text.partition(":")
    out: dict[str, Any] = {"kind": kind}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        out[key] = {"true": True, "false": False}.get(value, value)
    return out


@dataclass
class Faults:
    """`pids` by name ("0", "1", …, "detokenizer", "main"); `tell` reaches rank 0; `listen` opens or closes the port."""

    pids: Mapping[str, int]
    tell: Callable[[object], None]
    listen: Callable[[bool], Awaitable[None]]
    switches: Switches = field(default_factory=Switches)
    _waiting: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def on_tokens(self, longest: int) -> None:
        """Starts the faults that waited for this many tokens."""
        if not self._waiting:
            return
        due = [fault for tokens, fault in self._waiting if longest >= tokens]
        self._waiting = [(tokens, fault) for tokens, fault in self._waiting if longest < tokens]
        for fault in due:
            self._start(fault, 0.0)

    def request(self, fault: Mapping[str, Any]) -> None:
        """Takes a fault in; raises `BadFault`."""
        wanted = dict(fault)
        kind = wanted.get("kind")
        if kind not in KINDS:
            raise BadFault(f"unknown kind {kind!r}, expected one of {', '.join(KINDS)}")
        if kind in SIGNALS and str(wanted.get("rank", "0")) not in self.pids:
            raise BadFault(f"no such process {wanted.get('rank')!r}, expected one of {', '.join(self.pids)}")
        try:
            tokens, after = int(wanted.pop("tokens", 0)), float(wanted.pop("after", 0.0))
            float(wanted.get("factor", 1.0)), float(wanted.get("seconds", 0.0))
        except (TypeError, ValueError) as error:
            raise BadFault(str(error)) from error
        if tokens:
            self._waiting.append((tokens, wanted))
        elif after:
            self._start(wanted, after)
        else:
            self._start(wanted, 0.0)

    def _start(self, fault: dict[str, Any], after: float) -> None:
        task = asyncio.get_running_loop().create_task(self._apply(fault, after))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _apply(self, fault: dict[str, Any], after: float) -> None:
        if after:
            await asyncio.sleep(after)
        kind = fault["kind"]
        on = bool(fault.get("on", True))
        log.warning("fault: %s", fault)
        if kind in SIGNALS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[str(fault.get("rank", "0"))], SIGNALS[kind])
        elif kind == "refuse":
            await self._refuse(str(fault.get("mode", "connection")), float(fault.get("seconds", 0.0)))
        elif kind == "wrong_token":
            self.tell(("wrong", on))
        elif kind == "slow":
            self.tell(("slow", float(fault.get("factor", 1.0))))
        elif kind == "ignore_sigterm":
            self.switches.ignore_sigterm = on
        elif kind == "diagnostics_freeze":
            self.switches.diagnostics_freeze = on
        else:
            self.switches = Switches()
            self._waiting.clear()
            self.tell(("wrong", False))
            self.tell(("slow", 1.0))
            await self.listen(True)

    async def _refuse(self, mode: str, seconds: float) -> None:
        if mode == "503":
            self.switches.refuse_503 = True
        else:
            await self.listen(False)
        if seconds:
            await asyncio.sleep(seconds)
            self.switches.refuse_503 = False
            await self.listen(True)

    def admin_app(self) -> web.Application:
        """POST /fault, and GET /processes with the pid of each."""

        async def fault(request: web.Request) -> web.Response:
            try:
                body = await request.json()
                if not isinstance(body, dict):
                    raise BadFault("expected an object")
                self.request(body)
            except (ValueError, BadFault) as error:
                return web.json_response({"error": str(error)}, status=400)
            return web.json_response({"ok": True})

        async def processes(_: web.Request) -> web.Response:
            return web.json_response(dict(self.pids))

        app = web.Application()
        app.router.add_post("/fault", fault)
        app.router.add_get("/processes", processes)
        return app
