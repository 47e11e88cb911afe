"""SGLang's HTTP surface over the simulated engine.

What stays true: paths, status codes and bodies are those of the real server for the calls that a gateway, a daemon or
a person makes; a call that needs the scheduler hangs when the scheduler does, one that does not is answered.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from infctl_daemon.engine.sim import frames
from infctl_daemon.engine.sim.argv import Options
from infctl_daemon.engine.sim.board import Board
from infctl_daemon.engine.sim.engine import Engine
from infctl_daemon.engine.sim.faults import Switches
from infctl_daemon.engine.sim.intake import (
    Contract,
    Limits,
    Malformed,
    Refused,
    one_token,
    parse_json,
    read_generate,
)
from infctl_daemon.engine.sim.model import render_chat
from infctl_daemon.engine.sim.tokens import Vocabulary

_ADMIN_PATHS = ("/abort_request", "/flush_cache")
_VERSION = "0.5.23"
_HEALTH_TIMEOUT = 20.0

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
        self._name = options.served_model_name or options.model_path
        self._context = options.context_length or vocab.context
        self._limits = Limits(self._context, vocab.size, self._encode, options.deterministic, options.stream_interval)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

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
                body = frames.refusal_frames(str(error)) + frames.DONE
                return web.Response(body=body, content_type="text/event-stream", charset="utf-8")
            return _json(frames.refusal(str(error)), 400)
        updates = self._engine.updates(live)
        if not wanted.stream:
            async for _ in updates:
                if request.transport is None:
                    await updates.aclose()  # type: ignore[attr-defined]
                    break
            return self._whole(live.answer)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            async for answer in updates:
                await response.write(answer.frame())
            await response.write(frames.DONE)
            await response.write_eof()
        except ConnectionError:
            pass
        finally:
            await updates.aclose()  # type: ignore[attr-defined]
        return response

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

    async def loads(self, _: web.Request) -> web.Response:
        now = self._board.read()
        options = self._options
        total = options.max_total_tokens
        load = {
            "timestamp": now.timestamp,
            "dp_rank": 0,
            "num_running_reqs": now.running,
            "num_waiting_reqs": now.waiting,
            "num_waiting_uncached_tokens": 0,
            "num_used_tokens": now.used_tokens,
            "num_total_tokens": now.used_tokens,
            "num_active_tokens": now.used_tokens,
            "num_prealloc_ready_tokens": 0,
            "max_total_num_tokens": total,
            "max_running_requests": options.max_running_requests,
            "token_usage": round(now.used_tokens / total, 4),
            "gen_throughput": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "total_prefill_uncached_tokens": now.prefilled,
            "total_prefill_busy_us": int(now.prefilled / options.prefill_rate * 1e6),
            "decode_moments": [float(now.steps)] * 6,
            "memory": {"weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": total},
            "disaggregation": {
                "mode": "null",
                "prefill_bootstrap_queue_reqs": 0,
                "prefill_inflight_queue_reqs": 0,
                "decode_prealloc_queue_reqs": 0,
                "decode_transfer_queue_reqs": 0,
                "decode_retracted_queue_reqs": 0,
                "kv_transfer_speed_gb_s": 0.0,
                "kv_transfer_latency_ms": 0.0,
            },
            "queues": {"waiting": now.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
        }
        body = {
            "timestamp": datetime.now(UTC).isoformat(timespec="microseconds"),
            "version": _VERSION,
            "accelerator": None,
            "num_accelerators": options.world,
            "loads": [load] if now.timestamp else [],
        }
        return _json(frames.encode(body))

    # -- who is it ------------------------------------------------------------------------------------------

    async def model_info(self, _: web.Request) -> web.Response:
        options = self._options
        body = {
            "model_path": options.model_path,
            "served_model_name": self._name,
            "tokenizer_path": options.model_path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": options.weight_version,
            "load_format": "auto",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": self._vocab.model_type,
            "architectures": self._vocab.architectures,
        }
        return _json(frames.encode(body))

    async def server_info(self, _: web.Request) -> web.Response:
        state = await self._engine.ask("info")
        options = self._options
        body = {
            "model_path": options.model_path,
            "tokenizer_path": options.model_path,
            "served_model_name": self._name,
            "weight_version": options.weight_version,
            "host": options.host,
            "port": options.port,
            "tp_size": options.world,
            "nnodes": options.nnodes,
            "node_rank": options.node_rank,
            "dist_init_addr": options.dist_init_addr,
            "random_seed": options.random_seed,
            "context_length": options.context_length,
            "max_running_requests": options.max_running_requests,
            "max_queued_requests": options.max_queued_requests,
            "max_total_tokens": options.max_total_tokens,
            "stream_interval": options.stream_interval,
            "watchdog_timeout": options.watchdog_timeout,
            "enable_deterministic_inference": options.deterministic,
            "incremental_streaming_output": False,
            "scheduler_info": {
                "max_total_num_tokens": options.max_total_tokens,
                "max_req_input_len": self._limits.longest_prompt,
            },
            "internal_states": [
                {"effective_max_running_requests_per_dp": options.max_running_requests, "last_gen_throughput": 0.0}
                | state
            ],
            "version": _VERSION,
            "frontend": "sim",
        }
        return _json(frames.encode(body))

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": self._name,
            "parent": None,
            "max_model_len": self._context,
        }

    async def models(self, _: web.Request) -> web.Response:
        return _json(frames.encode({"object": "list", "data": [self._card()]}))

    async def one_model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name == self._name:
            return _json(frames.encode(self._card()))
        error = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return _json(frames.encode({"error": error}), 404)

    # -- text -----------------------------------------------------------------------------------------------

    async def tokenize(self, request: web.Request) -> web.Response:
        body = parse_json(await _json_body(request))
        prompt, messages = (body.get("prompt"), body.get("messages")) if isinstance(body, dict) else (None, None)
        if (prompt is None) == (messages is None):
            raise Malformed(
                "'type': 'value_error', 'loc': ('body',), "
                "'msg': \"Value error, Exactly one of 'prompt' or 'messages' must be provided.\""
            )
        tokens: list[Any]
        if isinstance(messages, list):
            text = render_chat(messages, body.get("tools"), body.get("add_generation_prompt", True))
            tokens = self._encode(text)
        elif isinstance(prompt, str):
            tokens = self._encode(prompt)
        elif isinstance(prompt, list) and all(isinstance(p, str) for p in prompt):
            tokens = [self._encode(p) for p in prompt]
        else:
            raise Malformed(
                f"'type': 'string_type', 'loc': ('body', 'prompt', 'str'), "
                f"'msg': 'Input should be a valid string', 'input': {prompt!r}"
            )
        many = bool(tokens) and isinstance(tokens[0], list)
        count = list(map(len, tokens)) if many else len(tokens)
        return _json(frames.encode({"tokens": tokens, "count": count, "max_model_len": self._context}))

    async def detokenize(self, request: web.Request) -> web.Response:
        body = parse_json(await _json_body(request))
        tokens = body.get("tokens") if isinstance(body, dict) else None
        if not isinstance(tokens, list) or not all(isinstance(t, int | list) for t in tokens):
            raise Malformed(
                f"'type': 'list_type', 'loc': ('body', 'tokens', 'list[int]'), "
                f"'msg': 'Input should be a valid list', 'input': {tokens!r}"
            )
        skip = body.get("skip_special_tokens", True)
        if tokens and isinstance(tokens[0], list):
            text: Any = [self._tokenizer.decode(t, skip_special_tokens=skip) for t in tokens]
        else:
            text = self._tokenizer.decode(tokens, skip_special_tokens=skip)
        return _json(frames.encode({"text": text}))


async def _json_body(request: web.Request) -> bytes:
    if request.content_type != "application/json":
        raise Malformed(
            "'loc': ['header', 'content-type'], "
            "'msg': \"Unsupported Media Type: Only 'application/json' is allowed\", 'type': 'value_error'"
        )
    return await request.read()


async def _server_header(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "uvicorn"


def _asks_stream(raw: bytes) -> bool:
    body = parse_json(raw)
    return isinstance(body, dict) and body.get("stream") in (True, 1, "yes", "true", "on", "1")
