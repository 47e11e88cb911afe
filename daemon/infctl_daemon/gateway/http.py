"""The client's side: routes, bodies in, streams out. What a request may do was decided before it gets a stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import structlog
from aiohttp import web

from infctl.domain import request_events as ev
from infctl.domain.request_events import ErrorType
from infctl_daemon.gateway import answer
from infctl_daemon.gateway.asked import Bundle
from infctl_daemon.gateway.body_chat import read_chat
from infctl_daemon.gateway.body_completion import read_completion
from infctl_daemon.gateway.body_generate import read_generate
from infctl_daemon.gateway.core import Core
from infctl_daemon.gateway.errors import STATUS, ClientError, error_body, invalid
from infctl_daemon.gateway.readiness import readiness
from infctl_daemon.gateway.render import render
from infctl_daemon.gateway.serve import Served, model_of, serve
from infctl_daemon.gateway.sse import Form
from infctl_daemon.gateway.surface_chat import ChatForm
from infctl_daemon.gateway.surface_completion import CompletionForm
from infctl_daemon.gateway.surface_generate import GenerateForm

log = structlog.get_logger()
MAX_BODY = 8 * 1024 * 1024
CORE = web.AppKey("core", Core)
LIMIT = web.AppKey("limit", int)
KEEP_ALIVE = web.AppKey("keep_alive", float)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, headers=headers, content_type="application/json")


def error_response(error: ClientError) -> web.Response:
    headers = {"retry-after": "1"} if error.error in (ErrorType.OVERLOADED, ErrorType.UNAVAILABLE) else None
    return json_response(error.body, error.status, headers)


@web.middleware
async def typed_errors(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
    """Every error leaves in our one shape, with its own status."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except ClientError as error:
        return error_response(error)
    except web.HTTPRequestEntityTooLarge:
        return error_response(too_large(request.app[LIMIT]))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        body = error_body(ErrorType.INVALID_REQUEST, error.reason)
        return json_response(body, error.status, {"allow": error.headers["Allow"]} if error.status == 405 else None)
    except (ConnectionError, TimeoutError):
        raise
    except Exception:
        log.exception("request.failed", path=request.path)
        return error_response(ClientError(ErrorType.INTERNAL, "the gateway failed; its log says how"))


def too_large(limit: int) -> ClientError:
    return ClientError(
        ErrorType.INVALID_REQUEST, f"the body is larger than {limit} bytes", code="body_too_large", status=413
    )


async def _body(request: web.Request) -> bytes:
    if (request.content_length or 0) > request.app[LIMIT]:
        raise too_large(request.app[LIMIT])
    return await request.read()


async def completions(request: web.Request) -> web.StreamResponse:
    core = request.app[CORE]
    bundle = read_completion(await _body(request))
    served = model_of(core, bundle.model)
    return await _answer(request, bundle, served, partial(CompletionForm, bundle, int(time.time()), served.tokenizer))


async def chat(request: web.Request) -> web.StreamResponse:
    core = request.app[CORE]
    asked = read_chat(await _body(request))
    served = model_of(core, asked.model)
    ids = await render(core, asked.model, asked.rendering, request.headers.get("x-infctl-group", ""))
    bundle = asked.bundle(ids, served.record.sampling_defaults)
    return await _answer(request, bundle, served, partial(ChatForm, bundle, int(time.time()), served.tokenizer))


async def generate(request: web.Request) -> web.StreamResponse:
    core = request.app[CORE]
    bundle = read_generate(await _body(request))
    if not bundle.model:
        models = core.fleet.models()
        if len(models) != 1:
            raise invalid(f"name the model: this gateway serves {', '.join(models) or 'none yet'}", "model")
        for asked in bundle.answers:
            asked.model = models[0]
    served = model_of(core, bundle.model)
    return await _answer(request, bundle, served, lambda _: GenerateForm(bundle, served.record.revision))


async def _answer(
    request: web.Request, bundle: Bundle, served: Served, form: Callable[[str], Form]
) -> web.StreamResponse:
    return await serve(request, request.app[CORE], bundle, served, form, request.app[KEEP_ALIVE])


async def models(request: web.Request) -> web.Response:
    core = request.app[CORE]
    cards = []
    for model in core.fleet.models():
        record = core.fleet.example(model)
        cards.append(
            {
                "id": model,
                "object": "model",
                "created": 0,
                "owned_by": "infctl",
                "max_model_len": record.context_length if record else None,
            }
        )
    return json_response({"object": "list", "data": cards})


async def health(request: web.Request) -> web.Response:
    """200 while the process serves at all."""
    return json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """200 when the routing table was read and some group is ready; 503 says what is missing."""
    core = request.app[CORE]
    return json_response(*readiness(core.fleet, core.now()))


async def cancel(request: web.Request) -> web.Response:
    """`DELETE /v1/streams/<id>` ends a stream at once."""
    named = request.match_info["id"]
    streams = request.app[CORE].streams_of(named)
    if not streams:
        raise ClientError(ErrorType.INVALID_REQUEST, "no such stream here", code="not_found", status=404)
    for stream in streams:
        stream.feed(ev.CancelRequested("client"))
    return json_response({"id": named, "state": streams[0].state.phase.value})


def client_app(core: Core, max_body: int = MAX_BODY, keep_alive: float = answer.KEEP_ALIVE) -> web.Application:
    app = web.Application(middlewares=[typed_errors], client_max_size=max_body)
    app[LIMIT] = max_body
    app[KEEP_ALIVE] = keep_alive
    app[CORE] = core
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/generate", generate)
    app.router.add_get("/v1/models", models)
    app.router.add_delete("/v1/streams/{id}", cancel)
    app.router.add_get("/health", health)
    app.router.add_get("/ready", ready)
    return app


__all__ = ["STATUS", "client_app"]
