"""What the end of one process of a launch means: whose it was, how it ended, and the cause."""

from __future__ import annotations

from dataclasses import dataclass

from infctl.domain.causes import Cause, classify
from infctl_daemon.node import launch as launches
from infctl_daemon.node import post_mortem
from infctl_daemon.node.context import Context
from infctl_daemon.node.launch import Launch
from infctl_daemon.proc import ended
from infctl_daemon.proc.pidfd import Watched


@dataclass(frozen=True, slots=True)
class Exit:
    title: str
    status: str
    cause: Cause


def exit_of(context: Context, launch: Launch, one: Watched) -> Exit | None:
    """The end of `one`, where that is the launch's end."""
    found = launches.exit_event(launch, one)
    if found is None:
        return None
    if launch.first_end is None and not launch.ending:
        launch.first_end = one
    title, status = found
    code = launch.code_of(one)
    if code == 0:
        status += ", which nobody asked for"
    log = ended.log_path(context.state_dir, launch.name)
    killed = launch.container.oom_kills() if launch.container else 0
    return Exit(title, status, classify(post_mortem.evidence(code, log, killed)))
