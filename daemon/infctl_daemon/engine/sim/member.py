"""The main process of a node that has no rank 0: a port that means nothing, and an end that rank 0 decides.

What stays true: the port is bound once this node's ranks have loaded, and says 200 whatever becomes of them; SIGTERM
is noted and nothing more; ranks that were told to leave, or were killed from outside, end it with exit code 0 (1 while
they load), ranks that failed (rank 0 is gone) end it by SIGKILL.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from aiohttp import web

from infctl_daemon.engine.sim.faults import Faults, parse
from infctl_daemon.engine.sim.listener import Listener, serve_admin
from infctl_daemon.engine.sim.tree import Tree

log = logging.getLogger("sim")


class Member:
    """Everything the main process of such a node holds."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.options = tree.options
        self.listener = Listener(self.options)
        self.faults = Faults({**tree.children, "main": os.getpid()}, self._tell, self.listener.listen)
        self._living = set(tree.children)
        self._loaded = False
        self.code = 0
        self._done = asyncio.Event()

    def _tell(self, message: object) -> None:
        log.warning("rank 0 is on another node and is not told: %s", message)

    async def run(self) -> None:
        """Until all ranks of this node have left; a crash never returns."""
        loop = asyncio.get_running_loop()
        self.tree.watch(self._child_ended)
        loop.add_signal_handler(signal.SIGQUIT, self._crash, "SIGQUIT")
        await serve_admin(self.faults.admin_app(), self.options.admin_port)
        serving = loop.create_task(self._serve())
        await self._done.wait()
        serving.cancel()
        self.tree.tidy()

    async def _serve(self) -> None:
        self._loaded = await self.tree.wait_loaded()
        if not self._loaded:
            return
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate)
        try:
            await self.listener.start(_app())
        except OSError as error:  # a port that is taken ends nothing here, as in SGLang
            log.error("Dummy health check server failed to start: %s", error)
        else:
            log.info("Dummy health check server started in background at %s:%d", self.options.host, self.options.port)
        for text in self.options.faults:
            self.faults.request(parse(text))

    def _terminate(self) -> None:
        rank = self.options.node_rank
        log.warning("SIGTERM received on node_rank %d; waiting for rank 0 to stop the schedulers", rank)

    def _child_ended(self, name: str, code: int) -> None:
        log.error("Scheduler %s terminated with %d", name, code)
        self._living.discard(name)
        delay = self.options.crash_delay
        if code > 0:
            asyncio.get_running_loop().call_later(delay, self._crash, f"subprocess {name} has failed")
        elif not self._loaded:
            self.code = 1
            self._done.set()
        elif not self._living:
            asyncio.get_running_loop().call_later(delay if code else 0.0, self._done.set)

    def _crash(self, reason: str) -> None:
        self.tree.crash(reason, freeze=False)  # the diagnostics are the business of rank 0's node


def _app() -> web.Application:
    async def ok(_: web.Request) -> web.Response:
        return web.Response()

    async def nothing(_: web.Request) -> web.Response:
        return web.json_response({"detail": "Not Found"}, status=404)

    app = web.Application()
    for path in ("/ping", "/health", "/health_generate"):
        app.router.add_get(path, ok)
    app.router.add_route("*", "/{path:.*}", nothing)
    return app


async def follow(tree: Tree) -> None:
    member = Member(tree)
    await member.run()
    tree.kill_children()
    raise SystemExit(member.code)
