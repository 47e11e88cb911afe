"""One launch on this host: preparing it, starting it, watching its processes, ending it.

Kept true: nothing is started after the launch was ordered to end, or while another launch of the group is here; its
processes are on disk before anyone else learns of it; it is called gone only when none of its processes lives, and then
nothing of it is left in /dev/shm.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from infctl.config.host_address import LOOPBACK, in_url
from infctl.domain.errors import ConfigError, StartFailed
from infctl.store.records import GroupSpec, LaunchPlan, PoolSpec
from infctl_daemon.engine import argv as command_line
from infctl_daemon.engine import roles
from infctl_daemon.engine.canary import Canary
from infctl_daemon.engine.identity import Identity
from infctl_daemon.engine.probe import Engine
from infctl_daemon.node.context import Context
from infctl_daemon.node.prepare import key_path, prepare
from infctl_daemon.proc import choose, kill, output, procfs, spawn
from infctl_daemon.proc.container import UNKNOWN, Container, Order, Status
from infctl_daemon.proc.ended import log_path
from infctl_daemon.proc.pidfd import Tree, Watched
from infctl_daemon.proc.procfs import Ident
from infctl_daemon.proc.state_file import GroupState, Process
from infctl_daemon.runtime import crash

TOO_LATE = "ended before it was started"


def _new_key() -> str:
    # begins with a letter: the engine turns its file into arguments, where '-…' would be a flag
    return "k" + secrets.token_hex(24)


@dataclass(frozen=True, slots=True)
class Remains:
    """What is known of a launch after its end: how its main process ended, and how many died for memory."""

    status: Status = UNKNOWN
    oom_kills: int = 0
    container: str = ""


@dataclass(slots=True)
class Launch:
    """What one launch is made of; filled while it starts."""

    name: str
    spec: GroupSpec
    pool: PoolSpec
    generation: int
    node_rank: int = 0  # which of its hosts this is
    plan: LaunchPlan | None = None  # of a launch over several hosts; made by the owner
    lease: int = 0  # the node's, when the generation was taken
    api_key: str = field(default_factory=_new_key)
    model: Identity | None = None
    address: str = LOOPBACK
    port: int = 0
    engine: Engine | None = None
    canary: Canary | None = None
    container: Container | None = None
    tree: Tree | None = None
    key_path: Path | None = None
    started: float = 0.0  # epoch seconds
    checked: bool = False  # its canary has passed
    ending: bool = False
    first_end: Watched | None = None  # the process whose end ended the launch, before we ended anything
    starting: asyncio.Event = field(default_factory=asyncio.Event)  # set when the start is over, well or not
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    remains: Remains | None = None  # known when it has ended

    @property
    def url(self) -> str:
        return f"http://{in_url(self.address)}:{self.port}"

    @property
    def titles(self) -> list[str]:
        """Of the processes that serve."""
        return [w.title for w in self.tree.living if roles.serves(w.title, w.parent)] if self.tree else []

    def code_of(self, one: Watched) -> int | None:
        """How a process ended, 0…255 or minus the signal, where that can be said without waiting."""
        if one.status is None and self.container is not None and one.ident == self.container.main:
            now = self.container.status_now().returncode
            return self.remains.status.returncode if now is None and self.remains else now
        return one.status

    def status_of(self, one: Watched) -> str:
        code = self.code_of(one)
        return "" if code is None else spawn.exit_text(code)


def digest(spec: GroupSpec) -> str:
    """Names this version of a specification."""
    return hashlib.sha256(msgspec.json.encode(spec)).hexdigest()[:16]


def tree_of(context: Context, launch: Launch, main: Ident, on_exit: Callable[[Watched], None]) -> Tree:
    """The processes of the launch; each new one is put on record."""
    tree = Tree(main, on_exit, lambda: context.record_soon(record(context, launch)), roles.serves)
    tree.container = launch.container
    return tree


async def start(context: Context, launch: Launch, on_exit: Callable[[Watched], None]) -> int:
    """Start the processes; returns the main one's pid. Raises StartFailed, also when the launch was ended meanwhile."""
    try:
        if not await context.turns.enter(launch.spec.name, launch.name, lambda: launch.ending):
            raise StartFailed(TOO_LATE)
        command = await prepare(context, launch)
        if launch.ending:
            raise StartFailed(TOO_LATE)
        env = spawn.scrubbed_env(os.environ, command.env)
        launch.started = time.time()
        crash.point("spawn")
        order = Order(launch.name, command.argv, env, log_path(context.state_dir, launch.name))
        launch.container = await context.containers.driver.start(order)
        crash.point("spawned")
        main = launch.container.main
        launch.tree = tree_of(context, launch, main, on_exit)
        launch.tree.begin(procfs.title(main.pid) or command.argv[2])
        await record(context, launch)
        crash.point("recorded")
        return main.pid
    except ConfigError as error:
        raise StartFailed(error.message, reason=error.reason) from None
    except (OSError, ValueError) as error:
        raise StartFailed(f"cannot be started: {error}") from None
    finally:
        launch.starting.set()


