"""Carries out the effects of one group, each as a task of its own with a deadline, and reports what came of it.

Kept true: nothing is done that `domain.group.step` did not ask for; a kill and a fault notice started in one step run
side by side; whatever fails ends in an event, and a store failure always in `StoreFailed` (R5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from infctl.domain import group_events as ev
from infctl.domain.causes import Cause, Evidence, classify
from infctl.domain.errors import InfctlError, NotReady, Rejected, StartFailed, StoreError
from infctl.domain.group_events import GroupEffect, GroupEvent
from infctl.domain.health import Finding
from infctl.store.codec import BadRecord
from infctl.store.records import FaultNotice
from infctl_daemon.engine import roles
from infctl_daemon.node import endings, hosts
from infctl_daemon.node import launch as launches
from infctl_daemon.node.adopt import Lost, adopt
from infctl_daemon.node.context import Context
from infctl_daemon.node.exits import exit_of
from infctl_daemon.node.health import HealthWatch
from infctl_daemon.node.launch import Launch, digest
from infctl_daemon.node.registrar import Registrar, fault_words
from infctl_daemon.proc.pidfd import Watched
from infctl_daemon.runtime import crash
from infctl_daemon.runtime.log import Logger

STUCK = "stuck"
READY_POLL = 0.2
_STORE_EFFECTS = (ev.ClaimLaunch, ev.ClaimGeneration, ev.PublishEndpoint, ev.WriteFault)


class Executor:
    """The hands of one group. `post` puts an event into the group's queue."""

    def __init__(self, context: Context, group: str, post: Callable[[GroupEvent], None]) -> None:
        self._context = context
        self._group = group
        self._post = post
        self._tasks: dict[asyncio.Task[None], tuple[str, str, int]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._registrar = Registrar(context, group)
        self._side: set[asyncio.Task[None]] = set()
        self._health: HealthWatch | None = None
        self.launch: Launch | None = None
        self.on_health: Callable[[], None] = lambda: None
        self.stuck = ""  # evidence about processes that do not die
        self.waits = ""  # what a launch over several hosts waits for
        self.on_stuck: Callable[[], None] = lambda: None
        self.draining = False  # the endpoint then says so, whatever its health is
        self.fit = "ready"  # what the endpoint says of its health

    def start(self, effect: GroupEffect) -> None:
        """Begin one effect. Never waits and never raises."""
        context = self._context
        match effect:
            case ev.SetTimer(name, launch, delay):
                if name in self._timers:
                    self._timers[name].cancel()
                loop = asyncio.get_running_loop()
                self._timers[name] = loop.call_later(delay, self._post, ev.TimerFired(name, launch))
            case ev.Announce(kind, launch, message):
                notice = self._registrar.notices.of(launch)
                context.events.say(
                    kind,
                    f"group/{self._group}",
                    reason=notice.reason if notice else "",
                    fault_id=notice.fault_id if notice else "",
                    message=message,
                    launch=launch,
                    generation=self.launch.generation if self.launch and self.launch.name == launch else 0,
                )
                self._log(launch).info(kind, message=message, **(fault_words(notice) if notice else {}))
            case ev.ClaimLaunch(above):
                self._spawn(effect, self._claim_launch(above))
            case ev.ClaimGeneration(launch, above):
                self._spawn(effect, self._claim_generation(launch, above))
            case ev.SpawnLaunch(launch):
                self._spawn(effect, self._spawn_launch(launch))
            case ev.AwaitLoad(launch):
                self._spawn(effect, self._await_load(launch))
            case ev.RunCanary(launch):
                self._spawn(effect, self._run_canary(launch))
            case ev.PublishEndpoint(launch, generation, state):
                self._spawn(effect, self._publish(launch, generation, state))
            case ev.WriteFault(launch, reason, evidence):
                self._spawn(effect, self._write_fault(self._registrar.notice(launch, self.launch, reason, evidence)))
            case ev.KillLaunch(launch, why):
                self._end_watches()
                if self.launch and self.launch.name == launch and self.launch.tree:
                    self.launch.tree.kill()  # now, not when the task gets its turn
                self._spawn(effect, self._end(launch, 0.0, why))
            case ev.StopLaunch(launch, deadline):
                self._end_watches()
                self._spawn(effect, self._end(launch, deadline))

    def _log(self, launch: str) -> Logger:
        current = self.launch if self.launch and self.launch.name == launch else None
        return self._context.log_of(self._group, launch, current.generation if current else 0)

    def _spawn(self, effect: GroupEffect, work: Coroutine[Any, Any, None]) -> None:
        name = type(effect).__name__
        key = (name, getattr(effect, "launch", ""), getattr(effect, "generation", 0))
        if isinstance(effect, _STORE_EFFECTS) and key in self._tasks.values():
            work.close()  # one at a time: the event of the one that runs leads to the next try
            return
        task = asyncio.get_running_loop().create_task(self._guard(effect, work), name=f"{self._group}:{name}")
        self._tasks[task] = key
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _guard(self, effect: GroupEffect, work: Coroutine[Any, Any, None]) -> None:
        """Whatever an effect raises becomes an event."""
        name, launch = type(effect).__name__, getattr(effect, "launch", "")
        failure: InfctlError | Exception
        try:
            await work
            return
        except (StoreError, BadRecord, TimeoutError) as error:
            failure = error
        except Exception as error:
            self._log(launch).exception("an effect failed", effect=name)
            failure = error
        # the key of this effect is free before the machine is told, so that its next try is not taken for a double
        self._tasks = {t: n for t, n in self._tasks.items() if t is not asyncio.current_task()}
        if isinstance(effect, (*_STORE_EFFECTS, ev.RunCanary)):
            self._log(launch).debug("no answer from the store", effect=name, why=str(failure))
            self._post(ev.StoreFailed(name, launch))
        elif isinstance(effect, (ev.SpawnLaunch, ev.AwaitLoad)):
            self._post(ev.SpawnFailed(launch, str(failure), _start_cause(failure)))
        elif isinstance(effect, (ev.KillLaunch, ev.StopLaunch)):
            asyncio.get_running_loop().call_later(1.0, self.start, ev.KillLaunch(launch, "retried"))

    async def _claim_launch(self, above: int) -> None:
        event, launch = await self._registrar.claim_launch(above)
        self._wait(event.why if isinstance(event, ev.ClaimDeferred) else "")
        if launch is not None:
            self.launch = launch
        self._free(event)

    def _free(self, event: GroupEvent) -> None:
        """Post the result of the running effect when its name is free again."""
        self._tasks = {t: n for t, n in self._tasks.items() if t is not asyncio.current_task()}
        self._post(event)

    async def _claim_generation(self, name: str, above: int) -> None:
        current = self.launch if self.launch and self.launch.name == name else None
        self._free(await self._registrar.claim_generation(name, current, above))

    def _current(self, name: str) -> Launch:
        if self.launch is None or self.launch.name != name:
            raise StartFailed(f"launch {name} is not known here")
        return self.launch

    async def _spawn_launch(self, name: str) -> None:
        launch = self._current(name)
        self._wait(hosts.waits_its_turn(self._context, launch))
        try:
            pid = await launches.start(self._context, launch, lambda one: self._exited(launch, one))
        except StartFailed as error:
            self._post(ev.SpawnFailed(name, error.message, _start_cause(error)))
            return
        self._wait("")
        self._follow(launch)
        self._gather(launch, "loading")
        self._post(ev.Spawned(name, pid))

    def _gather(self, launch: Launch, state: str) -> None:
        """Let the other hosts begin their parts, and say how far ours is."""
        hosts.say(self._context, launch, state)
        if launch.plan is not None and state != hosts.LOADED:
            self._aside(self._plan(launch))

    async def _plan(self, launch: Launch) -> None:
        if why := await hosts.keep_planned(self._context, launch):
            self._post(ev.ClaimRefused(launch.name, why))

    def _wait(self, why: str) -> None:
        if self.waits != why:
            self.waits = why
            self.on_health()

    def _follow(self, launch: Launch) -> None:
        for work in launches.watches(self._context, launch):
            self._aside(work)

    async def remember(self) -> GroupEvent | None:
        """What the state file says of the daemon's earlier life, before anything else happens to the group."""
        state = self._context.state.read(self._group)
        try:
            launch = await adopt(self._context, self._group, self._exited)
        except Lost as lost:
            return ev.LaunchFound(state.launch, state.generation, lost.reason, lost.evidence)
        if launch is None:
            return None
        self.launch = launch
        self._follow(launch)
        self._gather(launch, hosts.LOADED if launch.checked else "loading")
        if launch.checked:
            self._watch_health(launch)
        return ev.LaunchAdopted(launch.name, launch.generation, launch.checked, launch.lease, digest(launch.spec))

    def _exited(self, launch: Launch, one: Watched) -> None:
        """A pidfd became readable."""
        if (seen := exit_of(self._context, launch, one)) is not None:
            self._post(ev.ProcessExited(launch.name, one.ident.pid, seen.title, seen.status, seen.cause))

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Watching goes on beside the effects until the launch ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._side.add(task)
        task.add_done_callback(self._side.discard)

    def _end_watches(self) -> None:
        self._health = None
        for task in self._side:
            task.cancel()

    async def _await_load(self, name: str) -> None:
        """Until the engine is ready, serves the right weights and every rank is seen; the load timer ends it."""
        launch = self._current(name)
        assert launch.engine is not None and launch.tree is not None and launch.model is not None
        while not launch.ending:
            others = hosts.waiting(self._context, launch)
            self._wait(f"waits for other hosts: {others}" if others else "")
            if await launch.engine.ready():
                try:
                    version = await launch.engine.weight_version()
                except (NotReady, Rejected):
                    version = ""
                if version and version != launch.model.revision:
                    why = f"serves weights {version!r}, not {launch.model.revision!r}"
                    self._post(ev.SpawnFailed(name, why, Cause.WEIGHTS_WRONG))
                    return
                await launch.tree.scan(deep=True)
                seen = roles.ranks(launch.titles)
                if version and seen >= launch.spec.ranks_per_host:
                    hosts.say(self._context, launch, hosts.LOADED)
                    if not hosts.waiting(self._context, launch):
                        self._wait("")
                        launch.tree.loading = False
                        await launches.record(self._context, launch)
                        self._post(ev.EngineLoaded(name, launch.spec.ranks))
                        return
            await asyncio.sleep(READY_POLL)

    async def _run_canary(self, name: str) -> None:
        launch = self._current(name)
        assert launch.canary is not None
        context = self._context
        wrong = None
        while not launch.ending:
            try:
                wrong = await launch.canary.check(context.store, context.keys, launch.spec.restart.canary_deadline)
                break
            except NotReady:
                await asyncio.sleep(0.5)  # the canary timer ends this
        if launch.ending:
            return
        if wrong is not None:
            self._post(ev.CanaryFailed(name, wrong.why))
            return
        launch.checked = True
        await launches.record(context, launch)
        crash.point("checked")
        self._post(ev.CanaryPassed(name))
        self._watch_health(launch)

    def _watch_health(self, launch: Launch) -> None:
        """From here on the launch serves."""
        hosts.say(self._context, launch, hosts.LOADED)
        self._health = HealthWatch(self._context, launch, self._post, lambda: self.on_health())
        self._aside(self._health.run())

    def suspected(self, name: str) -> None:
        """A gateway wrote a suspicion about this launch, or took it back."""
        if self._health is not None and self.launch is not None and self.launch.name == name:
            self._health.suspected()

    def hosts_changed(self, name: str) -> None:
        """A rank key of this launch came or went."""
        if self._health is not None and self.launch is not None and self.launch.name == name:
            self._health.hosts_seen()

    def findings(self, name: str) -> tuple[Finding, ...] | None:
        """What is known of the health of a launch that serves."""
        serving = self._health is not None and self.launch is not None and self.launch.name == name
        return self._health.findings if serving and self._health is not None else None

    @property
    def _withdrawn(self) -> bool:
        """It is being drained: the drain says so, or the hold, where an earlier life began it and none goes on yet."""
        hold = self._context.world.holds.get(self._group)
        return self.draining or (hold is not None and hold.state == "draining")

    async def _publish(self, name: str, generation: int, state: str) -> None:
        launch = self._current(name)
        self.fit = state
        self._free(await self._registrar.publish(launch, generation, state, lambda: self._withdrawn))

    async def _write_fault(self, notice: FaultNotice) -> None:
        await self._registrar.write_fault(notice)
        self._free(ev.FaultWritten(notice.launch))

    async def _end(self, name: str, graceful: float, why: str = "") -> None:
        remains = None
        if self.launch is not None and self.launch.name == name:
            await launches.end(self._context, self.launch, lambda text: self._stuck(name, text), graceful)
        else:
            remains = await launches.end_recorded(self._context, self._group, lambda text: self._stuck(name, text))
        await endings.keep(
            self._context, self._group, name, self.launch, self._registrar.notices.of(name), why, remains
        )
        self.stuck = self.waits = ""
        hosts.withdraw(self._context, self._group, name)
        self._post(ev.LaunchGone(name))

    def _stuck(self, launch: str, evidence: str) -> None:
        """Processes of the launch outlived SIGKILL: what they hold is not free, and the launch is not called gone."""
        self.stuck = evidence
        self._log(launch).error("processes do not die", reason=STUCK, evidence=evidence)
        self._context.events.say("group.stuck", f"group/{self._group}", reason=STUCK, message=evidence, launch=launch)
        self.on_stuck()

    def hurry(self) -> None:
        """A planned end becomes an immediate one."""
        if self.launch is not None:
            self.launch.hurry.set()

    async def close(self) -> None:
        """Stop all work of ours; processes are not touched."""
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._tasks, *self._side]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _start_cause(failure: Exception) -> Cause:
    reason = failure.reason if isinstance(failure, InfctlError) else ""
    return classify(Evidence(start_failed=True, start_reason=reason))
