"""Removes what holds the launches of a daemon that was killed, with everything in it."""

from __future__ import annotations

import time
from pathlib import Path

from infctl_daemon.proc import cgroupfs, choose


def remove_cgroups(state_dir: Path) -> None:
    """Those of the daemon with this state folder; raises AssertionError when one stays."""
    parent = choose.cgroup_parent()
    if isinstance(parent, str):
        return
    for path in parent.glob(f"infctl-*.{choose.mark_of(state_dir)}"):
        cgroupfs.kill(path)
        end = time.monotonic() + 10
        while not cgroupfs.remove(path):
            assert time.monotonic() < end, f"{path} holds {cgroupfs.pids(path)}"
            time.sleep(0.02)
