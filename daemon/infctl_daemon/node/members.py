"""Our parts of launches that other hosts own: which there are, from plans and from the state file of an earlier life.

Kept true: nothing is begun before everything was listed once; a part whose launch the store does not have any more is
ended; what the store cannot say ends nothing (R5).
"""

from __future__ import annotations

import asyncio

from infctl.domain import member_events as ev
from infctl.store.codec import decode
from infctl.store.records import FaultNotice, LaunchPlan, LaunchRecord
from infctl_daemon.node.context import Context
from infctl_daemon.node.member_loop import MemberLoop
from infctl_daemon.node.member_work import leave_after, node_rank


class Members:
    """`context` is the node's with the state files of parts in place of those of our own groups."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.loops: dict[str, MemberLoop] = {}
        self._plans: dict[str, LaunchPlan] = {}
        self._over: dict[str, dict[str, ev.FaultSeen]] = {}  # by group: its launches that are over, while known
        self._unreadable: set[str] = set()
        self._begun = self._stopping = False

    def remember(self) -> None:
        """Take up what an earlier life left, store or no store."""
        for group in self._context.state.groups():
            if self._context.state.read(group).unfinished:
                self._loop(group)

    def begin(self) -> None:
        """Everything was listed once."""
        self._begun = True
        for group in self.loops:
            if group not in self._plans and group not in self._unreadable:
                self._close(group, self._recorded(group), "the store does not have its plan any more")
        for plan in list(self._plans.values()):
            self._post_plan(plan)

    def _recorded(self, group: str) -> str:
        return self._context.state.read(group).launch

    def _owner_is_there(self, plan: LaunchPlan) -> bool:
        return plan.owner in self._context.world.parts.get(plan.launch, {})

    def _loop(self, group: str) -> MemberLoop:
        if group not in self.loops:
            loop = MemberLoop(self._context, group, self._plan_of)
            self.loops[group] = loop
            loop.begin()
        return self.loops[group]

    def _plan_of(self, launch: str) -> LaunchPlan | None:
        return next((plan for plan in self._plans.values() if plan.launch == launch), None)

    def changed(self, parts: tuple[str, ...], value: bytes | None) -> None:
        """A key below the cluster's root. Raises BadRecord."""
        match parts:
            case ("groups", group, "launches", launch, "plan"):
                if value is None:
                    self._gone(group, launch)
                else:
                    self._unreadable.add(group)  # it is there, and says that something of it belongs to somebody
                    self._planned(decode(LaunchPlan, value))
                    self._unreadable.discard(group)
            case ("groups", group, "launches", launch):
                if value is None:
                    self._gone(group, launch)
                elif (record := decode(LaunchRecord, value)).ended_at:
                    self._fault(group, launch, record.ended_why)
            case ("faults", group, launch) if value is not None:
                self._fault(group, launch, decode(FaultNotice, value).reason)
            case ("faults", group, launch):
                self._forget(group, launch)
            case ("groups", group, "ranks", launch, node):
                plan = self._plans.get(group)
                if self._begun and plan is not None and (plan.launch, plan.owner) == (launch, node):
                    event = ev.OwnerAway(launch) if value is None else ev.OwnerBack(launch)
                    self._tell(group, event)

    def _planned(self, plan: LaunchPlan) -> None:
        if node_rank(plan, self._context.node) == 0:
            return
        self._plans[plan.group] = plan
        if self._begun:
            self._post_plan(plan)

    def _post_plan(self, plan: LaunchPlan) -> None:
        if self._stopping:
            return
        loop = self._loop(plan.group)
        if (over := self._over.get(plan.group, {}).get(plan.launch)) is not None:
            loop.post(over)
            if self._recorded(plan.group) != plan.launch:
                return  # over before it was begun here
        loop.post(ev.PlanSeen(plan.launch, plan.spec.restart.load_deadline, leave_after(plan.spec)))
        if not self._owner_is_there(plan):
            # where our part runs already its key was there once
            loop.post(ev.OwnerAway(plan.launch, lost=self._recorded(plan.group) == plan.launch))

    def _fault(self, group: str, launch: str, reason: str) -> None:
        over = ev.FaultSeen(launch, reason)
        self._over.setdefault(group, {})[launch] = over
        self._tell(group, over)

    def _forget(self, group: str, launch: str) -> None:
        """A notice ends after minutes; of the launch that is planned still it is known for longer that it is over."""
        known = self._over.get(group, {})
        planned = self._plans.get(group)
        if planned is None or planned.launch != launch:
            known.pop(launch, None)
        if not known:
            self._over.pop(group, None)

    def _gone(self, group: str, launch: str) -> None:
        self._unreadable.discard(group)
        if group in self._plans and self._plans[group].launch == launch:
            del self._plans[group]
            self._forget(group, launch)
        self._close(group, launch, "its record is gone from the store")

    def _close(self, group: str, launch: str, why: str) -> None:
        self._tell(group, ev.LaunchClosed(launch, why))

    def _tell(self, group: str, event: ev.MemberEvent) -> None:
        if group in self.loops:
            self.loops[group].post(event)

    async def stop(self, deadline: float) -> list[str]:
        """End every part and begin none; returns the groups whose part is still there at the deadline."""
        self._stopping = True
        for loop in self.loops.values():
            loop.stop()
        gone = await asyncio.gather(*(loop.wait_gone(deadline) for loop in self.loops.values()))
        return [name for name, ok in zip(self.loops, gone, strict=True) if not ok]

    async def close(self) -> None:
        for loop in self.loops.values():
            await loop.close()
