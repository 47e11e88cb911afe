"""Carries out what one host's part of a launch is asked to do, each effect as a task, and reports what came of it.

Kept true: nothing is done that `domain.member.step` did not ask for; a kill and a notice started in one step run side
by side; whatever fails ends in an event, and a store failure always in `StoreFailed` (R5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from infctl.domain import member_events as ev
from infctl.domain.causes import Cause, Evidence, classify
from infctl.domain.errors import InfctlError, NotReady, StartFailed, StoreError
from infctl.domain.member_events import MemberEffect, MemberEvent
from infctl.store.codec import BadRecord
from infctl.store.records import FaultNotice, GroupSpec, LaunchPlan, PoolSpec
from infctl_daemon.engine import roles
from infctl_daemon.engine.probe import Engine
from infctl_daemon.node import endings, hosts
from infctl_daemon.node import launch as launches
from infctl_daemon.node.adopt import Lost, adopt
from infctl_daemon.node.context import Context
from infctl_daemon.node.exits import exit_of
from infctl_daemon.node.launch import Launch
from infctl_daemon.node.notices import Notices
from infctl_daemon.node.registrar import STORE_DEADLINE
from infctl_daemon.proc.pidfd import Watched
from infctl_daemon.runtime import crash

LOAD_POLL = 0.2
PROBE_TIMEOUT = 1.0
ORDER = 5.0  # longer than node-rank 0 is given to leave: it kills what stays, and tells us


def leave_after(spec: GroupSpec) -> float:
    """Seconds that a part waits for node-rank 0 to go first."""
    return spec.drain.kill_grace + ORDER


class MemberWork:
    """The hands of one part. `post` puts an event into its queue; `plan_of` is the newest plan of a launch."""

    def __init__(
        self,
        context: Context,
        group: str,
        post: Callable[[MemberEvent], None],
        plan_of: Callable[[str], LaunchPlan | None],
    ) -> None:
        self._context = context
        self._group = group
        self._post = post
        self._plan_of = plan_of
        self._tasks: set[asyncio.Task[None]] = set()
        self._side: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._notices = Notices(context.node, group)
        self.launch: Launch | None = None
        self.stuck = ""

    def start(self, effect: MemberEffect) -> None:
        """Begin one effect. Never waits and never raises."""
        context = self._context
        match effect:
            case ev.SetTimer(name, launch, delay):
                if name in self._timers:
                    self._timers[name].cancel()
                loop = asyncio.get_running_loop()
                self._timers[name] = loop.call_later(delay, self._post, ev.TimerFired(name, launch))
            case ev.Announce(kind, launch, message):
                context.events.say(
                    kind, f"group/{self._group}", message=f"node/{context.node}: {message}", launch=launch
                )
                context.log_of(self._group, launch).info(kind, message=message)
            case ev.SayPart(launch, state) if state:
                if self.launch is not None and self.launch.name == launch:
                    hosts.say(context, self.launch, state, self.stuck)
            case ev.SayPart(launch, _):
                hosts.withdraw(context, self._group, launch)
            case ev.SpawnPart(launch):
                self._spawn(effect, self._spawn_part(launch))
            case ev.AwaitPart(launch):
                self._spawn(effect, self._await_part(launch))
            case ev.ProbeLeader(launch):
                self._spawn(effect, self._probe(launch))
            case ev.WriteFault(launch, reason, evidence):
                # its generation is known to the transaction
                notice = self._notices.make(launch, 0, reason, f"node/{context.node}: {evidence}")
                self._spawn(effect, self._write_fault(notice))
            case ev.KillPart(launch, reason):
                for task in self._side:
                    task.cancel()
                if self.launch and self.launch.name == launch and self.launch.tree:
                    self.launch.tree.kill()  # now, not when the task gets its turn
                self._spawn(effect, self._end(launch, reason))

    def _spawn(self, effect: MemberEffect, work: Coroutine[Any, Any, None]) -> None:
        name = f"{self._group}:{type(effect).__name__}"
        task = asyncio.get_running_loop().create_task(self._guard(effect, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, effect: MemberEffect, work: Coroutine[Any, Any, None]) -> None:
        """Whatever an effect raises becomes an event."""
        launch = effect.launch
        failure: InfctlError | Exception
        try:
            await work
            return
        except (StoreError, BadRecord, TimeoutError) as error:
            failure = error
        except Exception as error:
            self._context.log_of(self._group, launch).exception("an effect failed", effect=type(effect).__name__)
            failure = error
        match effect:
            case ev.WriteFault():
                self._post(ev.StoreFailed(launch))
            case ev.SpawnPart() | ev.AwaitPart():
                self._post(ev.PartRefused(launch, str(failure)))
            case ev.ProbeLeader():
                self._post(ev.LeaderProbed(launch, True))  # we could not ask: no evidence
            case ev.KillPart(_, reason):
                asyncio.get_running_loop().call_later(1.0, self.start, ev.KillPart(launch, reason))

    async def _spawn_part(self, name: str) -> None:
        context, plan = self._context, self._plan_of(name)
        if plan is None:
            self._post(ev.PartRefused(name, "its plan is gone", Cause.SUPERSEDED))
            return
        rank, pool = node_rank(plan, context.node), PoolSpec(name=plan.spec.pool, model=plan.served_model)
        launch = Launch(name, plan.spec, pool, 0, node_rank=rank, plan=plan)
        self.launch = launch  # before the first wait: a kill from here on finds it, and nothing of it is started
        try:
            begun = context.state.read(self._group).begun(name, lease=context.lease(), node_rank=rank)
            await asyncio.to_thread(context.state.write, begun)
        except BaseException:
            launch.starting.set()
            raise
        if why := hosts.waits_its_turn(context, launch):
            hosts.say(context, launch, "waiting", why)
        try:
            pid = await launches.start(context, launch, lambda one: self._exited(launch, one))
        except StartFailed as error:
            cause = classify(Evidence(start_failed=True, start_reason=error.reason))
            self._post(ev.PartRefused(name, error.message, cause))
            return
        self._follow(launch)
        self._post(ev.PartSpawned(name, pid))

    def _follow(self, launch: Launch) -> None:
        for work in launches.watches(self._context, launch):
            task = asyncio.get_running_loop().create_task(work)
            self._side.add(task)
            task.add_done_callback(self._side.discard)

    def _exited(self, launch: Launch, one: Watched) -> None:
        """A pidfd became readable."""
        if (seen := exit_of(self._context, launch, one)) is not None:
            self._post(ev.ProcessExited(launch.name, one.ident.pid, seen.title, seen.status, seen.cause))

    async def remember(self) -> MemberEvent | None:
        """What the state file says of the daemon's earlier life."""
        state = self._context.state.read(self._group)
        try:
            launch = await adopt(self._context, self._group, self._exited)
        except Lost as lost:
            return ev.PartFound(state.launch, lost.reason, lost.evidence)
        if launch is None:
            return None
        self.launch = launch
        self._follow(launch)
        return ev.PartAdopted(launch.name, launch.checked, launch.spec.restart.load_deadline, leave_after(launch.spec))

    async def _await_part(self, name: str) -> None:
        """Until our ranks are seen and the engine's own HTTP answers, which it does only once they have loaded."""
        launch = self.launch
        assert launch is not None and launch.name == name and launch.engine is not None and launch.tree is not None
        while not launch.ending:
            if await launch.engine.part_loaded(PROBE_TIMEOUT):
                await launch.tree.scan(deep=True)
                seen = roles.ranks(launch.titles)
                if seen >= launch.spec.ranks_per_host:
                    launch.tree.loading = False
                    launch.checked = True
                    await launches.record(self._context, launch)
                    crash.point("part-loaded")
                    self._post(ev.PartLoaded(name, seen))
                    return
            await asyncio.sleep(LOAD_POLL)

    async def _probe(self, name: str) -> None:
        plan = self._plan_of(name) or (self.launch.plan if self.launch else None)
        if plan is None:
            self._post(ev.LeaderProbed(name, True))
            return
        try:
            await Engine(self._context.http, None, plan.url, "").answers(PROBE_TIMEOUT)
        except NotReady as error:
            self._post(ev.LeaderProbed(name, False, error.message))
        else:
            self._post(ev.LeaderProbed(name, True))

    async def _write_fault(self, notice: FaultNotice) -> None:
        async with asyncio.timeout(STORE_DEADLINE):
            await self._context.claims.write_fault(notice)
        crash.point("part-fault")
        self._post(ev.FaultWritten(notice.launch))

    async def _end(self, name: str, reason: str) -> None:
        remains = None
        if self.launch is not None and self.launch.name == name:
            await launches.end(self._context, self.launch, lambda text: self._stuck(name, text))
        else:
            remains = await launches.end_recorded(self._context, self._group, lambda text: self._stuck(name, text))
        notice = self._notices.of(name)
        await endings.keep(self._context, self._group, name, self.launch, notice, reason, remains)
        self.stuck = ""
        self._post(ev.PartGone(name))

    def _stuck(self, name: str, evidence: str) -> None:
        """Processes outlived SIGKILL: the next part is not started while they hold what they hold."""
        self.stuck = evidence
        context = self._context
        context.log_of(self._group, name).error("processes do not die", reason="stuck", evidence=evidence)
        context.events.say(
            "group.stuck",
            f"group/{self._group}",
            reason="stuck",
            message=f"node/{context.node}: {evidence}",
            launch=name,
        )
        if self.launch is not None and self.launch.name == name:
            hosts.say(context, self.launch, "stuck", evidence)

    async def close(self) -> None:
        """Stop all work of ours; processes are not touched."""
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._tasks, *self._side]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def node_rank(plan: LaunchPlan, node: str) -> int:
    """Which host of the plan `node` is; 0, which belongs to the owner, where it is none."""
    return next((i for i, host in enumerate(plan.spec.placement) if host.node == node), 0)
