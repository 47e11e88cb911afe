"""One launch on this host: preparing it, starting it, watching its processes, ending it.

Kept true: nothing is started after the launch was ordered to end; its processes are on disk before anyone else
learns of it; it is called gone only when none of its processes lives, and then nothing of it is left in /dev/shm.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from infctl.domain.errors import ConfigError, StartFailed
from infctl.store.records import GroupSpec, PoolSpec
from infctl_daemon.engine import argv as command_line
from infctl_daemon.engine import identity, roles
from infctl_daemon.engine.canary import Canary
from infctl_daemon.engine.identity import Identity
from infctl_daemon.engine.probe import Engine
from infctl_daemon.node.context import Context
from infctl_daemon.node.unsupported import unsupported
from infctl_daemon.proc import kill, ports, procfs, spawn
from infctl_daemon.proc.pidfd import Tree, Watched
from infctl_daemon.proc.procfs import Ident
from infctl_daemon.proc.state_file import GroupState, Process, write_durably
from infctl_daemon.runtime import crash

PORT_WAIT = 5.0  # after SIGKILL the kernel may hold a port for moments; longer means somebody else


def _new_key() -> str:
    # begins with a letter: the engine turns its file into arguments, where '-…' would be a flag
    return "k" + secrets.token_hex(24)


@dataclass(slots=True)
class Launch:
    """What one launch is made of; filled while it starts."""

    name: str
    spec: GroupSpec
    pool: PoolSpec
    generation: int
    lease: int = 0  # the node's, when the generation was taken
    api_key: str = field(default_factory=_new_key)
    model: Identity | None = None
    port: int = 0
    engine: Engine | None = None
    canary: Canary | None = None
    child: subprocess.Popen[bytes] | None = None
    tree: Tree | None = None
    key_path: Path | None = None
    started: float = 0.0  # epoch seconds
    checked: bool = False  # its canary has passed
    ending: bool = False
    first_end: Watched | None = None  # the process whose end ended the launch, before we ended anything
    starting: asyncio.Event = field(default_factory=asyncio.Event)  # set when the start is over, well or not
    hurry: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def titles(self) -> list[str]:
        """Of the processes that serve."""
        return [w.title for w in self.tree.living if roles.serves(w.title, w.parent)] if self.tree else []

    def code_of(self, one: Watched) -> int | None:
        """How a process ended, where that can be known: for certain only of our own child, once it is collected."""
        if one.status is None and self.child is not None and one.ident.pid == self.child.pid:
            return self.child.poll()
        return one.status

    def status_of(self, one: Watched) -> str:
        code = self.code_of(one)
        return "" if code is None else spawn.exit_text(code)


def digest(spec: GroupSpec) -> str:
    """Names this version of a specification."""
    return hashlib.sha256(msgspec.json.encode(spec)).hexdigest()[:16]


def key_path(context: Context, launch: str) -> Path:
    return context.run_dir / "keys" / f"{launch}.yaml"


async def prepare(context: Context, launch: Launch) -> command_line.Command:
    """Everything that can be refused before a process exists. Raises StartFailed or ConfigError with the reason."""
    spec = launch.spec
    if why := unsupported(spec):
        raise StartFailed(why)
    if spec.python and not os.access(spec.python, os.X_OK):
        raise StartFailed(f"interpreter {spec.python} does not exist or cannot be run")
    launch.model = await asyncio.to_thread(
        identity.identify, spec.model_path, spec.tokenizer, spec.revision, spec.context_length
    )
    count = context.state.read(spec.name).count
    launch.port = await _port(context, spec)
    rendezvous = next(
        (p for i in range(40) if ports.is_free(p := command_line.rendezvous_port(launch.port, count + i))), 0
    )
    if not rendezvous:
        raise StartFailed(f"no free rendezvous port above {launch.port}", reason="PortTaken")
    launch.key_path = key_path(context, launch.name)
    command = command_line.build(
        spec,
        served_model=launch.pool.model,
        revision=launch.model.revision,
        launch=launch.name,
        port=launch.port,
        rendezvous=rendezvous,
        config=launch.key_path,
    )
    await asyncio.to_thread(write_durably, launch.key_path, command_line.key_file(launch.api_key))
    give_engine(context, launch, launch.model)
    return command


def give_engine(context: Context, launch: Launch, model: Identity) -> Canary:
    """The ways to speak with the engine, once its address, key and model are known."""
    launch.engine = Engine(context.http, launch.url, launch.api_key)
    launch.canary = Canary(
        launch.engine, model, launch.pool, context.node, group=launch.spec.name, say=context.events.say
    )
    return launch.canary


async def _port(context: Context, spec: GroupSpec) -> int:
    """The group's fixed port, the one it had, or a free one. Raises StartFailed when it is taken."""
    wanted = spec.port or context.ports.get(spec.name) or context.state.read(spec.name).port
    if wanted and await ports.wait_free(wanted, PORT_WAIT if spec.port else 1.0):
        port = wanted
    elif spec.port:
        raise StartFailed(f"port {spec.port} is taken by another process", reason="PortTaken")
    else:
        others = {p for g, p in context.ports.items() if g != spec.name}
        port = ports.choose(f"{context.state_dir}/{spec.name}", others)
        if not port:
            raise StartFailed(f"no free port between {ports.FIRST} and {ports.LAST}", reason="PortTaken")
    context.ports[spec.name] = port
    return port


