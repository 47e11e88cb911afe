"""The other hosts of a launch, as its owner sees them: the plan they start from, and what their rank keys say.

Kept true: the plan is written until the store has it or the launch is over; a host counts as lost when its key went,
never because the store is away (R5); nothing here ends a launch, except that a plan was refused.
"""

from __future__ import annotations

import asyncio

from infctl.config.host_address import is_loopback
from infctl.domain.errors import StoreError
from infctl.store.codec import BadRecord
from infctl.store.records import GroupSpec, RankPart
from infctl_daemon.engine import roles
from infctl_daemon.node import plans
from infctl_daemon.node.context import Context
from infctl_daemon.node.launch import Launch

RETRY = 0.5
LOADED = "loaded"


def not_ready(context: Context, spec: GroupSpec) -> str:
    """Why a launch over these hosts cannot begin now, as one sentence; "" when it can."""
    world, others = context.world, [h.node for h in spec.placement[1:]]
    if not others:
        return ""
    if away := [node for node in others if node not in world.nodes]:
        return f"waits for {_nodes(away)}: no daemon is registered there"
    here = is_loopback(context.address)
    if odd := [node for node in others if is_loopback(world.nodes[node].engines_at) != here]:
        wrong = context.node if here else ", ".join(odd)
        return f"other hosts cannot reach {_nodes([wrong])}: its address in node.yaml is a loopback one"
    return ""


def _nodes(names: list[str]) -> str:
    return ", ".join(f"node/{name}" for name in names)


def others(launch: Launch) -> list[str]:
    return [host.node for host in launch.spec.placement[1:]]


def lost(context: Context, launch: Launch) -> tuple[str, ...]:
    """Hosts whose part the store does not have; none before it was asked."""
    if not context.world.listed:
        return ()
    known = context.world.parts.get(launch.name, {})
    return tuple(node for node in others(launch) if node not in known)


def left(context: Context, launch: str) -> list[str]:
    """Other hosts where something of the launch is left, as far as the store knows."""
    return sorted(node for node in context.world.parts.get(launch, {}) if node != context.node)


def waiting(context: Context, launch: Launch) -> str:
    """What of the other hosts has not loaded, as words; "" when all have."""
    known = context.world.parts.get(launch.name, {})
    words = []
    for node in others(launch):
        part = known.get(node)
        if part is None:
            there = node in context.world.nodes
            words.append(f"{node} has not begun" if there else f"no daemon is registered on {node}")
        elif part.state != LOADED:
            words.append(f"{node} is {part.state}" + (f" ({part.message})" if part.message else ""))
    return ", ".join(words)


def say(context: Context, launch: Launch, state: str, message: str = "") -> None:
    """Our own part's key; nothing for a launch of one host, which has none."""
    if len(launch.spec.placement) == 1:
        return
    context.rank_keys.say(
        RankPart(
            launch=launch.name,
            group=launch.spec.name,
            node=context.node,
            node_rank=launch.node_rank,
            state=state,
            pid=launch.tree.main.pid if launch.tree else 0,
            ranks=roles.ranks(launch.titles),
            wanted=launch.spec.ranks_per_host,
            message=message,
        )
    )


def waits_its_turn(context: Context, launch: Launch) -> str:
    """What of the group has to leave this host before the launch begins here, as one sentence; "" when nothing."""
    before = context.turns.before(launch.spec.name, launch.name)
    return f"waits for {before} to leave node/{context.node}" if before else ""


def withdraw(context: Context, group: str, launch: str) -> None:
    """Our part is gone."""
    context.rank_keys.withdraw(group, launch, context.node)


async def keep_planned(context: Context, launch: Launch) -> str:
    """Write the plan, however long the store takes; why not, when the launch is not the registered one any more."""
    assert launch.plan is not None
    while not launch.ending:
        try:
            refused = await plans.write(context.store, context.keys, launch.plan)
        except (StoreError, BadRecord):
            await asyncio.sleep(RETRY)
            continue
        return refused.why if refused is not None else ""
    return ""
