"""What the status of a group is made of: its last fault, its conditions, its hosts."""

from __future__ import annotations

from infctl.view.part import View


class FaultView(View, frozen=True, kw_only=True):
    """A notice that a launch is over; notices are kept for some minutes."""

    reason: str
    launch: str
    at: str


class ConditionView(View, frozen=True, kw_only=True):
    """One answer about health, the same since `since`: `status` is True, False or Unknown, as text."""

    type: str
    status: str
    reason: str | None
    message: str | None
    since: str | None


class HostPartView(View, frozen=True, kw_only=True):
    """One host's part of a launch over several. `state`: loading, loaded or stuck, and null where its rank key is not
    there, as it is when its daemon's lease is gone (`heard` is false) or before it has begun.

    `ranks` were seen of `wantedRanks`. `since`: when its daemon said so.
    """

    node: str
    node_rank: int
    heard: bool
    state: str | None
    message: str | None
    ranks: int | None
    wanted_ranks: int
    pid: int | None
    gpus: list[str]
    since: str | None
