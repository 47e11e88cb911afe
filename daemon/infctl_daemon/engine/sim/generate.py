"""POST /generate: from a body to a stream or one answer.

What stays true: the order in which SGLang looks at a call (schema, request ids, pause, refusals), so a paused engine
answers a stream with headers and silence; the end of any stream aborts its ids two seconds later, whoever has them
then; a client that leaves is noticed at once in a stream, after up to four seconds otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aiohttp import web

from infctl_daemon.engine.sim import frames
from infctl_daemon.engine.sim.batch import Crashed, Plan, plan
from infctl_daemon.engine.sim.control import Gate
from infctl_daemon.engine.sim.engine import Engine, Live
from infctl_daemon.engine.sim.intake import Limits, Refused
from infctl_daemon.engine.sim.replies import json_body, json_reply
from infctl_daemon.engine.sim.schema import read_body
from infctl_daemon.engine.sim.stream import EventStream, Whole
from infctl_daemon.engine.sim.wire import PeerGone

_LATE_ABORT = 2.0
_NOTICE = 4.0


class Generation:
    """The handler and what it needs."""

    def __init__(self, engine: Engine, limits: Limits, gate: Gate) -> None:
        self._engine = engine
        self._limits = limits
        self._gate = gate

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = read_body(await json_body(request))
        return await (self._stream(request, body) if body["stream"] else self._answer(body))

    async def _dispatch(self, wanted: Plan, lives: list[Live]) -> None:
        """Lets requests pass once nothing is paused; those that prime the cache go before the others."""
        await self._gate.passed()
        if wanted.first:
            primed = Whole(len(wanted.first))
            for request in wanted.first:
                self._engine.submit(request, primed)
            await primed.done.wait()
        self._engine.dispatch(*lives)

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        out = EventStream(request)
        lives: list[Live] = []
        rids = [body["rid"]] if isinstance(body.get("rid"), str) else []
        try:
            out.start()
            wanted = plan(body, self._limits)
            out.expect(len(wanted.requests))
            rids = [r.rid for r in wanted.requests]
            lives = self._engine.enter(wanted.requests, out)
            await self._dispatch(wanted, lives)
            out.flush()
            await out.run()
        except Refused as error:
            out.say(frames.refusal_frame(str(error)))
        except Crashed:
            out.break_off()
        except ConnectionError:
            pass
        finally:
            self._engine.leave(lives)
            for rid in rids:
                self._abort_later(rid)
        return out

    async def _answer(self, body: dict[str, Any]) -> web.Response:
        lives: list[Live] = []
        try:
            wanted = plan(body, self._limits)
            if not wanted.requests:
                return json_reply(b"[]")
            whole = Whole(len(wanted.requests))
            lives = self._engine.enter(wanted.requests, whole)
            await self._dispatch(wanted, lives)
            await whole.done.wait()
        except Refused as error:
            self._engine.leave(lives)
            return json_reply(frames.refusal(str(error)), 400)
        except Crashed:
            response = web.Response(text="Internal Server Error", status=500)
            response.force_close()
            return response
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(_NOTICE, self._engine.leave, lives)
            raise
        return _whole(lives, wanted.single)

    def _abort_later(self, rid: str) -> None:
        def late() -> None:
            with contextlib.suppress(PeerGone):
                self._engine.abort(rid)

        asyncio.get_running_loop().call_later(_LATE_ABORT, late)


def _whole(lives: list[Live], single: bool) -> web.Response:
    for live in lives:
        finish = live.answer.finish or {}
        status = finish.get("status_code")
        if finish.get("type") == "abort" and status:
            if status == 400:
                return json_reply(frames.refusal(finish["message"]), 400)
            return json_reply(frames.openai_error(finish["message"], status), status)
    bodies = [live.answer.body(stamp=True) for live in lives]
    return json_reply(bodies[0] if single else b"[" + b",".join(bodies) + b"]")
