"""The engine's HTTP port, which a fault may close and open again."""

from __future__ import annotations

from aiohttp import web

from infctl_daemon.engine.sim.argv import Options

_KEEP_ALIVE = 5.0


class Listener:
    """Bound from `start` on, except while `listen(False)` is in force."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    async def start(self, app: web.Application) -> None:
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=_KEEP_ALIVE, handle_signals=False, handler_cancellation=True
        )
        await self._runner.setup()
        await self.listen(True)

    async def listen(self, on: bool) -> None:
        if self._runner is None:
            return
        if on and self._site is None:
            self._site = web.TCPSite(self._runner, self._options.host, self._options.port, backlog=2048)
            await self._site.start()
        elif not on and self._site is not None:
            await self._site.stop()
            self._site = None


async def serve_admin(app: web.Application, port: int | None) -> None:
    """The loopback port for faults, where one was asked for."""
    if port is None:
        return
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
