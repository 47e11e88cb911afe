"""Takes over the launch of the daemon's earlier life, from the state file and the living processes alone.

Kept true: only a launch whose main process and every process that serves are the very ones recorded (pid, start time,
boot) is taken over, and only with its key; whatever is missing makes it `Lost`, with the reason and the evidence. The
store is not asked: whether the registration still holds is found out when the launch is published.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import yaml

from infctl.domain.causes import Cause
from infctl.domain.errors import StartFailed
from infctl.store.records import GroupSpec, LaunchPlan, PoolSpec
from infctl_daemon.engine import roles
from infctl_daemon.engine.identity import Identity
from infctl_daemon.node.context import Context
from infctl_daemon.node.launch import Launch, found, record, tree_of
from infctl_daemon.node.prepare import give_engine, key_path
from infctl_daemon.proc import procfs
from infctl_daemon.proc.container import Container
from infctl_daemon.proc.pidfd import Tree, Watched
from infctl_daemon.proc.state_file import GroupState

T = TypeVar("T")

AWAY = "while no daemon was here"


class Lost(Exception):
    """The launch cannot go on."""

    def __init__(self, reason: str, evidence: str) -> None:
        super().__init__(evidence)
        self.reason = reason
        self.evidence = evidence


async def adopt(context: Context, group: str, on_exit: Callable[[Launch, Watched], None]) -> Launch | None:
    """The launch, watched from here on; None where the last one has ended. Raises Lost."""
    state = context.state.read(group)
    if not state.unfinished:
        return None
    container = await found(context, state) if state.container else None
    check_living(state, await _how_it_ended(container, state))
    launch = _rebuilt(context, state)
    launch.container = container
    tree = await _watched(context, launch, state, on_exit)
    launch.tree = tree
    launch.starting.set()
    if state.port:
        context.ports[group] = state.port
        context.reserved.take(state.port, state.address)
    await record(context, launch)
    return launch


def check_living(state: GroupState, how: str = "") -> None:
    """Looks at processes alone. Raises Lost when those of the launch are not all there; `how` its main one ended."""
    if state.boot_id and state.boot_id != procfs.boot_id():
        raise Lost(Cause.HOST_REBOOTED, "the machine was started anew")
    if not state.processes:
        raise Lost(Cause.DAEMON_RESTARTED, "the launch had been claimed, but no process was recorded")
    _all_alive(state, how)


async def _how_it_ended(container: Container | None, state: GroupState) -> str:
    """What is still known of the main process's end; systemd keeps that."""
    if container is None or not state.processes or procfs.is_alive(state.processes[0].ident):
        return ""
    try:
        return (await container.status()).text
    except StartFailed:
        return ""


def _all_alive(state: GroupState, how: str = "") -> None:
    """Raises Lost that names every process that serves and has ended."""
    serve = (p for p in state.processes if p is state.processes[0] or roles.serves(p.title, p.parent))
    ended = [f"{p.title or 'main process'} (pid {p.pid})" for p in serve if not procfs.is_alive(p.ident)]
    if ended:
        raise Lost(Cause.CRASH, f"{', '.join(ended)} ended {AWAY}" + f": {how}" * bool(how))


def _rebuilt(context: Context, state: GroupState) -> Launch:
    spec, pool = _converted(state.spec, GroupSpec), _converted(state.pool, PoolSpec)
    model = _converted(state.model, Identity)
    path = key_path(context, state.launch)
    try:
        key = yaml.safe_load(path.read_text(encoding="utf-8"))["api-key"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        key = None
    if spec is None or pool is None or model is None or not isinstance(key, str):
        raise Lost(Cause.DAEMON_RESTARTED, f"{path} or the record of what was started is gone")
    launch = Launch(state.launch, spec, pool, state.generation, lease=state.lease, api_key=key, model=model)
    launch.node_rank, launch.plan = state.node_rank, _converted(state.plan, LaunchPlan)
    launch.address, launch.port = state.address, state.port
    launch.started, launch.key_path = state.started, path
    launch.checked = state.stage == "checked"
    give_engine(context, launch, model).resume(tuple(state.answer), context.store, context.keys)
    return launch


def _converted(value: dict[str, Any] | None, kind: type[T]) -> T | None:
    try:
        return msgspec.convert(value, kind) if value is not None else None
    except msgspec.ValidationError:
        return None


async def _watched(
    context: Context, launch: Launch, state: GroupState, on_exit: Callable[[Launch, Watched], None]
) -> Tree:
    tree = tree_of(context, launch, state.processes[0].ident, lambda one: on_exit(launch, one))
    tree.loading = not launch.checked
    tree.shm |= set(state.shm)
    for one in state.processes:
        tree.add(one.ident, one.title, one.parent)
    await tree.scan(deep=True)
    _all_alive(state)  # one that died between the first look and the watch was never told of
    return tree