async def record(context: Context, launch: Launch) -> None:
    """Put the launch and its processes, main first, into the state file; no process and no stage once it has ended."""
    async with launch.recording:  # one after the other: the last word is the newest
        await asyncio.to_thread(context.state.write, _recorded(context, launch))


def _recorded(context: Context, launch: Launch) -> GroupState:
    tree = launch.tree
    living = tree.living if tree else []
    main = [w for w in living if tree and w.ident == tree.main]
    rest = [w for w in living if tree and w.ident != tree.main]
    return GroupState(
        group=launch.spec.name,
        generation=launch.generation,
        launch=launch.name,
        boot_id=procfs.boot_id(),
        port=launch.port,
        address=launch.address,
        count=context.state.read(launch.spec.name).count,
        processes=[Process(w.ident.pid, w.ident.start, w.title, w.parent) for w in (*main, *rest)],
        stage=("checked" if launch.checked else "started") if living else "",
        lease=launch.lease,
        started=launch.started,
        spec=msgspec.to_builtins(launch.spec),
        pool=msgspec.to_builtins(launch.pool),
        model=msgspec.to_builtins(launch.model) if launch.model else None,
        plan=msgspec.to_builtins(launch.plan) if launch.plan else None,
        node_rank=launch.node_rank,
        answer=list(launch.canary.expected) if launch.canary else [],
        container=launch.container.name if living and launch.container else "",
        shm=sorted(tree.shm) if tree and living else [],
    )


def watches(context: Context, launch: Launch) -> tuple[Coroutine[Any, Any, None], ...]:
    """What goes on beside a launch as long as it runs."""
    assert launch.tree is not None
    bounded = output.keep_bounded(log_path(context.state_dir, launch.name))
    return launch.tree.keep_scanning(), launch.tree.keep_asking(), bounded


def exit_event(launch: Launch, one: Watched) -> tuple[str, str] | None:
    """(title, status) when this process's end is the launch's end, else None."""
    if launch.tree is not None and one.ident == launch.tree.main:
        return one.title or "main process", launch.status_of(one)
    title = one.title
    if not roles.serves(title, one.parent):
        # it may have taken its name after our last look; the kernel keeps the short one until it is reaped
        seen = procfs.stat(one.ident.pid)
        title = seen.name if seen is not None and seen.ident == one.ident else title
    return (title, launch.status_of(one)) if roles.serves(title, one.parent) else None


