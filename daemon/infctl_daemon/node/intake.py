"""What others write, taken into the world of this node: each key in its place, and whoever it concerns is told.

Kept true: a record that cannot be read changes nothing, and is said once; losing the view changes nothing either (R5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from infctl.domain import group_events as ev
from infctl.domain.causes import Cause
from infctl.store.codec import BadRecord, decode
from infctl.store.intent_records import Hold
from infctl.store.records import FaultNotice, GroupSpec, NodeLease, NodeSpec, PoolSpec, RankPart, Suspicion
from infctl_daemon.node.context import Context
from infctl_daemon.node.group_loop import GroupLoop
from infctl_daemon.node.intents import Intents
from infctl_daemon.node.members import Members


class Intake:
    """`apply` acts on a specification of ours; `counted` is called when another set of groups is ours than before."""

    def __init__(
        self,
        context: Context,
        loops: Mapping[str, GroupLoop],
        members: Members,
        apply: Callable[[GroupSpec], None],
        counted: Callable[[], None],
    ) -> None:
        self._context = context
        self._loops = loops
        self._members = members
        self._apply = apply
        self._counted = counted
        self.intents = Intents(context, loops.get, self.let_go)
        self.unreadable: set[str] = set()

    def changed(self, key: str, value: bytes | None, revision: int) -> None:
        """One key that somebody else wrote or removed."""
        parts = self._context.keys.parts(key)
        try:
            self._members.changed(parts, value)
            match parts:
                case ("groups", group, "spec"):
                    self._group_changed(group, value, revision)
                    self.intents.look()
                case ("groups", group, "hold"):
                    self._hold_changed(group, value)
                case ("nodes", node, "spec"):
                    self._node_changed(node, value)
                case ("nodes", node, "lease"):
                    self._lease_changed(node, value)
                case ("groups", group, "ranks", launch, node):
                    part = decode(RankPart, value) if value is not None else None
                    self._context.world.set_part(launch, node, part)
                    if group in self._loops:
                        self._loops[group].hosts_changed(launch)
                case ("intents", *name):
                    self.intents.changed(tuple(name), value)
                case ("pools", pool, "spec"):
                    self._pool_changed(pool, value)
                case ("faults", group, launch) if value is not None and group in self._loops:
                    self._loops[group].post(ev.FaultSeen(launch, decode(FaultNotice, value).reason))
                case ("suspicions", group, launch, gateway) if group in self._loops:
                    self._suspicion(group, launch, gateway, value)
        except BadRecord as error:
            if key not in self.unreadable:
                self.unreadable.add(key)
                self._context.log.error("a record cannot be read: left as it was", key=key, why=error.message)
        else:
            self.unreadable.discard(key)

    def _group_changed(self, group: str, value: bytes | None, revision: int) -> None:
        world = self._context.world
        spec = decode(GroupSpec, value) if value is not None else None
        if spec is None:
            world.owners.pop(group, None)
        else:
            world.owners[group] = spec.node
        if spec is None or spec.node != self._context.node:
            known = world.specs.pop(group, None)
            if known is not None and group in self._loops:
                self._loops[group].post(ev.SpecDeleted(Cause.DELETED if spec is None else Cause.MOVED))
                self._counted()
            if known is not None and spec is None:
                self.intents.group_gone(group)
            return
        world.specs[group] = (spec, revision)
        self._apply(spec)

    def _hold_changed(self, group: str, value: bytes | None) -> None:
        holds = self._context.world.holds
        if value is None:
            holds.pop(group, None)
            self.let_go(group)
            return
        holds[group] = decode(Hold, value)
        if group in self._context.world.specs:
            self._apply(self._context.world.specs[group][0])

    def _node_changed(self, node: str, value: bytes | None) -> None:
        world = self._context.world
        if value is not None and decode(NodeSpec, value).cordoned:
            world.cordons.add(node)
        elif node in world.cordons:
            world.cordons.discard(node)
            for group, (spec, _) in list(world.specs.items()):
                if node in {host.node for host in spec.placement}:
                    self.let_go(group)

    def _lease_changed(self, node: str, value: bytes | None) -> None:
        nodes = self._context.world.nodes
        if value is None:
            nodes.pop(node, None)
        else:
            nodes[node] = decode(NodeLease, value)
            for group, (spec, _) in list(self._context.world.specs.items()):
                begun = group in self._loops and self._loops[group].begun
                if not begun and node in {host.node for host in spec.placement[1:]}:
                    self.let_go(group)

    def let_go(self, group: str) -> None:
        """Nothing of ours keeps the group any more: what its specification says holds again."""
        if (known := self._context.world.specs.get(group)) is not None:
            self._apply(known[0])

    def _pool_changed(self, pool: str, value: bytes | None) -> None:
        world = self._context.world
        if value is None:
            world.pools.pop(pool, None)  # groups that run go on; a new launch waits for the pool
            return
        first = pool not in world.pools
        world.pools[pool] = decode(PoolSpec, value)
        if first:
            for spec, _ in list(world.specs.values()):
                if spec.pool == pool:
                    self._apply(spec)

    def _suspicion(self, group: str, launch: str, gateway: str, value: bytes | None) -> None:
        suspicions = self._context.world.suspicions
        if value is None:
            suspicions.get((group, launch), {}).pop(gateway, None)
            if not suspicions.get((group, launch)):
                suspicions.pop((group, launch), None)
        else:
            suspicions.setdefault((group, launch), {})[gateway] = decode(Suspicion, value)
        self._loops[group].executor.suspected(launch)
