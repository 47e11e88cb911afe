"""One group's drain as it is carried out: `domain.drain.step` decides, this asks, rewrites, counts and stops.

Kept true: nothing is done that the step did not ask for; whatever fails ends in an event; a permission taken is given
back, also when the drain is over by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from infctl.domain import drain as machine
from infctl.domain import drain_events as ev
from infctl.domain import group_events as gev
from infctl.domain.causes import Cause
from infctl.domain.drain import Drain, Instants, Stage
from infctl.domain.errors import NotReady, StoreError
from infctl.domain.group import ALIVE, Phase
from infctl.store.codec import BadRecord
from infctl.store.stamp import now_ms
from infctl_daemon.node import hosts, toll
from infctl_daemon.node.context import Context
from infctl_daemon.node.group_loop import GroupLoop
from infctl_daemon.node.permission import Permissions
from infctl_daemon.node.surroundings import Surroundings

# an engine that never loaded has no endpoint that anybody could route to
_NEVER_SERVED = frozenset({Phase.SPAWNING, Phase.LOADING, Phase.CANARY})
LIST_STREAMS = 1.0


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of one group. `began` is on the loop's clock; `resumed`: an earlier life of ours began it."""

    intent: str
    began: float
    instants: Instants
    restart: bool = False
    at_once: bool = False
    below_min: bool = False
    resumed: bool = False


