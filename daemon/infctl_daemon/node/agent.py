"""The node daemon put together: what is watched becomes events of the groups that this node owns.

Kept true: a group is driven by one loop from the first sight of it to the daemon's end; losing the store, or not
having it yet, starts and stops nothing (R5); on the way out every group is stopped before the lease is given back.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil

from infctl.adapters.etcd import EtcdStore
from infctl.config.host_address import LOOPBACK
from infctl.config.read_api import ReadApi
from infctl.domain import group_events as ev
from infctl.domain.causes import Cause
from infctl.domain.errors import ConfigError
from infctl.domain.model import Limits
from infctl.domain.restart import RestartPolicy
from infctl.ports.store import Store
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import (
    GroupSpec,
    NodeStatus,
)
from infctl.store.stamp import now_text
from infctl_daemon.engine.kept import KeptGets
from infctl_daemon.node import hosts
from infctl_daemon.node.api import ReadApiServer
from infctl_daemon.node.api_facts import Facts
from infctl_daemon.node.claims import Claims
from infctl_daemon.node.context import Context
from infctl_daemon.node.events import EventWriter
from infctl_daemon.node.group_loop import GroupLoop, policy, recorded_policy
from infctl_daemon.node.intake import Intake
from infctl_daemon.node.launch import digest
from infctl_daemon.node.leases import SpareLease
from infctl_daemon.node.members import Members
from infctl_daemon.node.membership import Membership
from infctl_daemon.node.observer import Observer
from infctl_daemon.node.rank_keys import RankKeys
from infctl_daemon.node.status import StatusWriter
from infctl_daemon.node.unsupported import unsupported
from infctl_daemon.proc import choose
from infctl_daemon.proc.container import Kind
from infctl_daemon.proc.state_file import StateFile
from infctl_daemon.runtime.etcd_options import EtcdAt
from infctl_daemon.runtime.log import Logger
from infctl_daemon.runtime.recorder import Recorder

STOP_DEADLINE = 40.0
STORE_GRACE = 3.0  # how long the way out waits for a store that does not answer


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a daemon is started with."""

    etcd: EtcdAt
    cluster: str
    node: str
    state_dir: Path
    run_dir: Path
    address: str = LOOPBACK  # of our engines, for gateways and the other hosts of a group
    limits: Limits = Limits()
    container: Kind | None = None  # what holds the processes of a launch; None: the best that works here
    stop_groups: bool = False  # on the way out; else they run on, for the next life of the daemon
    log_level: str = "info"
    read_api: ReadApi = ReadApi()


