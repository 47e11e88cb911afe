"""May one more group of a pool be taken away on purpose? The rules that hold for every drainer of a cluster.

A group that does not serve is no loss to anybody, so no rule speaks for it. Groups that others are taking away right
now count as gone already: who writes his own entry by compare-and-swap then decides on what all others decided.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """Why a voluntary disruption has to wait."""

    MIN_READY = "MinReady"
    BUDGET = "DisruptionBudget"


@dataclass(frozen=True, slots=True)
class Wait:
    rule: Rule
    why: str


def judge(
    group: str, *, pool: str, min_ready: int, budget: int, ready: Set[str], disrupted: Set[str], below_min: bool = False
) -> Wait | None:
    """None when `group` may be taken away. `ready` serve now, `disrupted` are being taken away by anybody.

    `below_min`: the operator says that the pool may fall below its minimum.
    """
    if group not in ready:
        return None
    others = disrupted - {group}
    if len(others) >= max(1, budget):
        names = ", ".join(f"group/{name}" for name in sorted(others))
        return Wait(Rule.BUDGET, f"pool/{pool} allows {max(1, budget)} disrupted at once: {names}")
    left = len(ready - others - {group})
    if left < min_ready and not below_min:
        return Wait(Rule.MIN_READY, f"pool/{pool} needs {min_ready} ready, {left} would be left")
    return None
