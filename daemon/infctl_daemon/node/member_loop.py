"""The actor of one host's part of a group: a queue of events, `domain.member.step`, effects handed to `MemberWork`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from infctl.domain import member_events as ev
from infctl.domain.causes import Cause
from infctl.domain.member import ALIVE, Member, Phase, step
from infctl.domain.member_events import MemberEvent
from infctl.store.records import LaunchPlan
from infctl.store.stamp import now_text
from infctl_daemon.node.context import Context
from infctl_daemon.node.member_work import MemberWork


class MemberLoop:
    """Made when a plan names our node, or when the state file knows a part of the group."""

    def __init__(self, context: Context, group: str, plan_of: Callable[[str], LaunchPlan | None]) -> None:
        self._context = context
        self.name = group
        state = context.state.read(group)
        # one that has ended here is not begun again
        self.state = Member(group, launch="" if state.unfinished else state.launch)
        self.work = MemberWork(context, group, self.post, plan_of)
        self._queue: asyncio.Queue[MemberEvent] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.since = now_text()
        self._stopping = False

    def begin(self) -> None:
        self._context.recorder.initial("member", self.name, self.state)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"part of {self.name}")

    def post(self, event: MemberEvent) -> None:
        """Queue an event; never waits."""
        self._queue.put_nowait(event)

    async def _run(self) -> None:
        if (remembered := await self.work.remember()) is not None:
            self._take(remembered)
        while True:
            event = await self._queue.get()
            if not (self._stopping and isinstance(event, ev.PlanSeen)):
                self._take(event)

    def _take(self, event: MemberEvent) -> None:
        now = time.monotonic()
        try:
            before = self.state
            self.state, effects = step(before, event, now)
            self._context.recorder.step("member", self.name, now, event, effects)
            for effect in effects:
                self.work.start(effect)
        except Exception:
            self._context.log_of(self.name, self.state.launch).exception("a step failed", what=repr(event))
            return
        if self.state.phase is not before.phase:
            self.since = now_text()
        if self.state is not before:
            self._changed.set()

    @property
    def alive(self) -> bool:
        return self.state.phase in ALIVE

    @property
    def processes_left(self) -> bool:
        launch = self.work.launch
        return bool(launch and launch.tree and launch.tree.living) or not self.state.gone

    def stop(self) -> None:
        """The daemon ends and its groups with it: our part is killed, and its launch with it. No other is begun."""
        self._stopping = True
        if (waiting := self.state.planned) is not None:
            self.post(ev.LaunchClosed(waiting.launch, "the daemon was stopped"))
        if self.state.phase in ALIVE or self.state.phase is Phase.LEAVING:
            self.post(ev.PartRefused(self.state.launch, "the daemon was stopped", Cause.DAEMON_STOPPED))

    async def wait_gone(self, timeout: float) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while self.processes_left or not self._queue.empty():
            if loop.time() >= until:
                return False
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), min(0.5, max(0.01, until - loop.time())))
            except TimeoutError:
                continue
        return True

    async def close(self) -> None:
        """Stop deciding and doing; processes are not touched."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.work.close()
