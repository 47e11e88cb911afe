"""What the read-only API tells of a node: plain data, taken from the group loops and the records of ended launches.

Nothing here changes anything. Field names are those of logs and etcd (snake_case), times RFC 3339 UTC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from infctl.domain.group import ALIVE, Phase
from infctl.domain.ids import NAME
from infctl.store.records import NodeLease
from infctl.store.stamp import text_of
from infctl_daemon.node.api_errors import not_found
from infctl_daemon.node.context import Context
from infctl_daemon.node.endings import digest
from infctl_daemon.node.group_loop import GroupLoop
from infctl_daemon.proc import ended as records
from infctl_daemon.proc.ended import Ended

_STARTING = frozenset({Phase.SPAWNING, Phase.LOADING, Phase.CANARY})
SUPERVISED_BY = "session"  # a process session of its own, and a scan for its members

P = ParamSpec("P")
T = TypeVar("T")


class Facts:
    """`holding` is what the daemon may claim of its lease; `listed` whether it has read what it is to run.

    Files are read in threads of our own: a slow disk keeps readers waiting, never the supervision.
    """

    def __init__(
        self,
        context: Context,
        loops: Mapping[str, GroupLoop],
        record: Callable[[], NodeLease],
        holding: Callable[[], str],
        listed: Callable[[], bool],
    ) -> None:
        self._context = context
        self._loops = loops
        self._record = record
        self._holding = holding
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="read-api")
        self.listed = listed
        self.node = context.node

    async def in_thread(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*arguments, **named))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # the node
    def status(self) -> dict[str, Any]:
        record = self._record()
        return {
            "node": self.node,
            "version": record.version,
            "incarnation": record.incarnation,
            "boot_id": record.boot_id,
            "started_at": record.started_at,
            "lease": self._holding(),
            "listed": self.listed(),
            "supervised_by": SUPERVISED_BY,
            "groups": [self._group(name) for name in sorted(self._loops)],
        }

    def _group(self, name: str) -> dict[str, Any]:
        loop = self._loops[name]
        state, launch = loop.state, loop.executor.launch
        tree = launch.tree if launch and launch.name == state.launch else None
        spec = self._context.world.specs.get(name)
        return {
            "group": name,
            "pool": spec[0].pool if spec else "",
            "wanted": spec is not None,
            "phase": str(state.phase),
            "since_at": loop.since,
            "generation": state.generation,
            "launch": state.launch,
            "reason": "" if state.phase in ALIVE else state.end_reason,
            "message": "" if state.phase in ALIVE else state.end_evidence,
            "pid": tree.main.pid if tree and tree.living else 0,
            "processes": len(tree.living) if tree else 0,
            "restarts": loop.restarts,
        }

    # launches
    async def launches(self, group: str) -> list[dict[str, Any]]:
        """This launch and the ended ones that are still known, newest first. Raises ApiError (404)."""
        ended = await self._ended_of(group)
        loop = self._loops.get(group)
        if loop is None and not ended:
            raise not_found(f"group {group} is not of this node")
        every = list(ended)
        launch = loop.executor.launch if loop else None
        if loop is not None and loop.state.launch and loop.state.launch not in {r.launch for r in ended}:
            known = launch if launch and launch.name == loop.state.launch else None
            now = Ended(
                group=group,
                launch=loop.state.launch,
                generation=loop.state.generation,
                reason="" if loop.state.phase in ALIVE else loop.state.end_reason,
                message="" if loop.state.phase in ALIVE else loop.state.end_evidence,
                ended_at="",
                started_at=text_of(known.started * 1000.0) if known and known.started else "",
            )
            every.insert(0, now)
        printed = await self.in_thread(lambda: {r.launch for r in every if self.log_path(r.launch).exists()})
        return [self._told_of(record, record.launch in printed) for record in every]

    async def _ended_of(self, group: str) -> list[Ended]:
        return await self.in_thread(records.read, self._context.state_dir, group) if NAME.fullmatch(group) else []

    def _told_of(self, record: Ended, printed: bool) -> dict[str, Any]:
        told: dict[str, Any] = msgspec.to_builtins(record)
        del told["v"], told["key_digest"]
        if record.ended_at:
            told["state"] = "ended"
        else:
            told["state"] = "running" if self.alive(record.group, record.launch) else "ending"
        return told | {"node": self.node, "log": str(self.log_path(record.launch)) if printed else ""}

    def log_path(self, launch: str) -> Path:
        return records.log_path(self._context.state_dir, launch)

    def running(self, group: str, launch: str) -> bool:
        """Whether a process of it may still print something."""
        loop = self._loops.get(group)
        return loop is not None and loop.state.launch == launch and not loop.state.gone

    def alive(self, group: str, launch: str) -> bool:
        """Whether it is the launch of its group and has not been ended."""
        loop = self._loops.get(group)
        return loop is not None and loop.state.launch == launch and loop.state.phase in ALIVE

    async def key_digest(self, group: str, launch: str) -> str:
        """What the key of a launch is compared with; "" where the launch, or its key, is not known here."""
        loop = self._loops.get(group)
        current = loop.executor.launch if loop else None
        if current is not None and current.name == launch:
            return digest(current.api_key)
        return next((r.key_digest for r in await self._ended_of(group) if r.launch == launch), "")

    async def serving(self, group: str, launch: str) -> dict[str, Any]:
        """Whether a launch is the one that serves for its group here; `over`: it never will again.

        Over is said only of what we know to have ended: a daemon that has just begun knows of nothing yet.
        """
        ended = any(record.launch == launch for record in await self._ended_of(group))
        loop = self._loops.get(group)
        alive = self.alive(group, launch) and not ended
        return {
            "node": self.node,
            "group": group,
            "launch": launch,
            "serving": bool(alive and loop is not None and loop.state.phase not in _STARTING),
            "over": ended or (loop is not None and loop.state.launch != "" and not alive),
            "phase": str(loop.state.phase) if loop else "",
            "generation": loop.state.generation if loop else 0,
            "current_launch": loop.state.launch if loop else "",
            "since_at": loop.since if loop else "",
            "lease": self._holding(),
        }
