"""How an intent ended, out of what each of its executors said last: the worst decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infctl.domain.disruption import Rule
from infctl.domain.intents import State
from infctl.store.intent_records import IntentStatus


@dataclass(frozen=True, slots=True)
class Ended:
    """`guarded`: it failed for a rule of a pool. `cut` counts the streams that ended before their end."""

    state: str
    outcome: str
    message: str
    cut: int = 0
    guarded: bool = False


def node_of(status: IntentStatus) -> str:
    """The node whose daemon said it."""
    return status.executor.removeprefix("node/")


def ended(statuses: Sequence[IntentStatus]) -> Ended:
    """Of at least one status, all closed. With several executors each message names who said it."""
    worst = max(statuses, key=_badness)
    message = worst.message
    if len(statuses) > 1 and worst.outcome != "unchanged":
        said = [f"{s.executor}: {s.message}" for s in statuses if s.message and s.outcome != "unchanged"]
        message = "; ".join(said)
    return Ended(worst.state, worst.outcome, message, sum(s.cut for s in statuses), _is_guarded(worst))


def _is_guarded(status: IntentStatus) -> bool:
    return status.state == State.FAILED and any(rule in status.message for rule in Rule)


def _badness(status: IntentStatus) -> int:
    """Higher is worse. What a rule forbade can be asked for again; what failed otherwise wants to be looked at."""
    if status.state == State.FAILED and status.outcome != "refused":
        return 6 if _is_guarded(status) else 8
    if status.outcome == "refused" or status.state == State.EXPIRED:
        return 7
    order = ("unchanged", "cordoned", "drained", "restarted", "undrained")
    return order.index(status.outcome) if status.outcome in order else len(order)
