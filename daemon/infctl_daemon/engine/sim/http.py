"""SGLang's HTTP surface over the simulated engine.

What stays true: paths, status codes and bodies are those of the real server for the calls that a gateway, a daemon or
a person makes; a call that needs the scheduler hangs when the scheduler does, one that does not is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from infctl_daemon.engine.sim import frames, info, text
from infctl_daemon.engine.sim.argv import Options
from infctl_daemon.engine.sim.board import Board
from infctl_daemon.engine.sim.engine import Engine
from infctl_daemon.engine.sim.faults import Switches
from infctl_daemon.engine.sim.intake import Limits, Refused, one_token, read_generate
from infctl_daemon.engine.sim.schema import Contract, Malformed, parse_json
from infctl_daemon.engine.sim.tokens import Vocabulary
from infctl_daemon.engine.sim.wire import PeerGone

_ADMIN_PATHS = ("/abort_request", "/flush_cache")
_HEALTH_TIMEOUT = 20.0
_LATE_ABORT = 2.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Status:
    """Life of the server: starting until the warm-up has answered, leaving from SIGTERM on."""

    up: bool = False
    healthy: bool = True
    leaving: bool = False

    @property
    def ready(self) -> bool:
        return self.up and not self.leaving


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _denied(request: web.Request, options: Options) -> bool:
    path = request.path
    if request.method == "OPTIONS" or path.startswith(("/health", "/ready", "/metrics")):
        return False
    key = options.api_key
    if path in _ADMIN_PATHS and options.admin_api_key:
        key = options.admin_api_key
    return bool(key) and request.headers.get("Authorization") != f"Bearer {key}"


class Surface:
    """The routes. `switches` is asked on every call, so that a fault takes effect at once."""

    def __init__(
        self,
        options: Options,
        engine: Engine,
        board: Board,
        status: Status,
        vocab: Vocabulary,
        tokenizer: Any,
        switches: Callable[[], Switches],
    ) -> None:
        self._options = options
        self._engine = engine
        self._board = board
        self._status = status
        self._vocab = vocab
        self._tokenizer = tokenizer
        self._switches = switches
        engine.decode = self._decode_one
        self._name = options.served_model_name or options.model_path
        self._context = options.context_length or vocab.context
        self._limits = Limits(self._context, vocab.size, self._encode, options.deterministic, options.stream_interval)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _decode_one(self, token: int) -> str:
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def app(self) -> web.Application:
        """The application that the engine's port serves."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self._switches().refuse_503:
                return _json(frames.openai_error("Service Unavailable", 503), 503)
            if _denied(request, self._options):
                return _json(b'{"error":"Unauthorized"}', 401)
            try:
                return await handler(request)
            except Malformed as error:
                return _json(frames.malformed(str(error), f"{request.method} {request.path}"), 400)
            except Contract as error:
                return _json(frames.encode({"error": str(error)}), 400)
            except web.HTTPException as error:
                if error.status < 400:
                    raise
                headers = {"allow": error.headers["Allow"]} if "Allow" in error.headers else None
                return web.Response(
                    body=frames.encode({"detail": error.reason}),
                    status=error.status,
                    headers=headers,
                    content_type="application/json",
                )

        app = web.Application(middlewares=[guard], client_max_size=1 << 28)
        route = app.router
        for path in ("/health", "/health_generate"):
            route.add_get(path, self.health)
        for path in ("/ready", "/ping"):
            route.add_get(path, self.flag)
        for path in ("/model_info", "/get_model_info"):
            route.add_get(path, self.model_info)
        for path in ("/server_info", "/get_server_info"):
            route.add_get(path, self.server_info)
        route.add_get("/v1/loads", self.loads)
        route.add_get("/v1/models", self.models)
        route.add_get("/v1/models/{name:.+}", self.one_model)
        for method in ("POST", "PUT"):
            route.add_route(method, "/generate", self.generate)
        route.add_post("/abort_request", self.abort)
        for method in ("GET", "POST"):
            route.add_route(method, "/flush_cache", self.flush)
        for prefix in ("", "/v1"):
            route.add_post(prefix + "/tokenize", self.tokenize)
            route.add_post(prefix + "/detokenize", self.detokenize)
        app.on_response_prepare.append(_server_header)
        return app

    # -- generation -----------------------------------------------------------------------------------------

    async def generate(self, request: web.Request) -> web.StreamResponse:
        raw = await _json_body(request)
        try:
            wanted = read_generate(raw, self._limits)
            live = self._engine.submit(wanted)
        except Refused as error:
            if _asks_stream(raw):
                response = await _open_stream(request)
                await response.write(frames.refusal_frames(str(error)))
                await response.write(frames.DONE)
                self._abort_later(_rid(raw))
                return response
            return _json(frames.refusal(str(error)), 400)
        updates = self._engine.updates(live)
        if not wanted.stream:
            async for _ in updates:
                if request.transport is None:
                    await updates.aclose()  # type: ignore[attr-defined]
                    break
            return self._whole(live.answer)
        response = await _open_stream(request)
        try:
            async for answer in updates:
                await response.write(answer.frame())
            await response.write(frames.DONE)
            await response.write_eof()
        except ConnectionError:
            pass
        finally:
            await updates.aclose()  # type: ignore[attr-defined]
            self._abort_later(wanted.rid)
        return response

    def _abort_later(self, rid: str) -> None:
        """SGLang's guard against lost clients: the end of a stream aborts its rid later, whoever has it then."""

        def late() -> None:
            with contextlib.suppress(PeerGone):
                self._engine.abort(rid)

        asyncio.get_running_loop().call_later(_LATE_ABORT, late)

    def _whole(self, answer: frames.Answer) -> web.Response:
        finish = answer.finish or {}
        status = finish.get("status_code")
        if finish.get("type") == "abort" and status:
            if status == 400:
                return _json(frames.refusal(finish["message"]), 400)
            return _json(frames.openai_error(finish["message"], status), status)
        return _json(answer.body(stamp=True))

    async def abort(self, request: web.Request) -> web.Response:
        body = parse_json(await request.read() or b"{}")
        if not isinstance(body, dict):
            raise Malformed("'type': 'dataclass_type', 'loc': ('body',), 'msg': 'Input should be a dictionary'")
        if body.get("abort_all"):
            self._engine.abort_all()
        elif isinstance(body.get("rid"), str):
            self._engine.abort(body["rid"])
        return web.Response()

    async def flush(self, _: web.Request) -> web.Response:
        idle = await self._engine.ask("flush")
        text = "Cache flushed.\n" if idle else "Cache not flushed: there are running or waiting requests.\n"
        return web.Response(text=text, status=200 if idle else 400)

    # -- health ---------------------------------------------------------------------------------------------

    async def flag(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._status.ready else 503)

    async def health(self, _: web.Request) -> web.Response:
        """A token must come out of the engine after the call began; never faster than a second, as in SGLang."""
        if not self._status.ready:
            return web.Response(status=503)
        began = time.monotonic()
        if self._engine.in_flight == 0:
            self._engine.submit(one_token(f"HEALTH_CHECK_{uuid.uuid4().hex}"))
        while time.monotonic() - began < _HEALTH_TIMEOUT:
            await asyncio.sleep(1.0)
            if self._engine.last_output > began:
                self._status.healthy = True
                return web.Response()
        self._status.healthy = False
        return web.Response(status=503)

    # -- what it tells about itself -------------------------------------------------------------------------

    async def loads(self, _: web.Request) -> web.Response:
        return _json(frames.encode(info.loads(self._options, self._board.read())))

    async def model_info(self, _: web.Request) -> web.Response:
        return _json(frames.encode(info.model_info(self._options, self._name, self._vocab)))

    async def server_info(self, _: web.Request) -> web.Response:
        state = await self._engine.ask("info")
        body = info.server_info(self._options, self._name, self._limits.longest_prompt, state)
        return _json(frames.encode(body))

    async def models(self, _: web.Request) -> web.Response:
        card = info.model_card(self._name, self._context)
        return _json(frames.encode({"object": "list", "data": [card]}))

    async def one_model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name == self._name:
            return _json(frames.encode(info.model_card(name, self._context)))
        return _json(frames.encode(info.model_missing(name)), 404)

    async def tokenize(self, request: web.Request) -> web.Response:
        body = parse_json(await _json_body(request))
        return _json(frames.encode(text.tokenize(body, self._encode, self._context)))

    async def detokenize(self, request: web.Request) -> web.Response:
        body = parse_json(await _json_body(request))
        return _json(frames.encode(text.detokenize(body, self._tokenizer)))


async def _open_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


async def _json_body(request: web.Request) -> bytes:
    if request.content_type != "application/json":
        raise Malformed(
            "'loc': ['header', 'content-type'], "
            "'msg': \"Unsupported Media Type: Only 'application/json' is allowed\", 'type': 'value_error'"
        )
    return await request.read()


async def _server_header(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "uvicorn"


def _rid(raw: bytes) -> str:
    body = parse_json(raw)
    return str(body.get("rid") or "") if isinstance(body, dict) else ""


def _asks_stream(raw: bytes) -> bool:
    body = parse_json(raw)
    return isinstance(body, dict) and body.get("stream") in (True, 1, "yes", "true", "on", "1")
