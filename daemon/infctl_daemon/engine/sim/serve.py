"""The main process: binds the port once the engine has loaded, then follows it to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path

from aiohttp import web
from tokenizers import Tokenizer

from infctl_daemon.engine.sim.argv import Options
from infctl_daemon.engine.sim.engine import Engine
from infctl_daemon.engine.sim.faults import Faults, parse
from infctl_daemon.engine.sim.http import Status, Surface
from infctl_daemon.engine.sim.intake import one_token
from infctl_daemon.engine.sim.process import calm_collector
from infctl_daemon.engine.sim.stream import Whole
from infctl_daemon.engine.sim.tokens import Vocabulary
from infctl_daemon.engine.sim.tree import Tree, diagnostics_enabled
from infctl_daemon.engine.sim.wire import PeerGone

log = logging.getLogger("sim")

_KEEP_ALIVE = 5.0


class Listener:
    """The engine's port, which a fault may close and open again."""

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


class Main:
    """Everything the main process holds."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.options = tree.options
        self.status = Status()
        self.listener = Listener(self.options)
        self.engine = Engine(self.options.weight_version, self._on_tokens)
        pids = {**tree.children, "main": os.getpid()}
        self.faults = Faults(pids, self.engine.send, self.listener.listen)
        self._leaving = False
        self._done = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def _on_tokens(self, longest: int) -> None:
        self.faults.on_tokens(longest)

    def _spawn(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        """Until a drain has ended; a crash never returns."""
        loop = asyncio.get_running_loop()
        self.tree.watch(self._child_ended)
        loop.add_signal_handler(signal.SIGQUIT, self._crash, "SIGQUIT")
        if self.options.admin_port is not None:
            runner = web.AppRunner(self.faults.admin_app(), access_log=None, handle_signals=False)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.options.admin_port).start()
        if 0 in self.options.ranks:
            await self._serve()
        else:
            await self._follow()
        await self._done.wait()
        self.tree.tidy()

    async def _serve(self) -> None:
        options = self.options
        vocab = Vocabulary(Path(options.model_path))
        tokenizer = Tokenizer.from_file(str(Path(options.model_path) / "tokenizer.json"))
        loop = asyncio.get_running_loop()
        self._spawn(loop.create_task(self._relay()))
        await self.engine.ready.wait()
        surface = Surface(
            options, self.engine, self.tree.board, self.status, vocab, tokenizer, lambda: self.faults.switches
        )
        await self.listener.start(surface.app())
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        await self._warm_up()
        calm_collector()
        self.status.up = True
        log.info("The server is fired up and ready to roll!")
        for text in options.faults:
            self.faults.request(parse(text))
        self._spawn(loop.create_task(self._watchdog()))

    async def _relay(self) -> None:
        with contextlib.suppress(PeerGone, ExceptionGroup):
            await self.engine.run(self.tree.control, self.tree.output)

    async def _warm_up(self) -> None:
        warm = Whole(1)
        self.engine.submit(one_token("WARMUP"), warm)
        await warm.done.wait()

    async def _follow(self) -> None:
        """A node that has no rank 0 serves flags that mean nothing, as SGLang's do."""

        async def ok(_: web.Request) -> web.Response:
            return web.Response()

        app = web.Application()
        for path in ("/ping", "/health", "/health_generate"):
            app.router.add_get(path, ok)
        await self.listener.start(app)
        signal.signal(signal.SIGTERM, lambda *_: log.info("SIGTERM received; waiting for rank 0"))

    # -- ends -----------------------------------------------------------------------------------------------

    def _child_ended(self, name: str) -> None:
        if not self._leaving:
            log.error("subprocess %s is gone", name)
            asyncio.get_running_loop().call_later(self.options.crash_delay, self._crash, f"subprocess {name} is gone")

    def _crash(self, reason: str) -> None:
        if not self._leaving:
            self.tree.crash(reason, freeze=diagnostics_enabled() or self.faults.switches.diagnostics_freeze)

    def _terminate(self) -> None:
        if self.faults.switches.ignore_sigterm or self.status.leaving:
            return
        log.info("SIGTERM received. Draining requests")
        self.status.leaving = True
        self._spawn(asyncio.get_running_loop().create_task(self._drain()))

    async def _drain(self) -> None:
        """Waits without limit for the last request, as SGLang does; a limit is the supervisor's business."""
        await asyncio.sleep(self.options.drain_poll)
        while self.engine.in_flight and self.status.healthy:  # noqa: ASYNC110
            await asyncio.sleep(self.options.drain_poll)
        self._leaving = True
        with contextlib.suppress(PeerGone):
            self.engine.send(("leave",))
        await asyncio.sleep(0.05)
        self._done.set()

    async def _watchdog(self) -> None:
        """Ends the engine when a batch has made no progress for the watchdog's time and a quarter."""
        limit = self.options.watchdog_timeout * 1.25
        last, since = -1, 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, limit / 4))
            loads = self.tree.board.read()
            if loads.steps != last or (not loads.running and not loads.waiting):
                last, since = loads.steps, loop.time()
            elif loop.time() - since > limit:
                self._crash("watchdog: no progress")


async def serve(tree: Tree) -> None:
    await Main(tree).run()