def tree_of(context: Context, launch: Launch, main: Ident, on_exit: Callable[[Watched], None]) -> Tree:
    """The processes of the launch; each new one is put on record."""
    return Tree(main, on_exit, lambda: context.record_soon(record(context, launch)), roles.serves)


async def start(context: Context, launch: Launch, on_exit: Callable[[Watched], None]) -> int:
    """Start the processes; returns the main one's pid. Raises StartFailed, also when the launch was ended meanwhile."""
    try:
        command = await prepare(context, launch)
        if launch.ending:
            raise StartFailed("ended before it was started")
        env = spawn.scrubbed_env(os.environ, command.env)
        log = context.state_dir / "logs" / f"{launch.name}.log"
        launch.started = time.time()
        crash.point("spawn")
        launch.child = spawn.start(command.argv, env, log)
        crash.point("spawned")
        seen = procfs.stat(launch.child.pid)
        # our own child cannot be reaped by anyone else, so its entry is there even if it died at once
        main = seen.ident if seen else Ident(launch.child.pid, 0)
        launch.tree = tree_of(context, launch, main, on_exit)
        launch.tree.add(main, procfs.title(main.pid) or command.argv[2])
        await record(context, launch)
        crash.point("recorded")
        return main.pid
    except ConfigError as error:
        raise StartFailed(error.message, reason=error.reason) from None
    except OSError as error:
        raise StartFailed(f"cannot be started: {error}") from None
    finally:
        launch.starting.set()


async def record(context: Context, launch: Launch) -> None:
    """Put the launch and its processes, main first, into the state file; no process and no stage once it has ended."""
    tree = launch.tree
    living = tree.living if tree else []
    main = [w for w in living if tree and w.ident == tree.main]
    rest = [w for w in living if tree and w.ident != tree.main]
    state = GroupState(
        group=launch.spec.name,
        generation=launch.generation,
        launch=launch.name,
        boot_id=procfs.boot_id(),
        port=launch.port,
        count=context.state.read(launch.spec.name).count,
        processes=[Process(w.ident.pid, w.ident.start, w.title, w.parent) for w in (*main, *rest)],
        stage=("checked" if launch.checked else "started") if living else "",
        lease=launch.lease,
        started=launch.started,
        spec=msgspec.to_builtins(launch.spec),
        pool=msgspec.to_builtins(launch.pool),
        model=msgspec.to_builtins(launch.model) if launch.model else None,
        answer=list(launch.canary.expected) if launch.canary else [],
    )
    await asyncio.to_thread(context.state.write, state)


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


async def end(context: Context, launch: Launch, graceful: float = 0.0) -> None:
    """End every process and return when all are gone, however long that takes.

    `graceful` seconds are given after a SIGTERM to the main process alone; 0 is SIGKILL at once.
    """
    launch.ending = True
    tree = launch.tree
    crash.point("kill")
    if tree is not None and not graceful:
        tree.kill()  # before the first await: this is the time that counts
    await launch.starting.wait()
    tree = launch.tree
    if tree is not None:
        if graceful:
            await _ask_to_go(launch, tree, graceful)
        tries = 0
        while not await kill.kill_tree(tree, 10.0):
            tries += 1
            left = [f"{w.title} (pid {w.ident.pid})" for w in tree.living]
            log = context.log_of(launch.spec.name, launch.name, launch.generation)
            log.error("processes do not die", left=left, waited_s=10 * tries)
        if launch.child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launch.child.wait(0.5)
        crash.point("killed")
        await record(context, launch)
        await asyncio.to_thread(_sweep, launch, tree)
        tree.close()
    if launch.key_path is not None:
        launch.key_path.unlink(missing_ok=True)


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


async def end_recorded(context: Context, group: str) -> None:
    """End what an earlier life of the daemon left running, and forget it."""
    state = context.state.read(group)
    recorded = [p.ident for p in context.state.leftovers(group)]
    if state.launch:
        # it may have died between the start of a process and the record of it
        recorded += await asyncio.to_thread(procfs.marked, command_line.MARK, state.launch)
    began = time.monotonic()
    if recorded:
        known = frozenset(recorded)
        while left := await asyncio.to_thread(kill.kill_recorded, recorded[0], known):
            known |= frozenset(left)
            await asyncio.sleep(0.05)
            if time.monotonic() - began > 10.0:
                log = context.log_of(group, context.state.read(group).launch)
                log.error("processes of an earlier launch do not die", left=len(left))
                began = time.monotonic()
    pids = frozenset(p.pid for p in recorded)
    await asyncio.to_thread(lambda: kill.remove_from_shm(kill.left_in_shm((), pids, 0.0)))
    if state.launch:
        key_path(context, state.launch).unlink(missing_ok=True)
    await asyncio.to_thread(
        context.state.write,
        GroupState(group=group, generation=state.generation, launch=state.launch, port=state.port, count=state.count),
    )
