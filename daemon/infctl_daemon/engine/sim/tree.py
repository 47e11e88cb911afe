"""The process tree: forks the ranks and the detokenizer, serves HTTP, and ends as SGLang does.

What stays true: the port is bound only after loading; a dead child ends everything (streams see EOF, then every
process is gone and the exit is by SIGKILL), after the diagnostics freeze unless the environment turns that off;
SIGTERM stops nothing that runs, and new requests are still taken until the last one has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from infctl_daemon.engine.sim.argv import Options
from infctl_daemon.engine.sim.board import Board
from infctl_daemon.engine.sim.detokenizer import run_detokenizer
from infctl_daemon.engine.sim.process import fork_child
from infctl_daemon.engine.sim.rank import Collective, run_far_follower, run_follower
from infctl_daemon.engine.sim.rendezvous import RefusedByLeader, await_loaded, gather, join
from infctl_daemon.engine.sim.scheduler import Scheduler
from infctl_daemon.engine.sim.wire import Outbox, PeerGone, Pipe

log = logging.getLogger("sim")


def _guarded(body: Callable[[], None]) -> None:
    """A child whose peer is gone, or that finds no place in its group, ends with one line and not a traceback."""
    try:
        body()
        return
    except PeerGone:
        log.error("a peer of this process is gone, ending")
    except (TimeoutError, RefusedByLeader) as error:
        log.error("%s", error)
    os._exit(1)


class Tree:
    """Processes of this node and the sockets between them."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.board = Board(options.named_memory)
        self.children: dict[str, int] = {}
        self._sockets: list[socket.socket] = []
        self.control, self._control_far = self._pair()
        self.output, self._output_far = self._pair()
        self._feed, self._feed_far = self._pair()
        self._loaded: dict[int, socket.socket] = {}

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        pair = socket.socketpair()
        self._sockets += pair
        return pair

    def _keep(self, *kept: socket.socket) -> None:
        """Closes every socket of the tree that this process does not use, so that an end is seen as an end."""
        for sock in self._sockets:
            if sock not in kept:
                sock.close()
        self._sockets = list(kept)

    def start(self) -> None:
        """Forks all children of this node. Call before there is an event loop or a thread."""
        options = self.options
        pairs = {rank: self._pair() for rank in options.ranks if rank}
        if 0 in options.ranks:
            self._fork("detokenizer", "sim::detokenizer", self._run_detokenizer)
            self._fork_rank(0, partial(self._run_zero, [near for near, _ in pairs.values()]))
            for rank, (_, far) in pairs.items():
                self._fork_rank(rank, partial(self._run_other, far))
            self._keep(self.control, self.output)
        else:
            for rank, (_, far) in pairs.items():
                self._fork_rank(rank, partial(self._run_member, rank, far))
            self._loaded = {rank: near for rank, (near, _) in pairs.items()}
            self._keep(*self._loaded.values())

    def _fork_rank(self, rank: int, body: Callable[[], None]) -> None:
        def run() -> None:
            self.board.leave_segment("rank")
            body()

        self._fork(str(rank), f"sim::scheduler_TP{rank}", run)

    def _fork(self, name: str, title: str, body: Callable[[], None]) -> None:
        self.children[name] = fork_child(title, partial(_guarded, body))

    def _run_detokenizer(self) -> None:
        self._keep(self._feed_far, self._output_far)
        run_detokenizer(self.options.model_path, Pipe(self._feed_far), Pipe(self._output_far))

    def _run_other(self, far: socket.socket) -> None:
        self._keep(far)
        run_follower(Pipe(far))

    def _run_member(self, rank: int, main: socket.socket) -> None:
        """A rank of a node without rank 0; `main` is told when it has loaded."""
        self._keep(main)
        leader = join(self.options, rank)
        time.sleep(self.options.load_seconds)
        leader.send("loaded")
        Pipe(main).send("loaded")
        run_far_follower(leader, self.options.watchdog_seconds)

    def _run_zero(self, near: list[socket.socket]) -> None:
        self._keep(self._control_far, self._feed, *near)
        options = self.options
        peers = gather(options)
        time.sleep(options.load_seconds)
        await_loaded(peers, options)
        control, feed = Pipe(self._control_far), Outbox(self._feed)
        Scheduler(options, self.board, control, feed, Collective([Pipe(s) for s in near] + peers)).run()

    async def wait_loaded(self) -> bool:
        """On a node without rank 0: True once its ranks have loaded, False when one of them is gone before."""
        loop = asyncio.get_running_loop()
        for sock in self._loaded.values():
            sock.setblocking(False)
            if not await loop.sock_recv(sock, 64):
                return False
        return True

    # -- the end --------------------------------------------------------------------------------------------

    def kill_children(self) -> None:
        for pid in self.children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def alive(self, name: str) -> bool:
        """Whether a child still runs (a zombie does not)."""
        try:
            stat = Path(f"/proc/{self.children[name]}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] not in ("Z", "X")

    def crash(self, reason: str, *, freeze: bool) -> NoReturn:
        """SGLang's end after a child has failed: with `freeze`, HTTP stands still first."""
        log.error("SIGQUIT received. %s. It usually means one child failed.", reason)
        if freeze:
            time.sleep(self.options.diagnostics_seconds)
            if any(self.alive(name) for name in self.children if name != "detokenizer"):
                log.error("Waiting %.1f seconds for coredumps", self.options.coredump_seconds)
                time.sleep(self.options.coredump_seconds)
        self.kill_children()
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    def tidy(self) -> None:
        """The end in good order."""
        self.kill_children()
        self.board.unlink(frozenset(self.children.values()))

    def watch(self, on_exit: Callable[[str, int], None]) -> None:
        """Calls `on_exit(name, code)` in the running loop when a child has ended; a signal is a negative code."""
        loop = asyncio.get_running_loop()
        for name, pid in self.children.items():
            pidfd = os.pidfd_open(pid)

            def ended(name: str = name, pidfd: int = pidfd) -> None:
                loop.remove_reader(pidfd)
                end = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)  # stays a zombie: its pid is not reused
                os.close(pidfd)
                on_exit(name, _code(end))

            loop.add_reader(pidfd, ended)


def _code(end: os.waitid_result | None) -> int:
    if end is None:
        return 1
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def diagnostics_enabled(environ: Any = os.environ) -> bool:
    """SGLang freezes for diagnostics unless both of these are off."""
    names = ("SGLANG_PYSPY_DUMP_BEFORE_CRASH", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH")
    return any(str(environ.get(name, "1")).lower() not in ("0", "false", "no") for name in names)
