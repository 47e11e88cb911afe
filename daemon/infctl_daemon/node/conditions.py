"""The conditions of a group's status: liveness and readiness as separate answers, each with the moment it turned.

A condition keeps its `since` for as long as its answer stays the same, whatever its reason says meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from infctl.domain.group import ALIVE, Group, Phase
from infctl.domain.health import Finding
from infctl.store.records import Condition
from infctl.store.stamp import now_text

_ANSWER = {True: "True", False: "False", None: "Unknown"}


def before_service(group: Group, processes: int) -> tuple[Finding, ...]:
    """What can be said while nothing is watched yet, or any more."""
    alive = group.phase in ALIVE and processes > 0
    live = Finding("Live", alive or None if group.phase in ALIVE else False, "ProcessesAlive" if alive else "NoProcess")
    return live, Finding("Ready", False, f"Phase{group.phase.capitalize()}")


class Conditions:
    """Those of one group, over all its launches."""

    def __init__(self) -> None:
        self._known: dict[str, Condition] = {}

    def now(self, group: Group, processes: int, findings: Sequence[Finding] | None) -> list[Condition]:
        """The conditions as they are; only a changed answer gets a new `since`."""
        found = list(findings or before_service(group, processes))
        if findings and group.phase is not Phase.READY:
            found = [
                *(f for f in found if f.type != "Ready"),
                Finding("Ready", False, f"Phase{group.phase.capitalize()}"),
            ]
        made = {}
        for one in found:
            answer = _ANSWER[one.holds]
            old = self._known.get(one.type)
            since = old.since if old is not None and old.status == answer else now_text()
            made[one.type] = Condition(
                type=one.type, status=answer, reason=one.reason, message=one.message, since=since
            )
        self._known = made
        return list(made.values())
