"""The hosts of a group over several, each with what its daemon says of its part, for every front end alike."""

from __future__ import annotations

from dataclasses import dataclass

from infctl.store.records import GroupSpec, Host, RankPart
from infctl.view.snapshot import Snapshot

NOT_THERE, NOT_HEARD = "not there", "not heard"


@dataclass(frozen=True, slots=True)
class HostPart:
    """One host of a group. `part` is its rank key, which is gone with its node's lease; `heard`: that lease lives."""

    node: str
    node_rank: int
    gpus: tuple[str, ...]
    wanted: int
    heard: bool
    part: RankPart | None

    @property
    def state(self) -> str:
        """What is known of the part, in a word or two."""
        if self.part is not None:
            return self.part.state
        return NOT_THERE if self.heard else NOT_HEARD

    @property
    def loaded(self) -> bool:
        return self.part is not None and self.part.state == "loaded"


def running_spec(s: Snapshot, group: str) -> GroupSpec | None:
    """What the registered launch runs by: a specification that was changed since counts at the next one."""
    generation = s.generations.get(group)
    plan = s.plans.get(generation.launch) if generation else None
    return plan.spec if plan else s.groups.get(group)


def host_parts(s: Snapshot, group: str) -> list[HostPart]:
    """Every host of the registered launch by its node-rank; none for a group of one host, which has no rank keys."""
    spec, generation = running_spec(s, group), s.generations.get(group)
    if spec is None or len(spec.placement) == 1:
        return []
    known = s.parts.get(generation.launch, {}) if generation else {}
    return [_part(s, spec, rank, host, known.get(host.node)) for rank, host in enumerate(spec.placement)]


def _part(s: Snapshot, spec: GroupSpec, rank: int, host: Host, part: RankPart | None) -> HostPart:
    return HostPart(host.node, rank, tuple(host.gpus), spec.ranks_per_host, host.node in s.node_leases, part)


def guests(s: Snapshot, node: str) -> list[tuple[str, HostPart]]:
    """Parts on this node of groups that other hosts own, by group."""
    names = sorted({*s.groups, *s.generations})
    found = [(name, part) for name in names for part in host_parts(s, name) if part.node == node]
    return [(name, part) for name, part in found if part.node_rank]
