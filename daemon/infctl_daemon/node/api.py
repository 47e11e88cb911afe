"""The daemon's read-only API as a server: it listens, bounds who is connected, and never stands in the way.

Kept true: a port that is taken costs the API and not the supervision: it is said, and tried again. At most
`MOST_CONNECTIONS` are open; one that asks nothing is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import ssl
from collections.abc import Callable

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from infctl.config.read_api import ReadApi
from infctl.domain.errors import ConfigError
from infctl.ports.tls import TlsFiles
from infctl_daemon.node.api_auth import Token
from infctl_daemon.node.api_facts import Facts
from infctl_daemon.node.api_routes import Routes
from infctl_daemon.runtime.log import Logger

MOST_CONNECTIONS = 256
FIRST_WORD = 10.0  # seconds within which a connection must have asked something
KEEP_ALIVE = 15.0
RETRY = 5.0
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class ReadApiServer:
    """`reached(url)` is called in the loop once it listens, with the address for others."""

    def __init__(self, api: ReadApi, facts: Facts, log: Logger, reached: Callable[[str], None]) -> None:
        """Raises ConfigError."""
        self._api = api
        self._facts = facts
        self._log = log
        self._reached = reached
        self._silent: set[RequestHandler] = set()
        self._tls = ServerTls(api.tls, log) if api.tls else None
        routes = Routes(facts, Token(api.token_file, log), log, self._silent.discard)
        self._runner = web.AppRunner(
            routes.app(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=0.5,
            keepalive_timeout=KEEP_ALIVE,
            lingering_time=1.0,
        )
        self._server: asyncio.Server | None = None

    async def open(self) -> bool:
        """Try to listen; False, and said in the log, where that cannot be."""
        if self._runner.server is None:
            await self._runner.setup()
        api = self._api
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._connection,
                "127.0.0.1" if api.host == "localhost" else api.host,
                api.port,
                ssl=self._tls.context if self._tls else None,
                ssl_handshake_timeout=5.0 if self._tls else None,
                ssl_shutdown_timeout=1.0 if self._tls else None,
            )
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            self._log.error(
                "the read API cannot listen: supervising without it, trying again",
                listen=f"{api.host}:{api.port}",
                why=str(error),
                reason="PortTaken" if taken else "ReadApiUnavailable",
                hint="choose another readApi.listen; port 0 takes a free one",
            )
            return False
        url = self._url()
        self._log.info("the read API listens", url=url)
        self._reached(url)
        return True

    async def run(self) -> None:
        """Go on trying until it listens, then until cancelled. Whatever happens here ends nothing else."""
        while self._server is None:
            await asyncio.sleep(RETRY)
            try:
                await self.open()
            except Exception:
                self._log.exception("the read API failed to start")
        await asyncio.Event().wait()

    def _url(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        at = self._api.advertise or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        return f"{'https' if self._tls else 'http'}://{at}"

    def _connection(self) -> asyncio.Protocol:
        server = self._runner.server
        if server is None or len(server.connections) >= MOST_CONNECTIONS:
            return _Refused()
        if self._tls:
            self._tls.refresh()
        made: RequestHandler = server()
        self._silent.add(made)
        asyncio.get_running_loop().call_later(FIRST_WORD, self._close_silent, made)
        return made

    def _close_silent(self, one: RequestHandler) -> None:
        if one in self._silent:
            self._silent.discard(one)
            one.force_close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._runner.cleanup()
        self._facts.close()


class _Refused(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(_FULL)
        transport.close()


class ServerTls:
    """Our certificate, read again when its files change. A client CA that is taken away counts until a restart."""

    def __init__(self, files: TlsFiles, log: Logger) -> None:
        """Raises ConfigError."""
        self._files = files
        self._log = log
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if files.ca is not None:
            self.context.verify_mode = ssl.CERT_REQUIRED
        self._mark = self._marks()
        try:
            self._load()
        except (OSError, ValueError) as error:
            raise ConfigError(f"TLS of the read API: {error}") from None

    def _load(self) -> None:
        files = self._files
        assert files.cert is not None
        self.context.load_cert_chain(files.cert, files.key)
        if files.ca is not None:
            self.context.load_verify_locations(files.ca)

    def _marks(self) -> tuple[float, ...]:
        try:
            return tuple(os.stat(path).st_mtime for path in self._files.paths)
        except OSError:
            return ()

    def refresh(self) -> None:
        mark = self._marks()
        if mark == self._mark or not mark:
            return
        self._mark = mark
        try:
            self._load()
        except (OSError, ValueError) as error:
            self._log.error("the new certificate cannot be used: the last one counts on", why=str(error))