async def end(context: Context, launch: Launch, on_stuck: Callable[[str], None], graceful: float = 0.0) -> None:
    """End every process and return when all are gone, however long that takes.

    `graceful` seconds are given after a SIGTERM to the main process alone; 0 is SIGKILL at once. `on_stuck` gets the
    evidence about processes that do not die of it.
    """
    launch.ending = True
    context.turns.look(launch.spec.name)
    tree = launch.tree
    crash.point("kill")
    if tree is not None and not graceful:
        tree.kill()  # before the first await: this is the time that counts
    await launch.starting.wait()
    tree = launch.tree
    if tree is not None:
        if graceful:
            await _ask_to_go(launch, tree, graceful)
        await kill.kill_until_gone(tree, on_stuck)
        if launch.container is not None:
            launch.remains = await _forget(context, launch.container)
        crash.point("killed")
        await asyncio.to_thread(_sweep, launch, tree)  # before the names of it are off the record
        await record(context, launch)
        tree.close()
    if launch.key_path is not None:
        launch.key_path.unlink(missing_ok=True)
    context.turns.leave(launch.spec.name, launch.name)


async def _forget(context: Context, container: Container) -> Remains:
    """Take from an empty container what only it knows, and remove it."""
    try:
        remains = Remains(await container.status(), container.oom_kills(), container.name)
        if not await container.remove():
            context.log.warning("what held the processes of a launch cannot be removed", container=container.name)
        return remains
    except StartFailed as error:
        context.log.warning("what held the processes of a launch cannot be asked", why=error.message)
        return Remains()


async def _ask_to_go(launch: Launch, tree: Tree, seconds: float) -> None:
    main = tree.watched.get(tree.main)
    if main is None or not main.alive:
        return
    tree.signal_one(main, signal.SIGTERM)
    hurry = asyncio.ensure_future(launch.hurry.wait())
    gone = asyncio.ensure_future(tree.wait_empty(seconds))
    try:
        while not hurry.done() and not gone.done() and main.alive:
            await asyncio.wait({hurry, gone}, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in (hurry, gone):
            waiter.cancel()
        await asyncio.gather(hurry, gone, return_exceptions=True)


def _sweep(launch: Launch, tree: Tree) -> None:
    kill.remove_from_shm(kill.left_in_shm(tree.shm, tree.pids(), launch.started))


async def found(context: Context, state: GroupState) -> Container | None:
    """What holds, or may hold, the processes of the launch that an earlier life recorded; None where nothing does."""
    name = state.container or (context.containers.driver.name_of(state.launch) if state.launch else "")
    # no pid: without a recorded process the container alone says what is in it
    main = state.processes[0].ident if state.processes else Ident(-1, 0)
    try:
        return await choose.find(name, main, context.state_dir, context.run_dir)
    except StartFailed as error:
        context.log.warning("what holds the processes of a launch cannot be asked", why=error.message)
        return None


def _mapped(state: GroupState, recorded: list[Ident]) -> set[str]:
    """Names in /dev/shm of an earlier life's launch: those on record, and those that its processes have mapped now."""
    own = set(state.shm) if state.boot_id == procfs.boot_id() else set()
    return own.union(*(procfs.shared_memory(i.pid) for i in recorded if procfs.is_alive(i)))


async def end_recorded(context: Context, group: str, on_stuck: Callable[[str], None]) -> Remains:
    """End what an earlier life of the daemon left running, and forget it; returns what is still known of it."""
    state = context.state.read(group)
    recorded = [p.ident for p in context.state.leftovers(group)]
    if state.launch:
        # it may have died between the start of a process and the record of it
        recorded += await asyncio.to_thread(procfs.marked, command_line.MARK, state.launch)
    container = await found(context, state)
    main = recorded[0] if recorded else Ident(-1, 0)
    mapped = await asyncio.to_thread(_mapped, state, recorded)
    pids = await kill.end_recorded(main, frozenset(recorded), container, on_stuck)
    remains = await _forget(context, container) if container is not None else Remains()
    await asyncio.to_thread(lambda: kill.remove_from_shm(kill.left_in_shm(mapped, pids, state.started)))
    if state.launch:
        key_path(context, state.launch).unlink(missing_ok=True)
    await asyncio.to_thread(
        context.state.write,
        GroupState(
            group=group,
            generation=state.generation,
            launch=state.launch,
            port=state.port,
            count=state.count,
            node_rank=state.node_rank,
        ),
    )
    context.turns.leave(group, state.launch)
    return remains