class Agent:
    """`run` until `stop` is set; `hurry` makes the way out short."""

    def __init__(self, settings: Settings, log: Logger, store: Store | None = None) -> None:
        self._settings = settings
        self._log = log
        self._store = store or EtcdStore(settings.etcd.endpoints, tls=settings.etcd.tls)
        self._keys = Keys(settings.cluster)
        self._loops: dict[str, GroupLoop] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._limits = settings.limits
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.synced = asyncio.Event()

    async def run(self) -> None:
        s, keys, store = self._settings, self._keys, self._store
        for folder in (s.state_dir, s.run_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state, parts = StateFile(s.state_dir), StateFile(s.state_dir / "parts")
        containers = await choose.choose(s.state_dir, s.run_dir, [s.container] if s.container else choose.KINDS)
        self._log.info("processes of a launch are held by", container=containers.text)
        states = [file.read(group) for file in (state, parts) for group in file.groups()]
        driver = containers.driver
        await choose.sweep(
            driver, {s.container for s in states} | {driver.name_of(s.launch) for s in states if s.launch}
        )
        self._membership = Membership(
            store, keys, s.node, s.limits.lease_ttl, self._log, self._lease_held, self._lease_ended,
            earlier=state.lease, keep=state.keep_lease, engines_at=s.address,
        )  # fmt: skip
        spare = SpareLease(store)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http:
            self._context = Context(
                node=s.node,
                address=s.address,
                store=store,
                keys=keys,
                limits=self._limits,
                claims=Claims(store, keys, s.node, spare),
                events=EventWriter(store, keys, s.node),
                status=StatusWriter(store),
                rank_keys=RankKeys(store, keys, lambda: self._membership.lease),
                state=state,
                state_dir=s.state_dir,
                run_dir=s.run_dir,
                http=http,
                kept=KeptGets(),
                recorder=Recorder(f"noded-{s.node}"),
                log=self._log,
                containers=containers,
                lease=lambda: self._membership.lease,
            )
            for left in states:
                if left.unfinished:
                    self._context.turns.found(left.group, left.launch)
            self._members = Members(replace(self._context, state=parts))
            self._api = self._read_api()
            self._intake = Intake(self._context, self._loops, self._members, self._apply, self._say_node)
            try:
                await self._api.open()
                await self._live(spare)
            finally:
                await self._api.close()
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                for loop in self._loops.values():
                    await loop.close()
                await self._members.close()
                self._context.kept.close()
                self._context.recorder.close()
                self._context.reserved.close()
                await store.close()

    async def _live(self, spare: SpareLease) -> None:
        context = self._context
        for group in context.state.groups():
            if (earlier := context.state.read(group)).unfinished:
                self._loop(group, recorded_policy(earlier.spec))  # taken over, or ended, store or no store
        self._members.remember()
        keys = self._keys
        prefixes = (keys.nodes, keys.pools, keys.groups, keys.faults, keys.suspicions, keys.intents)
        observer = Observer(self._store, prefixes, self._log, self._intake.changed)
        self._start(spare.keep(), context.events.run(), context.status.run(), self._membership.run())
        self._start(context.rank_keys.run())
        self._start(self._observe(observer), self._api.run())
        stopping = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait([stopping, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self._log.error("a part of the daemon failed: leaving", part=task.get_name(), exc_info=error)
        await self._leave()

    @property
    def stop_groups(self) -> bool:
        """What happens to the groups on the way out."""
        return self._settings.stop_groups

    @stop_groups.setter
    def stop_groups(self, wanted: bool) -> None:
        self._settings = replace(self._settings, stop_groups=wanted)

    def adopt_limits(self, limits: Limits) -> None:
        """Timers for what begins from now on; the lease keeps its length. Raises ConfigError where they do not fit."""
        kept = replace(limits, lease_ttl=self._settings.limits.lease_ttl)
        if problems := kept.problems():
            raise ConfigError("; ".join(sentence for _, sentence in problems))
        self._limits = kept
        if hasattr(self, "_context"):  # else they are there when it is made
            self._context.limits = kept

    def _start(self, *works: Any) -> None:
        for work in works:
            self._tasks.append(asyncio.get_running_loop().create_task(work, name=work.__qualname__))

    def _read_api(self) -> ReadApiServer:
        member = self._membership

        def reached(url: str) -> None:
            self._context.read_api = url
            member.reached_at(url)

        facts = Facts(
            self._context, self._loops, self._members.loops,
            lambda: member.record, lambda: member.holding, lambda: self.synced.is_set(),
        )  # fmt: skip
        return ReadApiServer(self._settings.read_api, facts, self._log, reached)

    async def _observe(self, observer: Observer) -> None:
        revision = await observer.list()
        self._context.world.listed = True
        self.synced.set()
        for loop in self._loops.values():
            loop.executor.hosts_changed(loop.state.launch)
            loop.publish_status()
        self._end_unwanted()
        self._members.begin()
        self._say_node()
        self._intake.intents.begin()
        await observer.follow(revision)

    def _end_unwanted(self) -> None:
        """Groups that run from an earlier life and that the store does not give us any more."""
        keys, specs = self._keys, self._context.world.specs
        for group, loop in self._loops.items():
            if group not in specs and keys.group_spec(group) not in self._intake.unreadable:
                loop.post(ev.SpecDeleted(Cause.DELETED))

    def _loop(self, group: str, restart: RestartPolicy) -> GroupLoop:
        if group not in self._loops:
            loop = GroupLoop(self._context, group, restart)
            self._loops[group] = loop
            loop.begin()
            if self._membership.lease:
                loop.post(ev.LeaseHeld(self._membership.lease))
            self._say_node()
        return self._loops[group]

    def _lease_held(self, lease: int) -> None:
        self._context.rank_keys.leased()
        for loop in self._loops.values():
            loop.post(ev.LeaseHeld(lease))

    def _lease_ended(self) -> None:
        for loop in self._loops.values():
            loop.post(ev.LeaseEnded())

    def _apply(self, spec: GroupSpec) -> None:
        if self.stop.is_set():
            return
        loop = self._loop(spec.name, policy(spec))
        loop.adopt_policy(policy(spec))
        if (held := self._context.world.holds.get(spec.name)) is not None:
            loop.post(ev.GroupHeld(held.state))
            loop.hold(f"{held.state} by {held.actor}{f': {held.reason}' if held.reason else ''}")
            return
        closed = [host.node for host in spec.placement if host.node in self._context.world.cordons]
        if closed and not loop.begun:
            loop.hold(f"waits: node/{closed[0]} is cordoned")
            return
        if spec.pool not in self._context.world.pools:
            loop.hold(f"waits for pool {spec.pool}, which does not exist")
            return
        if why := unsupported(spec):
            loop.hold(why)
            return
        if not loop.begun and (why := hosts.not_ready(self._context, spec)):
            loop.hold(why)  # the host's lease lets it go
            return
        loop.held = ""
        loop.post(ev.SpecApplied(digest(spec)))

    def _say_node(self) -> None:
        status = NodeStatus(
            node=self._settings.node,
            cpus=os.cpu_count() or 0,
            memory_bytes=psutil.virtual_memory().total,
            groups=sorted(self._context.world.specs),
        )
        stamped = msgspec.structs.replace(status, updated_at=now_text())
        key = self._keys.node_status(self._settings.node)
        self._context.status.set(key, encode(stamped), compare=encode(status))

    async def _leave(self) -> None:
        """Leave the groups running under the lease, for the next life; or stop them and give the lease back."""
        self.stop.set()
        await self._intake.intents.close()  # what is open is taken up by the next life
        left = [loop.name for loop in self._loops.values() if loop.processes_left]
        left += [part.name for part in self._members.loops.values() if part.processes_left]
        if self._settings.stop_groups:
            await self._stop_groups()
        elif left:
            self._log.info("groups run on without us", groups=left, lease_s=self._settings.limits.lease_ttl)
        await asyncio.gather(self._context.events.flush(1.0), self._context.status.flush(1.0))
        await self._membership.stop(revoke=self._settings.stop_groups)

    async def _stop_groups(self) -> None:
        """Deadlines everywhere; a second signal cuts them."""
        for loop in self._loops.values():
            loop.post(ev.SpecDeleted(Cause.DAEMON_STOPPED))
        hurrying = asyncio.get_running_loop().create_task(self._hurry())
        loops = list(self._loops.values())
        try:
            stopping = asyncio.ensure_future(self._members.stop(STOP_DEADLINE))
            gone = await asyncio.gather(*(x.wait_idle(STOP_DEADLINE, gone_is_enough=True) for x in loops))
            parts = await stopping
            await asyncio.gather(*(x.wait_idle(STORE_GRACE) for x in loops))
        finally:
            hurrying.cancel()
        left = [x.name for x, ok in zip(loops, gone, strict=True) if not ok] + parts
        if left:
            self._log.error("groups could not be stopped in time", groups=left)

    async def _hurry(self) -> None:
        await self.hurry.wait()
        for loop in self._loops.values():
            loop.executor.hurry()