class GroupDrain:
    """`run` until it is over. `changed` is called with every step, `let_go` when the group may start again."""

    def __init__(
        self,
        context: Context,
        loop: GroupLoop,
        order: Order,
        surroundings: Surroundings,
        permissions: Permissions,
        changed: Callable[[], None],
        let_go: Callable[[str], None],
    ) -> None:
        self._context = context
        self._loop = loop
        self._order = order
        self._surroundings = surroundings
        self._permissions = permissions
        self._changed = changed
        self._let_go = let_go
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.over = asyncio.Event()
        self._streams: list[str] = []
        known = context.world.specs.get(loop.name)
        self._pool = known[0].pool if known else ""
        bound = known[0].restart.load_deadline + known[0].restart.canary_deadline if known else 960.0
        self.state = Drain(
            loop.name, order.began, order.instants, restart=order.restart, at_once=order.at_once, relaunch=bound
        )
        self.moved = 0
        self.cut = 0

    async def run(self) -> Drain:
        """The drain when it is over. Cancelled, it stops deciding and leaves everything as it is."""
        name = self.state.group
        self._surroundings.enter()
        self._surroundings.on_gateways.add(self._gateways)
        self._surroundings.on_rules.add(self._rules)
        try:
            await self._loop.caught_up()
            group = self._loop.state
            running = group.launch if group.phase in ALIVE or group.phase is Phase.ENDING else ""
            serving = self._order.resumed or group.phase not in _NEVER_SERVED
            self._context.recorder.initial("drain", name, self.state)
            self._loop.listeners.add(self._group_changed)
            self.feed(ev.Began(running, serving, group.phase is Phase.ENDING))
            self._gateways()
            await self.over.wait()
            if self._streams:
                self.moved, self.cut = await toll.count(
                    self._context.store, self._context.keys, self.state.launch, self._streams
                )
            return self.state
        finally:
            self._loop.listeners.discard(self._group_changed)
            self._surroundings.on_gateways.discard(self._gateways)
            self._surroundings.on_rules.discard(self._rules)
            self._surroundings.leave()
            for timer in self._timers.values():
                timer.cancel()
            if not self.over.is_set():
                for task in self._tasks:
                    task.cancel()

    def feed(self, event: ev.DrainEvent) -> None:
        """One event through the machine, and its effects begun."""
        now = asyncio.get_running_loop().time()
        self.state, effects = machine.step(self.state, event, now)
        self._context.recorder.step("drain", self.state.group, now, event, effects)
        for effect in effects:
            self._execute(effect)
        self._changed()

    def undrain(self, by: str) -> None:
        self.feed(ev.UndrainAsked(by))

    @property
    def hosts_left(self) -> list[str]:
        """Other hosts where processes of the launch that was stopped still end."""
        return hosts.left(self._context, self.state.launch) if self.state.stage is Stage.STOPPING else []

    # what others tell
    def _gateways(self) -> None:
        if not self._surroundings.synced or not self.state.launch:
            return
        offset = asyncio.get_running_loop().time() - now_ms() / 1000.0
        found = []
        for name, record in sorted(self._surroundings.gateways.items()):
            load = record.launches.get(self.state.launch)
            revision = record.endpoints_revision or record.snapshot_revision
            if load is None or not load.streams:
                found.append(ev.GatewayLoad(name, revision))
            else:
                oldest = load.oldest_at_ms / 1000.0 + offset
                found.append(ev.GatewayLoad(name, revision, load.streams, load.tokens, oldest))
        if tuple(found) != self.state.gateways:
            self.feed(ev.GatewaysTold(tuple(found)))

    def _rules(self) -> None:
        self.feed(ev.RulesChanged())

    def _group_changed(self) -> None:
        group = self._loop.state
        if self.state.stage is Stage.RELAUNCHING:
            if group.phase is Phase.READY:
                self.feed(ev.GroupReady(group.launch))
            elif group.phase is Phase.FAILED:
                self.feed(ev.GroupFailed(group.end_evidence or group.end_reason))
        elif group.launch != self.state.launch or (group.phase not in ALIVE and group.phase is not Phase.ENDING):
            if self.hosts_left:
                return  # the other hosts' daemons end their parts, or their leases run out
            self.feed(ev.LaunchEnded(f"{group.end_reason}: {group.end_evidence}"))

    # what the machine asks for
    def _execute(self, effect: ev.DrainEffect) -> None:
        executor = self._loop.executor
        match effect:
            case ev.HoldGroup():
                self._loop.post(gev.GroupHeld(str(Cause.OPERATOR if self._order.restart else Cause.DRAINED)))
            case ev.AskPermission():
                self._spawn("AskPermission", self._ask())
            case ev.GiveBackPermission():
                self._spawn("", self._permissions.give_back(self.state.group, self._pool, self._order.intent))
            case ev.Withdraw(launch):
                executor.draining = True
                self._spawn("Withdraw", self._withdraw(launch))
            case ev.Return(launch):
                executor.draining = False
                self._spawn("Return", self._return(launch))
            case ev.CountEngine():
                self._spawn("", self._count())
            case ev.HandOver(launch):
                self._context.log.info("hand-over instant of a drain: streams stay", launch=launch)
            case ev.StopLaunch(launch, grace):
                self._spawn("", self._stop(launch, grace))
            case ev.Relaunch():
                executor.draining = False
                self._let_go(self.state.group)
            case ev.SetTimer(name, delay):
                if name in self._timers:
                    self._timers[name].cancel()
                loop = asyncio.get_running_loop()
                self._timers[name] = loop.call_later(delay, self.feed, ev.TimerFired(name))
            case ev.Finish():
                executor.draining = False
                self.over.set()

    def _spawn(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guard(what, work), name=f"drain {self.state.group}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (StoreError, BadRecord) as error:
            self._context.log.debug("no answer from the store", group=self.state.group, effect=what, why=error.message)
            self.feed(ev.StoreFailed(what))
        except Exception:
            self._context.log.exception("a part of a drain failed", group=self.state.group, effect=what)
            self.feed(ev.StoreFailed(what))

    async def _ask(self) -> None:
        pool = self._context.world.pools.get(self._pool)
        if pool is None:
            self.feed(ev.Permitted())  # nobody can ask a pool that does not exist for anything
            return
        wait = await self._permissions.ask(self.state.group, pool, self._order.intent, below_min=self._order.below_min)
        self.feed(ev.Permitted() if wait is None else ev.Blocked(wait.rule, wait.why))

    async def _withdraw(self, launch: str) -> None:
        revision = await self._context.claims.restate(self.state.group, launch, "draining")
        # without an endpoint gateways may still believe in the launch: it is asked for until it is back
        self.feed(ev.Withdrawn(revision) if revision else ev.StoreFailed("Withdraw"))

    async def _return(self, launch: str) -> None:
        await self._context.claims.restate(self.state.group, launch, self._loop.executor.fit)
        self.feed(ev.Returned())

    async def _count(self) -> None:
        launch = self._loop.executor.launch
        engine = launch.engine if launch is not None and launch.name == self.state.launch else None
        try:
            if engine is None:
                raise NotReady("no engine")
            requests, stamps = await engine.in_flight()
        except NotReady:
            self.feed(ev.EngineCounted(None))
            return
        self.feed(ev.EngineCounted(requests, stamps))

    async def _stop(self, launch: str, grace: float) -> None:
        """The streams that run are noted first: after the notice they are elsewhere."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self.state.cut or self._order.at_once:
            try:
                async with asyncio.timeout(LIST_STREAMS):
                    self._streams = await toll.streams_on(self._context.store, self._context.keys, launch)
            except (StoreError, TimeoutError) as error:
                self._context.log.warning("streams could not be listed before a stop", launch=launch, why=str(error))
                self.cut = self.state.cut
        left = 0.0 if not grace else max(0.1, grace - (loop.time() - began))
        reason = str(Cause.OPERATOR if self._order.restart else Cause.DRAINED)
        self._loop.post(gev.LaunchDrained(launch, reason, left))
