"""The last snapshot of what others wrote, as far as this node needs it. Data and small questions only."""

from __future__ import annotations

from dataclasses import dataclass, field

from infctl.store.intent_records import Hold
from infctl.store.records import GroupSpec, NodeLease, PoolSpec, RankPart, Suspicion


@dataclass(slots=True)
class World:
    """`specs` are those of our groups, with their revision in the store; `holds` and `owners` those of any group.

    `nodes` are the hosts whose daemons hold a lease, `cordons` the nodes that take nothing new;
    `parts` are the rank keys of each launch over several hosts, by host.
    What is missing means nothing before everything was `listed` once (R5).
    """

    specs: dict[str, tuple[GroupSpec, int]] = field(default_factory=dict)
    pools: dict[str, PoolSpec] = field(default_factory=dict)
    suspicions: dict[tuple[str, str], dict[str, Suspicion]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    nodes: dict[str, NodeLease] = field(default_factory=dict)
    cordons: set[str] = field(default_factory=set)
    parts: dict[str, dict[str, RankPart]] = field(default_factory=dict)
    listed: bool = False

    def set_part(self, launch: str, node: str, part: RankPart | None) -> None:
        if part is not None:
            self.parts.setdefault(launch, {})[node] = part
        elif launch in self.parts:
            self.parts[launch].pop(node, None)
            if not self.parts[launch]:
                del self.parts[launch]
