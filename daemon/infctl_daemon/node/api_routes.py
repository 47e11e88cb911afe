"""The routes of the read-only API: each is a GET without a body, with a deadline, and its errors have a type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from infctl.domain.ids import is_launch_id
from infctl_daemon.node.api_auth import Token, bearer, same
from infctl_daemon.node.api_errors import ApiError, json_response, not_found, unauthorized
from infctl_daemon.node.api_facts import Facts
from infctl_daemon.node.api_logs import LogReader
from infctl_daemon.runtime.log import Logger

DEADLINE = 10.0


class Routes:
    """`seen` is called with each connection that has asked something."""

    def __init__(self, facts: Facts, token: Token, log: Logger, seen: Callable[[Any], None]) -> None:
        self._facts = facts
        self._token = token
        self._log = log
        self._logs = LogReader(facts)
        self._seen = seen

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guarded], client_max_size=1024)
        launch = "/v1/groups/{group}/launches/{launch}"
        # these say nothing that needs a token, or are asked by those who have a key instead
        for path, handler in (("/health", self.health), ("/ready", self.ready), (f"{launch}/serving", self.serving)):
            app.router.add_get(path, handler)
        for path, closed in (("/v1/status", self.status), ("/v1/groups/{group}/launches", self.launches)):
            app.router.add_get(path, self._with_token(closed))
        app.router.add_get(f"{launch}/log", self._with_token(self.log))
        app.on_response_prepare.append(self._signed)
        return app

    async def _signed(self, request: web.Request, response: web.StreamResponse) -> None:
        """Say whose answer it is: another host's loopback may be asked by mistake."""
        response.headers["x-infctl-node"] = self._facts.node

    def _with_token(self, handler: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
        async def checked(request: web.Request) -> web.StreamResponse:
            self._token.check(request.headers)
            answer: web.StreamResponse = await handler(request)
            return answer

        return checked

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        self._seen(request.protocol)
        answer: web.StreamResponse
        try:
            if request.can_read_body:
                raise ApiError(413, "invalid_request", "this API takes no body")
            # a log is sent inside its handler, which has deadlines of its own
            async with asyncio.timeout(None if request.path.endswith("/log") else DEADLINE):
                answer = await handler(request)
                return answer
        except ApiError as error:
            return error.response()
        except web.HTTPException as error:
            kind = ApiError(error.status, "invalid_request", error.reason, code=_code(error.status))
            response = kind.response()
            if error.status == 405:
                response.headers["allow"] = "GET, HEAD"
            return response
        except TimeoutError:
            return ApiError(503, "unavailable", f"no answer within {DEADLINE:g} s").response()
        except ConnectionError:
            raise
        except Exception:
            self._log.exception("the read API failed", path=request.path)
            return ApiError(500, "internal", "the daemon failed; its log says how").response()

    async def health(self, request: web.Request) -> web.Response:
        """200 while the daemon's loop turns at all."""
        return json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """200 once the daemon knows what it is to run; a store that goes away later changes nothing."""
        if not self._facts.listed():
            return json_response({"status": "waiting", "missing": ["the store has not been read yet"]}, 503)
        return json_response({"status": "ok"})

    async def status(self, request: web.Request) -> web.Response:
        return json_response(self._facts.status())

    async def launches(self, request: web.Request) -> web.Response:
        group = request.match_info["group"]
        return json_response({"group": group, "launches": await self._facts.launches(group)})

    async def log(self, request: web.Request) -> web.StreamResponse:
        group, launch = self._launch_of(request)
        if launch not in {known["launch"] for known in await self._facts.launches(group)}:
            raise not_found(f"launch {launch} is not known here: the last ten of a group are kept")
        return await self._logs.answer(request, group, launch)

    async def serving(self, request: web.Request) -> web.Response:
        """Whether a launch serves here; asked with that launch's own key."""
        group, launch = self._launch_of(request)
        digest = await self._facts.key_digest(group, launch)
        if not digest:
            raise not_found(f"launch {launch} is not known here")
        if not same(bearer(request.headers), digest):
            raise unauthorized("the key is not that of this launch")
        return json_response(await self._facts.serving(group, launch))

    @staticmethod
    def _launch_of(request: web.Request) -> tuple[str, str]:
        group, launch = request.match_info["group"], request.match_info["launch"]
        if not is_launch_id(launch, group):
            raise not_found(f"{launch[:80]!r} is no launch of group {group[:80]!r}")
        return group, launch


def _code(status: int) -> str:
    return {404: "not_found", 405: "method_not_allowed"}.get(status, "invalid_request")
