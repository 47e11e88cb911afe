"""The main process: binds the port once the engine has loaded, then follows it to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path

from tokenizers import Tokenizer

from infctl_daemon.engine.sim.engine import Engine
from infctl_daemon.engine.sim.faults import Faults, parse
from infctl_daemon.engine.sim.http import Status, Surface
from infctl_daemon.engine.sim.intake import one_token
from infctl_daemon.engine.sim.listener import Listener, serve_admin
from infctl_daemon.engine.sim.process import calm_collector
from infctl_daemon.engine.sim.stream import Whole
from infctl_daemon.engine.sim.tokens import Vocabulary
from infctl_daemon.engine.sim.tree import Tree, diagnostics_enabled
from infctl_daemon.engine.sim.wire import PeerGone

log = logging.getLogger("sim")

_LEAVE_SECONDS = 5.0
"""For the ranks to leave by themselves; then they are killed."""


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
        self._scheduler_ended = asyncio.Event()
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
        await serve_admin(self.faults.admin_app(), self.options.admin_port)
        await self._serve()
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

    # -- ends -----------------------------------------------------------------------------------------------

    def _child_ended(self, name: str, code: int) -> None:
        if name == "0":
            self._scheduler_ended.set()
        if not self._leaving and code != 0:  # SGLang's own watchdog takes no notice of a 0 (0.5.23)
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
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._scheduler_ended.wait(), _LEAVE_SECONDS)
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
