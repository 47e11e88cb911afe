"""What a drain or a restart will do, worked out before anything is written, by the rules that the daemon goes by."""

from __future__ import annotations

from dataclasses import dataclass

from infctl.client.listing import read_prefixes
from infctl.domain.disruption import Wait, judge
from infctl.domain.drain import Instants
from infctl.domain.errors import NotFound
from infctl.ports.store import Store
from infctl.store.keys import Keys
from infctl.store.records import Drain
from infctl.view.drains import executors, groups_on
from infctl.view.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group of `node`: `state` as a table shows it, running `streams`, and the rule that it would wait for now."""

    name: str
    node: str
    state: str
    serves: bool
    streams: int
    waits: Wait | None


@dataclass(frozen=True, slots=True)
class Plan:
    """`executors` are the nodes whose daemons carry it out, `unheard` those of them that are not there.

    `instants` are counted from its beginning.
    """

    target: str
    executors: tuple[str, ...]
    unheard: tuple[str, ...]
    groups: tuple[GroupPlan, ...]
    instants: Instants

    @property
    def streams(self) -> int:
        return sum(group.streams for group in self.groups)


async def make_plan(store: Store, keys: Keys, target: str, deadline: float = 0.0, *, below_min: bool = False) -> Plan:
    """Read everything at one revision; without a deadline that of the specification counts, of a node the longest.

    Raises NotFound and StoreError.
    """
    s = await read_prefixes(store, keys, ("nodes", "pools", "groups", "endpoints", "gateways"))
    kind, _, name = target.partition("/")
    if kind == "group":
        if name not in s.groups:
            raise NotFound(f"{target} not found", hint="infctl get groups")
        nodes, names = [s.groups[name].node], [name]
    else:
        if name not in s.node_leases and name not in s.node_specs and name not in s.node_status:
            raise NotFound(f"{target} not found", hint="infctl get nodes")
        nodes, names = executors(s, name), groups_on(s, name)
    timers = [s.groups[group].drain for group in names] or [Drain()]
    return Plan(
        target=target,
        executors=tuple(nodes),
        unheard=tuple(node for node in nodes if node not in s.node_leases),
        groups=tuple(_group(s, group, below_min) for group in names),
        instants=Instants.of(
            deadline or max(t.deadline for t in timers),
            min(t.hand_over for t in timers),
            max(t.kill_grace for t in timers),
        ),
    )


def _group(s: Snapshot, name: str, below_min: bool) -> GroupPlan:
    spec, status, endpoint = s.groups[name], s.group_status.get(name), s.endpoints.get(name)
    pool = s.pools.get(spec.pool)
    ready = {e.group for e in s.endpoints.values() if e.pool == spec.pool and e.state == "ready"}
    waits = None
    if pool is not None:
        waits = judge(
            name,
            pool=pool.name,
            min_ready=pool.min_ready,
            budget=pool.disruptions,
            ready=ready,
            disrupted=frozenset(),
            below_min=below_min,
        )
    loads = [g.launches.get(endpoint.launch) for g in s.gateways.values()] if endpoint else []
    hold = s.holds.get(name)
    return GroupPlan(
        name=name,
        node=spec.node,
        state=hold.state if hold else (status.phase if status else "unknown"),
        serves=endpoint is not None,
        streams=sum(load.streams for load in loads if load),
        waits=waits,
    )
