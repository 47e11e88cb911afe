"""The fault notices of one group as this node writes them: one for a launch, however often it is tried."""

from __future__ import annotations

from infctl.store.records import FaultNotice
from infctl.store.stamp import fault_id, now_ms, now_text


class Notices:
    """Of the newest launch that ended; `node` is who writes."""

    def __init__(self, node: str, group: str) -> None:
        self._node = node
        self._group = group
        self._last: FaultNotice | None = None

    def of(self, launch: str) -> FaultNotice | None:
        """That of the launch, where it has one."""
        return self._last if self._last is not None and self._last.launch == launch else None

    def make(self, launch: str, generation: int, reason: str, evidence: str) -> FaultNotice:
        """The launch's notice; the moment in it is that of the first try."""
        if (known := self.of(launch)) is not None:
            return known
        self._last = FaultNotice(
            fault_id=fault_id(),
            group=self._group,
            launch=launch,
            generation=generation,
            reason=reason,
            evidence=evidence,
            by=f"node/{self._node}",
            at=now_text(),
            at_ms=now_ms(),
        )
        return self._last
