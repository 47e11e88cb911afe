"""A chat is rendered by whichever worker answers first; what workers say is believed only when it is a list of ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from infctl.domain.request_events import ErrorType
from infctl_daemon.gateway import render as module
from infctl_daemon.gateway.errors import ClientError
from infctl_daemon.gateway.render import render

CHAT = {"messages": [{"role": "user", "content": "x"}]}
Answer = Callable[[web.Request], Any]


class Core:
    """Workers in the order in which they would be picked."""

    def __init__(self, http: aiohttp.ClientSession, urls: list[str]) -> None:
        self.http = http
        self.suspects: list[str] = []
        self.fleet = SimpleNamespace(api_key=lambda launch: f"key-of-{launch}")
        self._workers = [SimpleNamespace(launch=f"l{i}", group=f"g{i}", url=url) for i, url in enumerate(urls)]

    def any_worker(self, model: str, passed: set[str], pin: str) -> Any:
        return next((w for w in self._workers if w.launch not in passed), None)

    def worker_suspect(self, launch: str, kind: Any, why: str) -> None:
        self.suspects.append(launch)


@asynccontextmanager
async def workers(*answers: Answer | None) -> AsyncIterator[Core]:
    """One worker for each answer; None is a port where nobody listens."""
    servers: list[TestServer] = []
    urls: list[str] = []
    async with aiohttp.ClientSession() as http:
        for answer in answers:
            if answer is None:
                urls.append("http://127.0.0.1:1")
                continue
            app = web.Application()
            app.router.add_post("/tokenize", answer)
            servers.append(TestServer(app))
            await servers[-1].start_server()
            urls.append(str(servers[-1].make_url("")).rstrip("/"))
        try:
            yield Core(http, urls)
        finally:
            for server in servers:
                await server.close()


def says(status: int, body: bytes) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, content_type="application/json")

    return answer


GOOD = says(200, b'{"tokens":[1,2,3],"count":3,"max_model_len":9}')


async def test_the_worker_gets_the_chat_with_its_own_key() -> None:
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        seen.extend([await request.json(), request.headers["authorization"]])
        return web.json_response({"tokens": [7]})

    async with workers(answer) as core:
        assert await render(core, "m", CHAT) == [7]  # type: ignore[arg-type]
    assert seen == [CHAT, "Bearer key-of-l0"]


@pytest.mark.parametrize(
    ("first", "suspected"),
    [(None, True), (says(500, b"{}"), False), (says(401, b"{}"), True), (says(503, b""), False)],
)
async def test_a_worker_that_cannot_is_passed_over(first: Answer | None, suspected: bool) -> None:
    async with workers(first, GOOD) as core:
        assert await render(core, "m", CHAT) == [1, 2, 3]  # type: ignore[arg-type]
        assert core.suspects == (["l0"] if suspected else [])


async def test_a_worker_that_never_answers_is_passed_over_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    done = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        await done.wait()
        return web.Response()

    async with workers(answer, GOOD) as core:
        assert await asyncio.wait_for(render(core, "m", CHAT), 5) == [1, 2, 3]  # type: ignore[arg-type]
        assert core.suspects == [], "slow is not dead"
        done.set()


async def test_when_no_worker_can_the_client_may_try_again() -> None:
    async with workers(says(500, b""), None, says(500, b""), GOOD) as core:
        with pytest.raises(ClientError) as caught:
            await render(core, "m", CHAT)  # type: ignore[arg-type]
    assert caught.value.error is ErrorType.UNAVAILABLE and caught.value.body["error"]["retryable"]


@pytest.mark.parametrize("status", [400, 422])
async def test_the_templates_refusal_is_the_clients_to_mend(status: int) -> None:
    async with workers(says(status, b'{"message":"roles must alternate\\n\\n  File \\"x.py\\""}'), GOOD) as core:
        with pytest.raises(ClientError) as caught:
            await render(core, "m", CHAT)  # type: ignore[arg-type]
    assert caught.value.code == "template_refused" and caught.value.param == "messages"
    assert caught.value.message.endswith("roles must alternate")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"tokens":"x"}', b'{"tokens":[1,"2"]}', b'{"tokens":[true]}', b"{}"])
async def test_what_is_no_list_of_ids_is_not_believed(body: bytes) -> None:
    async with workers(says(200, body)) as core:
        with pytest.raises(ClientError) as caught:
            await render(core, "m", CHAT)  # type: ignore[arg-type]
    assert caught.value.error is ErrorType.INTERNAL
