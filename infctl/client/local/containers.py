"""What held the processes of a launch and is empty now: removed where no daemon is left that would do it.

Only what the daemon's own state files name, and only when it is empty: the kernel refuses to remove another cgroup, and
a unit is stopped only where its name is one of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

_SYSTEMCTL_S = 10.0


async def remove_containers(state_dir: Path) -> None:
    """After every process of the launches has ended. Best effort: an empty container costs nothing."""
    for path in state_dir.rglob("*.json"):
        name = ""
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            name = str(json.loads(path.read_bytes()).get("container") or "")
        kind, _, where = name.partition(":")
        if not Path(where).name.startswith("infctl-"):
            continue
        if kind == "cgroup":
            with contextlib.suppress(OSError):
                os.rmdir(where)
        elif kind == "systemd":
            await _stop_unit(where)


async def _stop_unit(unit: str) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_SYSTEMCTL_S):
            done = await asyncio.create_subprocess_exec(
                "systemctl", "stop", unit, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
            )
            await done.wait()
