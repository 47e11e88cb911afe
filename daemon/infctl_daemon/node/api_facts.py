"""What the read-only API tells of a node: plain data, taken from its loops and the records of ended launches.

Nothing here changes anything. Field names are those of logs and etcd (snake_case), times RFC 3339 UTC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from infctl.domain.group import Phase
from infctl.domain.ids import NAME
from infctl.store.records import NodeLease
from infctl_daemon.node.api_errors import not_found
from infctl_daemon.node.api_here import Here, of_group, of_part
from infctl_daemon.node.context import Context
from infctl_daemon.node.endings import digest
from infctl_daemon.node.group_loop import GroupLoop
from infctl_daemon.node.member_loop import MemberLoop
from infctl_daemon.proc import ended as records
from infctl_daemon.proc.ended import Ended

_STARTING = frozenset({Phase.SPAWNING, Phase.LOADING, Phase.CANARY})
SUPERVISED_BY = "session"  # a process session of its own, and a scan for its members

P = ParamSpec("P")
T = TypeVar("T")


class Facts:
    """`loops` are our groups, `parts` our parts of those that other hosts own. `holding` is what the daemon may claim
    of its lease; `listed` whether it has read what it is to run.

    Files are read in threads of our own: a slow disk keeps readers waiting, never the supervision.
    """

    def __init__(
        self,
        context: Context,
        loops: Mapping[str, GroupLoop],
        parts: Mapping[str, MemberLoop],
        record: Callable[[], NodeLease],
        holding: Callable[[], str],
        listed: Callable[[], bool],
    ) -> None:
        self._context = context
        self._loops = loops
        self._parts = parts
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
            "groups": [self._group(loop) for _, loop in sorted(self._loops.items())],
            "parts": [self._part(loop) for _, loop in sorted(self._parts.items())],
        }

    def _group(self, loop: GroupLoop) -> dict[str, Any]:
        here = of_group(loop)
        spec = self._context.world.specs.get(here.group)
        return {
            "group": here.group,
            "pool": spec[0].pool if spec else "",
            "wanted": spec is not None,
            "generation": here.generation,
            "restarts": loop.restarts,
            **here.told(),
        }

    def _part(self, loop: MemberLoop) -> dict[str, Any]:
        here = of_part(loop)
        launch = here.running
        return {
            "group": here.group,
            "pool": launch.spec.pool if launch else "",
            "owner": launch.spec.node if launch else "",
            "node_rank": here.node_rank,
            **here.told(),
        }

    # launches
    def _here(self, group: str) -> list[Here]:
        """What is here of a group: a launch of ours, a part of another's, or of each one where the group moved."""
        found = [of_group(self._loops[group])] if group in self._loops else []
        found += [of_part(self._parts[group])] if group in self._parts else []
        return sorted((here for here in found if here.launch), key=lambda here: here.gone)

    async def launches(self, group: str) -> list[dict[str, Any]]:
        """This launch and the ended ones that are still known, newest first. Raises ApiError (404)."""
        ended = await self._ended_of(group)
        if group not in self._loops and group not in self._parts and not ended:
            raise not_found(f"group {group} is not of this node")
        known = {record.launch for record in ended}
        every = [here.as_record() for here in self._here(group) if here.launch not in known] + ended
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
        return any(here.launch == launch and not here.gone for here in self._here(group))

    def alive(self, group: str, launch: str) -> bool:
        """Whether it is the launch of its group and has not been ended."""
        return any(here.launch == launch and here.alive for here in self._here(group))

    async def key_digest(self, group: str, launch: str) -> str:
        """What the key of a launch is compared with; "" where the launch, or its key, is not known here.

        Nor is it known of another owner's launch: our part of it takes no requests.
        """
        loop = self._loops.get(group)
        current = loop.executor.launch if loop else None
        if current is not None and current.name == launch:
            return digest(current.api_key)
        return next((r.key_digest for r in await self._ended_of(group) if r.launch == launch and not r.node_rank), "")

    async def serving(self, group: str, launch: str) -> dict[str, Any]:
        """For a group of ours: whether a launch is the one that serves for its group here; `over`: it never will again.

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
