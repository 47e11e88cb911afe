"""One group's drain as a line of its intent's status."""

from __future__ import annotations

import asyncio

from infctl.domain.drain_progress import progress
from infctl.store.intent_records import DrainProgress
from infctl.store.stamp import now_ms, text_of
from infctl_daemon.node.context import Context
from infctl_daemon.node.drains import GroupDrain


def line(drain: GroupDrain, context: Context) -> DrainProgress:
    """Moments become wall-clock time here."""
    now = progress(drain.state)
    offset_ms = now_ms() - asyncio.get_running_loop().time() * 1000.0

    def wall_ms(at: float) -> float:
        # whole tenths: the same moment reads the same in every line
        return round((at * 1000.0 + offset_ms) / 100.0) * 100.0

    hosts = drain.hosts_left
    waits_for = now.waits_for + (f", also on {', '.join(f'node/{node}' for node in hosts)}" if hosts else "")
    return DrainProgress(
        group=drain.state.group,
        stage=str(now.stage),
        streams=now.streams,
        tokens=now.tokens,
        oldest_at_ms=wall_ms(now.oldest_at) if now.oldest_at else 0.0,
        waits_for=waits_for,
        next=now.next,
        next_at=text_of(wall_ms(now.next_at)) if now.next_at else "",
        outcome=str(drain.state.result or ""),
        message=drain.state.why,
        moved=drain.moved,
        cut=drain.cut,
    )
