"""The read-only API's bounds: who may ask, how many, for how long; and every refusal has a type."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from infctl.domain.group import Group, Phase
from infctl_daemon.node import api as server_module
from infctl_daemon.node import api_logs, api_routes
from infctl_daemon.proc.ended import Ended
from tests.support.certs import HAVE_OPENSSL, Authority
from tests.support.readapi import KEY, LAUNCH, OLD, OLD_KEY, Loop, ask, ended, serving
from tests.support.witness import until


async def test_a_token_is_asked_of_everything_but_health_and_whether_a_launch_serves(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef")
    file.chmod(0o600)
    async with serving(tmp_path, token_file=file) as daemon:
        ended(daemon)
        closed = [f"{daemon.url}/v1/{path}" for path in ("status", "groups/a/launches", f"groups/a/launches/{OLD}/log")]
        for url in closed:
            for wrong in ("", "0123456789abcdeF", "0123456789abcdef0", "0123456789abcde"):
                status, said = await ask(url, wrong)
                assert (status, said["error"]["type"], said["error"]["retryable"]) == (401, "unauthorized", False)
            assert (await ask(url, "0123456789abcdef"))[0] == 200
        for path in ("health", "ready"):
            assert (await ask(f"{daemon.url}/{path}"))[0] == 200
        asked = f"{daemon.url}/v1/groups/a/launches/{LAUNCH}/serving"
        assert (await ask(asked, KEY))[0] == 200
        assert (await ask(asked, "0123456789abcdef"))[0] == 401, "the token is no launch's key"

        file.write_text("another-token-that-is-new")
        assert (await ask(closed[0], "0123456789abcdef"))[0] == 401
        assert (await ask(closed[0], "another-token-that-is-new"))[0] == 200
        file.write_text("short")
        assert (await ask(closed[0], "another-token-that-is-new"))[0] == 200, "a token that cannot be used is not used"


@pytest.mark.skipif(not HAVE_OPENSSL, reason="openssl is not installed")
async def test_without_a_certificate_of_the_clients_ca_nobody_is_let_in(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    for name in ("node", "amy"):
        authority.issue(name)
    stranger.issue("amy")

    def client(of: Authority | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(authority.folder / "ca.pem"))
        if of:
            context.load_cert_chain(of.folder / "amy.pem", of.folder / "amy.key")
        return context

    async with serving(tmp_path, tls=authority.files("node")) as daemon:
        assert daemon.url.startswith("https://127.0.0.1:")
        status, said = await ask(f"{daemon.url}/v1/status", ssl=client(authority))
        assert (status, said["node"]) == (200, "n1")
        for wrong in (client(None), client(stranger)):
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await ask(f"{daemon.url}/v1/status", ssl=wrong)
        old = (authority.folder / "node.pem").read_bytes()
        authority.issue("node")
        assert (authority.folder / "node.pem").read_bytes() != old
        _, writer = await asyncio.open_connection("127.0.0.1", daemon.port, ssl=client(authority))
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        fresh = ssl.PEM_cert_to_DER_cert((authority.folder / "node.pem").read_text())
        assert shown == fresh, "a renewed certificate needs no restart"


async def test_what_is_no_question_is_refused_with_a_type(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon, aiohttp.ClientSession() as http:
        launch = f"{daemon.url}/v1/groups/a/launches/{LAUNCH}"
        for url, status, code in (
            ("/nothing", 404, "not_found"),
            ("/v1/groups/b/launches", 404, "not_found"),
            ("/v1/groups/..%2F..%2Fx/launches", 404, "not_found"),
            ("/v1/groups/a/launches/b-abcdefgh/log", 404, "not_found"),
            ("/v1/groups/a/launches/a-zzzzzzzz/log", 404, "not_found"),
            ("/v1/groups/a/launches/..%2F..%2Fstate/log", 404, "not_found"),
            (f"/v1/groups/a/launches/{LAUNCH}/log?lines=x", 400, "invalid_request"),
            (f"/v1/groups/a/launches/{LAUNCH}/log?lines=10001", 400, "invalid_request"),
            (f"/v1/groups/a/launches/{LAUNCH}/log?lines=-1", 400, "invalid_request"),
        ):
            got, said = await ask(daemon.url + url)
            assert (got, said["error"]["code"]) == (status, code), url
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            async with http.request(method, launch + "/log") as answer:
                assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
        async with http.get(f"{daemon.url}/health", data=b"x" * 5000) as answer:
            assert answer.status == 413
        daemon.listed = False
        status, said = await ask(f"{daemon.url}/ready")
        assert (status, said["status"]) == (503, "waiting")


async def test_a_slow_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_routes, "DEADLINE", 0.2)
    async with serving(tmp_path) as daemon:

        async def hang(group: str) -> list[Ended]:
            await asyncio.sleep(30)
            return []

        monkeypatch.setattr(daemon.facts, "_ended_of", hang)
        status, said = await ask(f"{daemon.url}/v1/groups/a/launches")
        assert (status, said["error"]["type"], said["error"]["retryable"]) == (503, "unavailable", True)


async def test_connections_are_bounded_and_silent_ones_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(server_module, "FIRST_WORD", 0.5)
    async with serving(tmp_path) as daemon:
        opened = [await asyncio.open_connection("127.0.0.1", daemon.port) for _ in range(3)]
        opened[0][1].write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await opened[0][0].readline()).startswith(b"HTTP/1.1 200 ")
        opened[1][1].write(b"GET /health HTTP/1.1\r\nhos")  # a head without end
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        assert (await asyncio.wait_for(reader.read(), 3)).startswith(b"HTTP/1.1 503 ")
        writer.close()
        for silent in opened[1:]:
            assert await asyncio.wait_for(silent[0].read(), 3) == b"", "who asks nothing is let go"
        assert (await ask(f"{daemon.url}/health"))[0] == 200
        for _, each in opened:
            each.close()


async def test_followers_are_bounded_and_one_that_does_not_read_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_logs, "MOST_FOLLOWERS", 1)
    monkeypatch.setattr(api_logs, "WRITE_DEADLINE", 0.5)
    async with serving(tmp_path) as daemon:
        url = f"/v1/groups/a/launches/{LAUNCH}/log"
        daemon.log.write_bytes(b"x" * 99 + b"\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port, limit=1024)
        writer.write(f"GET {url}?follow=1 HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        status, said = await ask(f"{daemon.url}{url}?follow=1")
        assert (status, said["error"]["type"]) == (503, "overloaded")
        assert (await ask(f"{daemon.url}{url}"))[0] == 200, "who does not follow is served"
        with open(daemon.log, "ab") as out:
            out.write((b"x" * 99 + b"\n") * 200_000)  # 20 MB: more than the sockets hold

        async def room() -> str:
            other, asking = await asyncio.open_connection("127.0.0.1", daemon.port)
            asking.write(f"GET {url}?follow=1&lines=1 HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            status = (await other.readline()).split()[1]
            asking.close()
            return status.decode() if status == b"200" else ""

        assert await until(room, 15, "its place is free again") == "200"
        writer.close()


@pytest.mark.parametrize(
    ("phase", "serves", "over"),
    [
        (Phase.READY, True, False),
        (Phase.PUBLISHING, True, False),
        (Phase.CANARY, False, False),
        (Phase.LOADING, False, False),
        (Phase.ENDING, False, True),
        (Phase.BACKOFF, False, True),
        (Phase.CLAIMING, False, True),
        (Phase.FAILED, False, True),
    ],
)
async def test_a_launch_serves_while_its_group_says_so(tmp_path: Path, phase: Phase, serves: bool, over: bool) -> None:
    async with serving(tmp_path, Loop(phase)) as daemon:
        status, said = await ask(f"{daemon.url}/v1/groups/a/launches/{LAUNCH}/serving", KEY)
        assert (status, said["serving"], said["over"], said["generation"]) == (200, serves, over, 4)


async def test_a_daemon_that_knows_nothing_of_a_launch_yet_does_not_call_it_over(tmp_path: Path) -> None:
    async with serving(tmp_path, loop := Loop(Phase.IDLE)) as daemon:
        loop.state = Group("a")
        status, said = await ask(f"{daemon.url}/v1/groups/a/launches/{LAUNCH}/serving", KEY)
        assert (status, said["serving"], said["over"]) == (200, False, False)
        loop.executor.launch = None
        assert (await ask(f"{daemon.url}/v1/groups/a/launches/{LAUNCH}/serving", KEY))[0] == 404
        ended(daemon)
        status, said = await ask(f"{daemon.url}/v1/groups/a/launches/{OLD}/serving", OLD_KEY)
        assert (status, said["serving"], said["over"]) == (200, False, True), "an earlier life of ours ended it"
