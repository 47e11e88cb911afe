"""Questions to an engine: reading keeps its connection and hides nothing by it, a generation takes a new one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from infctl.domain.errors import NotReady
from infctl_daemon.engine.kept import BODY_LIMIT, KeptGets
from infctl_daemon.engine.probe import Engine

LOADS = {"loads": [{"timestamp": 1.5, "num_running_reqs": 0, "num_waiting_reqs": 0}]}
ANSWER = {"output_ids": [7], "text": "x", "meta_info": {"finish_reason": {"type": "length"}}}


class Server:
    """Speaks as much HTTP as is needed; counts connections and can close or freeze them."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self.frozen = False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = next((int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")), 0)
                await reader.readexactly(size)
                if self.frozen:
                    continue
                body = json.dumps(ANSWER if head.startswith(b"POST") else LOADS).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def close_all(self) -> None:
        for one in self.connections:
            one.close()


@asynccontextmanager
async def engine_of(server: Server) -> AsyncIterator[tuple[Engine, asyncio.Server]]:
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    fresh = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
    kept = KeptGets()
    async with fresh:
        yield Engine(fresh, kept, f"http://127.0.0.1:{port}", "key"), listening
    kept.close()
    listening.close()
    server.close_all()


async def test_reading_keeps_one_connection_and_a_generation_takes_a_new_one() -> None:
    server = Server()
    async with engine_of(server) as (engine, _):
        for _ in range(3):
            assert (await engine.loads()).stamps == (1.5,)
        assert len(server.connections) == 1
        for _ in range(2):
            assert (await engine.generate([1], 1, "r", 5.0)).ids == (7,)
        assert len(server.connections) == 3


async def test_a_connection_that_the_engine_closed_is_replaced_and_nobody_notices() -> None:
    server = Server()
    async with engine_of(server) as (engine, _):
        await engine.loads()
        server.close_all()
        assert (await engine.loads()).stamps == (1.5,)
        assert len(server.connections) == 2


async def test_an_engine_that_is_gone_is_not_hidden_by_its_kept_connection() -> None:
    server = Server()
    async with engine_of(server) as (engine, listening):
        await engine.loads()
        listening.close()
        server.close_all()
        with pytest.raises(NotReady):
            await engine.loads()


async def test_an_engine_that_freezes_on_a_kept_connection_does_not_hold_the_question() -> None:
    server = Server()
    async with engine_of(server) as (engine, _):
        await engine.loads()
        server.frozen = True
        with pytest.raises(NotReady, match="no answer within"):
            await engine.loads(0.1)
        server.frozen = False
        assert (await engine.loads(5.0)).stamps == (1.5,)
        assert len(server.connections) == 2


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (BODY_LIMIT + 1),
        b"",
    ],
    ids=["cut off in the head", "cut off", "cut off in a chunk", "not HTTP", "too long", "nothing"],
)
async def test_what_is_no_answer_is_told_at_once_and_asked_only_once(said: bytes) -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.write(said)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    kept = KeptGets()
    head = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    with pytest.raises(OSError, match=r"connection|HTTP|more than"):
        await kept.get("127.0.0.1", listening.sockets[0].getsockname()[1], head, 5.0)
    assert asked == 1
    kept.close()
    listening.close()


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\n\r\nwhole",
        b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nwhole",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nwhole",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nwho\r\n2\r\nle\r\n0\r\n\r\n",
    ],
    ids=["until the end", "old", "after a 100", "in chunks"],
)
async def test_every_way_to_answer_is_understood_though_it_ends_the_connection(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for at in range(0, len(said), 7):
            writer.write(said[at : at + 7])
            await asyncio.sleep(0)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    kept = KeptGets()
    head = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    for _ in range(2):
        assert await kept.get("127.0.0.1", listening.sockets[0].getsockname()[1], head, 5.0) == (200, b"whole")
    kept.close()
    listening.close()
