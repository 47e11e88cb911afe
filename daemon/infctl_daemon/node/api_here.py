"""What is here of a group now, alike for a launch of ours and for our part of a launch that another host owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infctl.domain.group import ALIVE
from infctl.store.stamp import text_of
from infctl_daemon.node.group_loop import GroupLoop
from infctl_daemon.node.launch import Launch
from infctl_daemon.node.member_loop import MemberLoop
from infctl_daemon.proc.ended import Ended


@dataclass(frozen=True, slots=True)
class Here:
    """`alive`: it has not been ended; `gone`: no process of it is left. `node_rank` is 0 for a launch of ours.

    `reason` and `message` say why it ended; `running` is what is held of its processes, None where nothing is.
    """

    group: str
    launch: str
    phase: str
    since: str
    alive: bool
    gone: bool
    reason: str = ""
    message: str = ""
    generation: int = 0
    node_rank: int = 0
    running: Launch | None = None

    def told(self) -> dict[str, Any]:
        """As the API says it."""
        tree = self.running.tree if self.running else None
        return {
            "phase": self.phase,
            "since_at": self.since,
            "launch": self.launch,
            "reason": self.reason,
            "message": self.message,
            "pid": tree.main.pid if tree and tree.living else 0,
            "processes": len(tree.living) if tree else 0,
        }

    def as_record(self) -> Ended:
        """As those that have ended are kept."""
        started = self.running.started if self.running else 0.0
        return Ended(
            group=self.group,
            launch=self.launch,
            generation=self.generation,
            node_rank=self.node_rank,
            reason=self.reason,
            message=self.message,
            ended_at="",
            started_at=text_of(started * 1000.0) if started else "",
        )


def of_group(loop: GroupLoop) -> Here:
    """A launch of a group of ours."""
    state, alive = loop.state, loop.state.phase in ALIVE
    return Here(
        group=loop.name,
        launch=state.launch,
        phase=str(state.phase),
        since=loop.since,
        alive=alive,
        gone=state.gone,
        reason="" if alive else state.end_reason,
        message="" if alive else state.end_evidence,
        generation=state.generation,
        running=_named(loop.executor.launch, state.launch),
    )


def of_part(loop: MemberLoop) -> Here:
    """Our part of a launch of another host."""
    state, running = loop.state, _named(loop.work.launch, loop.state.launch)
    return Here(
        group=loop.name,
        launch=state.launch,
        phase=str(state.phase),
        since=loop.since,
        alive=loop.alive,
        gone=state.gone,
        reason="" if loop.alive else state.end_reason,
        message="" if loop.alive else state.end_evidence,
        node_rank=running.node_rank if running else 0,
        running=running,
    )


def _named(launch: Launch | None, name: str) -> Launch | None:
    return launch if launch is not None and launch.name == name else None
