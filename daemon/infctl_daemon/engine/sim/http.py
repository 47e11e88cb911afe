"""SGLang's HTTP surface over the simulated engine.

What stays true: paths, status codes and bodies are those of the real server for the calls that a gateway, a daemon or
a person makes; a call that needs the scheduler hangs when the scheduler does, one that does not is answered.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from infctl_daemon.engine.sim import frames, info, text
from infctl_daemon.engine.sim.argv import Options
from infctl_daemon.engine.sim.board import Board
from infctl_daemon.engine.sim.control import Control, Gate
from infctl_daemon.engine.sim.engine import Engine, Nowhere
from infctl_daemon.engine.sim.faults import Switches
from infctl_daemon.engine.sim.generate import Generation
from infctl_daemon.engine.sim.intake import Limits, one_token
from infctl_daemon.engine.sim.lora import Adapters
from infctl_daemon.engine.sim.replies import json_body, json_reply
from infctl_daemon.engine.sim.scheduler import HEALTH_PREFIX
from infctl_daemon.engine.sim.schema import Contract, Malformed, parse_json
from infctl_daemon.engine.sim.tokens import Vocabulary

_ADMIN_PATHS = (
    "/abort_request", "/flush_cache", "/pause_generation", "/continue_generation", "/update_weight_version",
    "/load_lora_adapter", "/unload_lora_adapter",
)  # fmt: skip
_HEALTH_TIMEOUT = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT") or 20)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Status:
    """Starting until the warm-up has answered, leaving from SIGTERM on; healthy is what the last /health found."""

    up: bool = False
    healthy: bool = True
    leaving: bool = False

    @property
    def serving(self) -> bool:
        return self.up and not self.leaving

    @property
    def ready(self) -> bool:
        return self.serving and self.healthy


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
        self._adapters = Adapters(options.lora, options.lora_paths, options.max_loaded_loras)
        self._limits = Limits(
            context=self._context,
            vocab=vocab.size,
            encode=self._encode,
            deterministic=options.deterministic,
            stream_interval=options.stream_interval,
            adapters=self._adapters,
            memory=options.max_total_tokens,
        )
        self._gate = Gate()
        self._control = Control(engine, self._gate, self._adapters)
        self._generation = Generation(engine, self._limits, self._gate)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _decode_one(self, token: int) -> str:
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def app(self) -> web.Application:
        """The application that the engine's port serves."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self._switches().refuse_503:
                return json_reply(frames.openai_error("Service Unavailable", 503), 503)
            if _denied(request, self._options):
                return json_reply(b'{"error":"Unauthorized"}', 401)
            try:
                return await handler(request)
            except Malformed as error:
                return json_reply(frames.malformed(str(error), f"{request.method} {request.path}"), 400)
            except text.BadRequest as error:
                return json_reply(frames.bad_request(str(error)), 400)
            except Contract as error:
                return json_reply(frames.encode({"error": str(error)}), 400)
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
        route.add_get("/ready", self.ready)
        route.add_get("/ping", self.ping)
        for path in ("/model_info", "/get_model_info"):
            route.add_get(path, self.model_info)
        for path in ("/server_info", "/get_server_info"):
            route.add_get(path, self.server_info)
        route.add_get("/v1/loads", self.loads)
        route.add_get("/v1/models", self.models)
        route.add_get("/v1/models/{name:.+}", self.one_model)
        for method in ("POST", "PUT"):
            route.add_route(method, "/generate", self._generation.handle)
        self._control.routes(route)
        for prefix in ("", "/v1"):
            route.add_post(prefix + "/tokenize", self.tokenize)
            route.add_post(prefix + "/detokenize", self.detokenize)
        app.on_response_prepare.append(_server_header)
        return app

    # -- health ---------------------------------------------------------------------------------------------

    async def ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._status.ready and not self._gate.shut else 503)

    async def ping(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._status.ready else 503)

    async def health(self, _: web.Request) -> web.Response:
        """A token must come out of the engine after the call began; never faster than a second, as in SGLang. What it
        finds is what /ready and /ping say until the next call.
        """
        if not self._status.serving:
            return web.Response(status=503)
        began = time.monotonic()
        probe = None
        if not self._gate.shut:
            probe = self._engine.submit(one_token(HEALTH_PREFIX + uuid.uuid4().hex), Nowhere())
        try:
            self._status.healthy = await self._answers(began)
        finally:
            if probe is not None:
                self._engine.forget(probe)
        return web.Response(status=200 if self._status.healthy else 503)

    async def _answers(self, began: float) -> bool:
        while time.monotonic() - began < _HEALTH_TIMEOUT:
            await asyncio.sleep(1.0)
            if self._engine.last_output > began:
                return True
        return False

    # -- what it tells about itself -------------------------------------------------------------------------

    async def loads(self, _: web.Request) -> web.Response:
        return json_reply(frames.encode(info.loads(self._options, self._board.read())))

    async def model_info(self, _: web.Request) -> web.Response:
        return json_reply(frames.encode(info.model_info(self._options, self._name, self._vocab, self._engine.version)))

    async def server_info(self, _: web.Request) -> web.Response:
        state = await self._engine.ask("info")
        body = info.server_info(self._options, self._name, self._limits.longest_prompt, state)
        return json_reply(frames.encode(body))

    async def models(self, _: web.Request) -> web.Response:
        cards = [info.model_card(self._name, self._context)]
        cards += [info.adapter_card(name, path, self._name) for name, path in self._adapters.loaded.items()]
        return json_reply(frames.encode({"object": "list", "data": cards}))

    async def one_model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name == self._name:
            return json_reply(frames.encode(info.model_card(name, self._context)))
        return json_reply(frames.encode(info.model_missing(name)), 404)

    async def tokenize(self, request: web.Request) -> web.Response:
        body = parse_json(await json_body(request))
        return json_reply(frames.encode(text.tokenize(body, self._encode, self._context)))

    async def detokenize(self, request: web.Request) -> web.Response:
        body = parse_json(await json_body(request))
        return json_reply(frames.encode(text.detokenize(body, self._tokenizer)))


async def _server_header(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "uvicorn"
