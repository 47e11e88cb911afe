"""One group's actor: a queue of events, `domain.group.step`, the effects handed to the executor. No policy here.

Every step is recorded before its effects start, so a replay of the record must give the same effects (R10).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from infctl.domain import group_events as ev
from infctl.domain.causes import traits
from infctl.domain.group import Group, Phase, step
from infctl.domain.group_events import GroupEvent
from infctl.domain.restart import RestartPolicy, what_clears
from infctl.store.codec import encode
from infctl.store.records import GroupSpec, GroupStatus
from infctl.store.stamp import now_text
from infctl_daemon.node.conditions import Conditions
from infctl_daemon.node.context import Context
from infctl_daemon.node.executor import STUCK, Executor
from infctl_daemon.runtime.log import Logger

SLOW_STEP = 0.05


def policy(spec: GroupSpec) -> RestartPolicy:
    r = spec.restart
    return RestartPolicy(
        first_delay=r.first_delay,
        max_delay=r.max_delay,
        attempts=r.attempts,
        interval=r.interval,
        load_deadline=r.load_deadline,
        canary_deadline=r.canary_deadline,
        kill_deadline=spec.drain.kill_grace,
    )


def recorded_policy(spec: dict[str, Any] | None) -> RestartPolicy:
    """That of the specification in the state file."""
    try:
        return policy(msgspec.convert(spec, GroupSpec))
    except msgspec.ValidationError:
        return RestartPolicy()


def _why(state: Group) -> tuple[str, str, str]:
    """Reason, message and hint: why the group is not ready, or why nothing new comes to it."""
    if state.phase in (Phase.ENDING, Phase.BACKOFF):
        return state.end_reason, state.end_evidence, traits(state.end_reason).hint
    if state.phase is Phase.FAILED:
        helps = "; ".join(filter(None, (traits(state.end_reason).hint, what_clears(state.name))))
        return state.end_reason, f"{state.end_evidence}; {state.gave_up}", helps
    if state.phase is Phase.READY and state.doubt:
        return state.doubt, state.doubt_why, ""
    return "", "", ""


class GroupLoop:
    """Made when a specification names our node, or when the state file knows a launch of the group."""

    def __init__(self, context: Context, name: str, restart: RestartPolicy) -> None:
        self._context = context
        self.name = name
        self.state = Group(name, restart, generation=context.state.read(name).generation)
        self.executor = Executor(context, name, self.post)
        self.executor.on_health = self.publish_status
        self._conditions = Conditions()
        self.executor.on_stuck = self.publish_status
        self._queue: asyncio.Queue[GroupEvent] = asyncio.Queue()
        self._launches = 0
        self._remembered = asyncio.Event()
        self.held = ""  # why the newest specification is not acted on
        self.since = now_text()  # when it came into its phase
        self._changed = asyncio.Event()
        self.listeners: set[Callable[[], None]] = set()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._context.recorder.initial("group", self.name, self.state)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"group:{self.name}")

    def adopt_policy(self, restart: RestartPolicy) -> None:
        """The restart policy is data of the machine: a changed one is a new start of its record."""
        if restart != self.state.policy:
            self.state = replace(self.state, policy=restart)
            self._context.recorder.initial("group", self.name, self.state)

    def post(self, event: GroupEvent) -> None:
        """Queue an event; never waits."""
        self._queue.put_nowait(event)

    async def _run(self) -> None:
        remembered = await self.executor.remember()
        if remembered is not None:
            self._take(remembered)
        self._remembered.set()
        while True:
            self._take(await self._queue.get())
            self._queue.task_done()

    def _take(self, event: GroupEvent) -> None:
        try:
            self._step(event)
        except Exception:
            self._log.exception("a step failed", what=repr(event))

    async def caught_up(self) -> None:
        """What an earlier life left, and every event posted until now, has been taken into account."""
        await self._remembered.wait()
        await self._queue.join()

    def _step(self, event: GroupEvent) -> None:
        now = time.monotonic()
        before = self.state
        self.state, effects = step(before, event, now)
        self._context.recorder.step("group", self.name, now, event, effects)
        for effect in effects:
            self.executor.start(effect)
        if isinstance(event, ev.LaunchClaimed) and self.state is not before:
            self._launches += 1
        if self.state.phase is not before.phase:
            self.since = now_text()
        if self.state is not before:
            self._log.debug("step", what=type(event).__name__, phase=self.state.phase)
            self.publish_status()
            self._changed.set()
            self._tell()
        if (took := time.monotonic() - now) > SLOW_STEP:
            self._log.warning("a step was slow", took_ms=round(took * 1000, 1))

    def _tell(self) -> None:
        for tell in tuple(self.listeners):
            tell()

    def hosts_changed(self, launch: str) -> None:
        """A rank key of this launch came or went."""
        self.executor.hosts_changed(launch)
        self._tell()

    @property
    def _log(self) -> Logger:
        return self._context.log_of(self.name, self.state.launch, self.state.generation)

    def hold(self, why: str) -> None:
        """Say why the newest specification is not acted on, until it is."""
        self.held = why
        self.publish_status()

    def publish_status(self) -> None:
        """Put the owner's word on the group, if it says anything new. A new owner says it once its daemon is there."""
        world = self._context.world
        owner = world.owners.get(self.name, self._context.node)
        if not world.listed or (owner != self._context.node and owner in world.nodes):
            return
        state, launch = self.state, self.executor.launch
        tree = launch.tree if launch and launch.name == state.launch else None
        processes = len(tree.living) if tree else 0
        reason, said, hint = _why(state)
        if stuck := self.executor.stuck:
            reason = STUCK
        known = world.specs.get(self.name)
        status = GroupStatus(
            group=self.name,
            node=self._context.node,
            phase=str(state.phase),
            generation=state.generation,
            launch=state.launch,
            pid=tree.main.pid if tree and tree.living else 0,
            processes=processes,
            restarts=self.restarts,
            reason=reason,
            message=stuck or self.held or said or self.executor.waits,
            hint=hint,
            conditions=self._conditions.now(state, processes, self.executor.findings(state.launch)),
            spec_revision=known[1] if known else 0,
        )
        stamped = msgspec.structs.replace(status, updated_at=now_text())
        self._context.status.set(self._context.keys.group_status(self.name), encode(stamped), compare=encode(status))

    @property
    def restarts(self) -> int:
        return max(0, self._launches - 1)

    @property
    def begun(self) -> bool:
        """A launch runs, is on its way, or follows one that ended: a relaunch after a fault is not a new beginning."""
        return self.state.phase not in (Phase.IDLE, Phase.FAILED) or self._context.state.read(self.name).unfinished

    @property
    def processes_left(self) -> bool:
        launch = self.executor.launch
        return bool(launch and launch.tree and launch.tree.living) or not self.state.gone

    async def wait_idle(self, timeout: float, *, gone_is_enough: bool = False) -> bool:
        """The group has come to rest; with `gone_is_enough`, none of its processes is left."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while True:
            idle = self.state.phase in (Phase.IDLE, Phase.FAILED) and self._queue.empty()
            if idle or (gone_is_enough and not self.processes_left):
                return True
            if loop.time() >= until:
                return False
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), min(0.5, max(0.01, until - loop.time())))
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Stop deciding and doing; processes are not touched."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.executor.close()
