"""Everything that is settled before a process of a launch exists: model, address, ports, where ranks meet, the command.

Kept true: what can be refused is refused here, with the reason, before anything is loaded; a host that joins takes what
the owner planned and chooses only its own port.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from infctl.domain.errors import StartFailed
from infctl.store.records import GroupSpec, LaunchPlan
from infctl.store.stamp import now_text
from infctl_daemon.engine import argv as command_line
from infctl_daemon.engine import identity
from infctl_daemon.engine.canary import Canary
from infctl_daemon.engine.identity import Identity
from infctl_daemon.engine.probe import Engine
from infctl_daemon.node.context import Context
from infctl_daemon.node.unsupported import unsupported
from infctl_daemon.proc import ports
from infctl_daemon.proc.state_file import write_durably

if TYPE_CHECKING:
    from infctl_daemon.node.launch import Launch

PORT_WAIT = 5.0  # after SIGKILL the kernel may hold a port for moments; longer means somebody else


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
    if launch.plan is not None and launch.model.revision != launch.plan.revision:
        raise StartFailed(
            f"the model here has revision {launch.model.revision}, and that of the owner {launch.plan.revision}",
            reason="WrongRevision",
        )
    launch.address = context.address
    if not ports.is_ours(launch.address):
        raise StartFailed(f"{launch.address} is no address of this host: see address in node.yaml")
    launch.port = await _port(context, spec)
    rendezvous = _rendezvous(context, launch)
    _plan(launch, rendezvous)
    launch.key_path = key_path(context, launch.name)
    command = command_line.build(
        spec,
        served_model=launch.pool.model,
        revision=launch.model.revision,
        launch=launch.name,
        port=launch.port,
        address=launch.address,
        rendezvous=rendezvous,
        config=launch.key_path,
        host=launch.node_rank,
        leader=launch.plan.leader if launch.plan else "",
    )
    await asyncio.to_thread(write_durably, launch.key_path, command_line.key_file(launch.api_key))
    give_engine(context, launch, launch.model)
    return command


def give_engine(context: Context, launch: Launch, model: Identity) -> Canary:
    """The ways to speak with the engine, once its address, key and model are known."""
    launch.engine = Engine(context.http, context.kept, launch.url, launch.api_key)
    launch.canary = Canary(
        launch.engine, model, launch.pool, context.node, group=launch.spec.name, say=context.events.say
    )
    return launch.canary


def _rendezvous(context: Context, launch: Launch) -> int:
    """Where the ranks meet: as planned, or another port at each launch. Raises StartFailed."""
    if launch.plan is not None:
        return launch.plan.rendezvous
    count = context.state.read(launch.spec.name).count
    hosts, most = len(launch.spec.placement), command_line.RENDEZVOUS_PORTS
    tries = (command_line.rendezvous_port(launch.port, count + i, hosts) for i in range(most))
    if port := next((p for p in tries if ports.is_free(p, launch.address)), 0):
        return port
    raise StartFailed(f"no free rendezvous port above {launch.port}", reason="PortTaken")


def _plan(launch: Launch, rendezvous: int) -> None:
    """What the other hosts are to start, where there are some."""
    if launch.plan is not None or len(launch.spec.placement) == 1 or launch.model is None:
        return
    launch.plan = LaunchPlan(
        launch=launch.name,
        group=launch.spec.name,
        owner=launch.spec.node,
        spec=launch.spec,
        served_model=launch.pool.model,
        revision=launch.model.revision,
        leader=launch.address,
        rendezvous=rendezvous,
        url=launch.url,
        at=now_text(),
    )


async def _port(context: Context, spec: GroupSpec) -> int:
    """The group's fixed port, the one it had, or a free one. Raises StartFailed when it is taken."""
    had = context.ports.get(spec.name) or context.state.read(spec.name).port
    wanted = spec.port or had
    if wanted and await ports.wait_free(wanted, PORT_WAIT if spec.port else 1.0, context.address):
        port = wanted if context.reserved.take(wanted, context.address) else 0
    else:
        port = 0
    if not port and spec.port:
        raise StartFailed(f"port {spec.port} is taken by another process", reason="PortTaken")
    if not port:
        others = {p for g, p in context.ports.items() if g != spec.name}
        take = partial(context.reserved.take, host=context.address)
        port = ports.choose(f"{context.state_dir}/{spec.name}", others, context.address, take)
        if not port:
            raise StartFailed(f"no free port between {ports.FIRST} and {ports.LAST}", reason="PortTaken")
    if had and had != port:
        context.reserved.release(had)
    context.ports[spec.name] = port
    return port
