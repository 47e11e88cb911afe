"""The calls that change the engine: abort, flush, pause and continue, the name of the weights.

What stays true: pausing with the default mode aborts every stream, looks again each second until nothing is in flight,
and keeps /continue_generation waiting meanwhile; in the other modes streams stay open and silent, and the load snapshot
stands still as in a frozen engine; a new weight version aborts every stream unless told not to; unloading an adapter
waits for the requests that use it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from infctl_daemon.engine.sim.engine import Engine
from infctl_daemon.engine.sim.frames import encode
from infctl_daemon.engine.sim.lora import Adapters, LoraError
from infctl_daemon.engine.sim.replies import json_reply
from infctl_daemon.engine.sim.schema import Malformed, flag, parse_json

_MODES = ("abort", "retract", "in_place")
_LOOK_AGAIN = 1.0
_IN_USE = 0.05


class Gate:
    """Shut while generation is paused."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.lock = asyncio.Lock()

    @property
    def shut(self) -> bool:
        return not self._open.is_set()

    def set(self, shut: bool) -> None:
        if shut:
            self._open.clear()
        else:
            self._open.set()

    async def passed(self) -> None:
        """Waits for as long as the pause lasts."""
        await self._open.wait()


def _instance(kind: str, type_: str, where: str, message: str, got: object, body: object) -> Malformed:
    return Malformed(
        f"'type': 'is_instance_of', 'loc': ('body', 'is-instance[{kind}]'), "
        f"'msg': 'Input should be an instance of {kind}', 'input': {body!r}, 'ctx': {{'class': '{kind}'}}\n"
        f"'type': '{type_}', 'loc': ('body', 'function-after[build_struct(), {kind}]', '{where}'), "
        f"'msg': {message!r}, 'input': {got!r}"
    )


async def _dictionary(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    if not raw:
        raise Malformed("'type': 'missing', 'loc': ('body',), 'msg': 'Field required', 'input': None")
    body = parse_json(raw)
    if not isinstance(body, dict):
        raise Malformed("'type': 'dataclass_type', 'loc': ('body',), 'msg': 'Input should be a dictionary'")
    return body


class Control:
    """The handlers and what they need."""

    def __init__(self, engine: Engine, gate: Gate, adapters: Adapters) -> None:
        self._engine = engine
        self._adapters = adapters
        self._gate = gate

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/abort_request", self.abort)
        router.add_post("/pause_generation", self.pause)
        router.add_post("/continue_generation", self.go_on)
        router.add_post("/update_weight_version", self.label)
        router.add_post("/load_lora_adapter", self.load_adapter)
        router.add_post("/unload_lora_adapter", self.unload_adapter)
        for method in ("GET", "POST"):
            router.add_route(method, "/flush_cache", self.flush)

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

    async def pause(self, request: web.Request) -> web.Response:
        body = await _dictionary(request)
        mode = body.get("mode", "abort")
        if mode not in _MODES:
            message = "Input should be 'abort', 'retract' or 'in_place'"
            raise _instance("PauseGenerationReqInput", "literal_error", "mode", message, mode, body)
        async with self._gate.lock:
            self._gate.set(shut=True)
            if mode != "abort":
                self._engine.send(("pause", mode))
            else:
                self._engine.abort_all()
                while self._engine.dispatched:
                    await asyncio.sleep(_LOOK_AGAIN)
                    self._engine.abort_all()
        return json_reply(encode({"message": "Generation paused successfully.", "status": "ok"}))

    async def go_on(self, request: web.Request) -> web.Response:
        await _dictionary(request)
        async with self._gate.lock:
            self._engine.send(("continue",))
            self._gate.set(shut=False)
        return json_reply(encode({"message": "Generation continued successfully.", "status": "ok"}))

    async def label(self, request: web.Request) -> web.Response:
        body = await _dictionary(request)
        kind, version = "UpdateWeightVersionReqInput", body.get("new_version")
        if "new_version" not in body:
            raise _instance(kind, "missing", "new_version", "Field required", body, body)
        if not isinstance(version, str):
            raise _instance(kind, "string_type", "new_version", "Input should be a valid string", version, body)
        if flag("abort_all_requests", body.get("abort_all_requests", True)):
            self._engine.abort_all()
        self._engine.label(version)
        answer = {"success": True, "message": f"Weight version updated to {version}", "new_version": version}
        return json_reply(encode(answer))

    async def load_adapter(self, request: web.Request) -> web.Response:
        body = await _dictionary(request)
        name = _text(body, "LoadLoRAAdapterReqInput", "lora_name")
        path = _text(body, "LoadLoRAAdapterReqInput", "lora_path")
        try:
            self._adapters.load(name, path)
        except LoraError as error:
            return _adapters_reply(str(error), error.loaded)
        return _adapters_reply("", self._adapters.loaded)

    async def unload_adapter(self, request: web.Request) -> web.Response:
        name = _text(await _dictionary(request), "UnloadLoRAAdapterReqInput", "lora_name")
        try:
            self._adapters.unload(name)
        except LoraError as error:
            return _adapters_reply(str(error), error.loaded)
        while self._engine.uses(name):  # noqa: ASYNC110
            await asyncio.sleep(_IN_USE)
        return _adapters_reply("", self._adapters.loaded)


def _adapters_reply(problem: str, loaded: dict[str, str] | None) -> web.Response:
    said = {"rid": None, "http_worker_ipc": None, "success": not problem, "error_message": problem}
    return json_reply(encode({**said, "loaded_adapters": loaded}), 400 if problem else 200)


def _text(body: dict[str, Any], kind: str, field: str) -> str:
    value = body.get(field)
    if field not in body:
        raise _instance(kind, "missing", field, "Field required", body, body)
    if not isinstance(value, str):
        raise _instance(kind, "string_type", field, "Input should be a valid string", value, body)
    return value
