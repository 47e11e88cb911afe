"""Records of what operators want done once, of what became of it, and of groups that are held or taken away on purpose.

As in `store.records`: snake_case, durations in seconds unless the name ends in `_ms`, times RFC 3339 UTC.
"""

from __future__ import annotations

from typing import Any

import msgspec

from infctl.store.codec import Record


class Hold(Record, frozen=True, kw_only=True):
    """`groups/<g>/hold`: no launch of the group is started. `by` is what was drained: the group or its node.

    `state` is "draining" until its launch is stopped, then "drained".
    """

    group: str
    intent: str
    by: str
    state: str
    actor: str = ""
    reason: str = ""
    at: str = ""


class Intent(Record, frozen=True, kw_only=True):
    """`intents/<id>`: what an operator wants done once. Written by infctl, carried out by the target's daemon.

    `generation` is the one that the target had when the operator looked (0: none, or a node). Who has not begun it by
    `not_after_ms` (epoch milliseconds) leaves it alone. `executors` are the nodes whose daemons carry out what is
    wanted of a node, itself first: each does its share and has a status of its own. Empty: the group's owner does.
    """

    intent: str
    kind: str
    target: str
    generation: int = 0
    actor: str = ""
    reason: str = ""
    at: str = ""
    not_after_ms: float = 0.0
    executors: list[str] = msgspec.field(default_factory=list)
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class DrainProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one group is. Counts are of running streams; `next` is what happens at `next_at` at the latest."""

    group: str
    stage: str
    streams: int = 0
    oldest_at_ms: float = 0.0
    tokens: int = 0
    waits_for: str = ""
    next: str = ""
    next_at: str = ""
    outcome: str = ""
    message: str = ""
    moved: int = 0
    cut: int = 0


class IntentStatus(Record, frozen=True, kw_only=True):
    """`intents/<id>/status/<executor>`: `state` is running, done, failed or expired; the last three never change.

    `outcome` is a stable word: drained, undrained, restarted, cordoned, uncordoned, unchanged, refused,
    failed, expired.
    """

    intent: str
    executor: str
    state: str
    began_at: str = ""
    began_ms: float = 0.0
    deadline_at: str = ""
    outcome: str = ""
    message: str = ""
    moved: int = 0
    cut: int = 0
    groups: list[DrainProgress] = msgspec.field(default_factory=list)
    updated_at: str = ""


class Disruption(msgspec.Struct, frozen=True, kw_only=True):
    """One group that is being taken away on purpose, by the daemon of `node`."""

    node: str
    intent: str
    at: str = ""


class Disruptions(Record, frozen=True, kw_only=True):
    """`disruptions/<p>`: every group of the pool that is being taken away now. Written by compare-and-swap only."""

    pool: str
    groups: dict[str, Disruption] = msgspec.field(default_factory=dict)
