"""What is done for one intent of this node: drains, restarts and undrains, their beginnings and their ends.

Kept true: at most one drain runs for a group; a hold is written with the beginning of a drain and taken away with its
end or its undrain; every word about an intent is in one transaction with what it means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from infctl.domain.drain import Instants, Result
from infctl.domain.errors import StoreError
from infctl.domain.intents import State
from infctl.ports.store import Compare, Delete, Op, Put
from infctl.store.codec import BadRecord, Stored, decode_stored, encode
from infctl.store.intent_records import Hold, Intent, IntentStatus
from infctl.store.records import NodeSpec
from infctl.store.stamp import now_ms, now_text, text_of
from infctl_daemon.node.context import Context
from infctl_daemon.node.drain_report import line
from infctl_daemon.node.drains import GroupDrain, Order
from infctl_daemon.node.group_loop import GroupLoop
from infctl_daemon.node.intent_book import RETRY_FIRST, RETRY_MOST, Entry
from infctl_daemon.node.permission import Permissions
from infctl_daemon.node.surroundings import Surroundings

SPACING = 0.5  # progress is not written more often


class Refused(Exception):
    """The intent cannot be carried out as things are; the message says why."""


class Work:
    """`tasks` are those of the intents that are carried out now, by their names."""

    def __init__(
        self,
        context: Context,
        loop_of: Callable[[str], GroupLoop | None],
        let_go: Callable[[str], None],
        permissions: Permissions,
        tasks: Mapping[str, asyncio.Task[None]],
    ) -> None:
        self._context = context
        self._loop_of = loop_of
        self._let_go = let_go
        self._permissions = permissions
        self._tasks = tasks
        self.surroundings = Surroundings(context.store, context.keys, context.log)
        self._drains: dict[str, GroupDrain] = {}
        self._drain_of: dict[str, str] = {}  # group → the intent that drains it

    def groups(self) -> list[str]:
        """Those of this node."""
        return sorted(self._context.world.specs)

    async def close(self, entry: Entry, state: State, outcome: str, message: str, ops: list[Op] | None = None) -> None:
        intent = entry.intent
        await entry.close(entry.fresh(state, outcome=outcome, message=message), ops or [])
        self._context.events.say(
            f"intent.{state}",
            intent.target,
            reason=outcome,
            message=f"{intent.kind} by {intent.actor}: {outcome}{f' ({message})' if message else ''}",
            intent=intent.intent,
        )

    # drain
    async def drain(self, entry: Entry, groups: list[str], by: str, resumed: bool) -> None:
        context, intent, keys = self._context, entry.intent, self._context.keys
        holds = context.world.holds
        todo = []
        for group in groups:
            hold, busy = holds.get(group), self._drain_of.get(group)
            if resumed and (hold is None or hold.intent != intent.intent):
                continue  # undrained meanwhile
            if busy is not None:
                raise Refused(f"group/{group} is being drained or restarted by intent {busy}")
            if hold is not None and hold.intent != intent.intent:
                if by.startswith("group/"):
                    await self.close(entry, State.DONE, "unchanged", f"already {hold.state} by {hold.actor}")
                    return
                continue  # held by somebody else, for his own reasons
            todo.append(group)
        hold_of = {
            g: Hold(group=g, intent=intent.intent, by=by, state="draining", actor=intent.actor, reason=intent.reason,
                    at=now_text())
            for g in todo
        }  # fmt: skip
        effects: list[Op] = [Put(keys.group_hold(g), encode(hold)) for g, hold in hold_of.items()]
        compares: list[Compare] = []
        if not resumed and by.startswith("node/"):
            stored = await self._node_spec()
            spec = msgspec.structs.replace(
                stored.record, cordoned=True, drain=intent.intent, actor=intent.actor, reason=intent.reason
            )
            effects.append(Put(keys.node_spec(context.node), stored.encode(spec)))
            compares.append(Compare.unchanged(keys.node_spec(context.node), stored.mod_revision))
        status = await self._begin(entry, effects if not resumed else [], compares, resumed)
        for group, hold in hold_of.items():
            holds.setdefault(group, hold)  # the watch says so, too, but later
        ended = await self._run(entry, status, todo, resumed=resumed)
        ops: list[Op] = []
        for group in todo:
            if (now := holds.get(group)) is None or now.intent != intent.intent:
                continue  # it was undrained while others were still being drained
            gone = group not in self._context.world.specs
            if gone or (group in ended and ended[group].state.result is not Result.DRAINED):
                ops.append(Delete(keys.group_hold(group)))
                continue
            hold = msgspec.structs.replace(hold_of[group], state="drained", at=now_text())
            ops.append(Put(keys.group_hold(group), encode(hold)))
        await self._end(entry, ended, "drained", ops)

    async def restart(self, entry: Entry, group: str, resumed: bool) -> None:
        context = self._context
        if (busy := self._drain_of.get(group)) is not None:
            raise Refused(f"group/{group} is being drained or restarted by intent {busy}")
        if (hold := context.world.holds.get(group)) is not None:
            raise Refused(f"group/{group} is {hold.state} by {hold.actor}: undrain it first")
        if context.world.cordoned:
            raise Refused(f"node/{context.node} is cordoned: it would not start again")
        if resumed and entry.generation != entry.intent.generation:
            await self.close(entry, State.DONE, "restarted", f"generation {entry.generation} is registered")
            return
        status = await self._begin(entry, [], [], resumed)
        ended = await self._run(entry, status, [group], restart=True, resumed=resumed)
        self._let_go(group)
        await self._end(entry, ended, "restarted", [])

    async def _begin(self, entry: Entry, effects: list[Op], compares: list[Compare], resumed: bool) -> IntentStatus:
        """Say that it runs, together with what that means. Raises Refused when somebody else was faster."""
        if resumed and entry.status is not None:
            return entry.status
        began = now_ms()
        status = entry.fresh(
            State.RUNNING,
            began_at=text_of(began),
            began_ms=began,
            deadline_at=text_of(began + deadline_of(entry.intent) * 1000.0),
        )
        delay = RETRY_FIRST
        while True:
            try:
                if await entry.write(status, effects, compares):
                    return status
                raise Refused("something else was changed at the same moment")
            except StoreError:
                await asyncio.sleep(delay)
                delay = min(RETRY_MOST, 2 * delay)

    async def _run(
        self, entry: Entry, status: IntentStatus, groups: list[str], *, restart: bool = False, resumed: bool
    ) -> dict[str, GroupDrain]:
        """Drain every group at once, each as the rules allow; progress goes into the status."""
        intent, specs = entry.intent, self._context.world.specs
        began = asyncio.get_running_loop().time() - max(0.0, now_ms() - status.began_ms) / 1000.0
        moved = asyncio.Event()
        drains: dict[str, GroupDrain] = {}
        for group in groups:
            if (loop := self._loop_of(group)) is None or group not in specs:
                continue
            timers = specs[group][0].drain
            order = Order(
                intent.intent,
                began=began,
                instants=Instants.of(deadline_of(intent), timers.hand_over, timers.kill_grace),
                restart=restart,
                at_once=bool(intent.parameters.get("now")),
                below_min=bool(intent.parameters.get("below_min")),
                resumed=resumed,
            )
            drains[group] = GroupDrain(
                self._context, loop, order, self.surroundings, self._permissions, moved.set, self._let_go
            )
        self._drains |= drains
        self._drain_of |= dict.fromkeys(drains, intent.intent)
        telling = asyncio.get_running_loop().create_task(self._tell(entry, drains, moved))
        try:
            async with asyncio.TaskGroup() as tasks:
                for drain in drains.values():
                    tasks.create_task(drain.run())
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            for group in drains:
                self._drains.pop(group, None)
                self._drain_of.pop(group, None)
        return drains

    async def _tell(self, entry: Entry, drains: dict[str, GroupDrain], moved: asyncio.Event) -> None:
        """Progress, as often as it changes and no more often than needed."""
        said = None
        while True:
            await moved.wait()
            moved.clear()
            lines = [line(drain, self._context) for drain in drains.values()]
            if lines != said:
                try:
                    await entry.write(entry.fresh(State.RUNNING, groups=lines))
                    said = lines
                except (StoreError, BadRecord):
                    moved.set()
            await asyncio.sleep(SPACING)

    async def _end(self, entry: Entry, ended: dict[str, GroupDrain], good: str, ops: list[Op]) -> None:
        results = {g: d.state.result for g, d in ended.items()}
        cut, moved = sum(d.cut for d in ended.values()), sum(d.moved for d in ended.values())
        outcome = good
        for worse in (Result.UNDRAINED, Result.FAILED):
            if worse in results.values():
                outcome = str(worse)
        state = State.FAILED if outcome == Result.FAILED else State.DONE
        whys = [f"{g}: {d.state.why}" if len(ended) > 1 else d.state.why for g, d in ended.items() if d.state.why]
        message = "; ".join(filter(None, [_toll(moved, cut), *whys]))
        lines = [line(drain, self._context) for drain in ended.values()]
        await entry.close(entry.fresh(state, outcome=outcome, message=message, moved=moved, cut=cut, groups=lines), ops)
        intent = entry.intent
        self._context.events.say(
            f"{intent.kind}.{state}", intent.target, reason=outcome, intent=intent.intent,
            message=f"{outcome} for {intent.actor}{f' ({message})' if message else ''}",
        )  # fmt: skip

    # undrain
    async def undrain_group(self, entry: Entry, group: str) -> None:
        active = await self._take_back([group], entry.intent.actor)
        keys, world = self._context.keys, self._context.world
        if not active and group not in world.holds:
            await self.close(entry, State.DONE, "unchanged", "is not drained")
            return
        cordoned = f"node/{self._context.node} is cordoned: it starts when that is uncordoned" if world.cordoned else ""
        await self.close(entry, State.DONE, "undrained", cordoned, [Delete(keys.group_hold(group))])
        world.holds.pop(group, None)
        self._let_go(group)

    async def undrain_node(self, entry: Entry) -> None:
        keys, context = self._context.keys, self._context
        await self._take_back(self.groups(), entry.intent.actor)
        address = f"node/{context.node}"
        held = [group for group, hold in context.world.holds.items() if hold.by == address]
        for _ in range(5):
            stored = await self._node_spec()
            if not stored.record.cordoned and not held:
                await self.close(entry, State.DONE, "unchanged", "is not drained")
                return
            spec = msgspec.structs.replace(
                stored.record, cordoned=False, drain="", actor=entry.intent.actor, reason=entry.intent.reason
            )
            ops: list[Op] = [Delete(keys.group_hold(group)) for group in held]
            ops.append(Put(keys.node_spec(context.node), stored.encode(spec)))
            message = f"{len(held)} groups start again" if held else ""
            status = entry.fresh(State.DONE, outcome="undrained", message=message)
            compare = Compare.unchanged(keys.node_spec(context.node), stored.mod_revision)
            try:
                if await entry.write(status, ops, [compare], close=True):
                    return  # the watch tells of holds and node, as it tells everybody
            except StoreError:
                await asyncio.sleep(1.0)
        raise Refused("the node's record is changed by somebody else all the time")

    async def _take_back(self, groups: list[str], by: str) -> bool:
        """Undrain what is being drained, as far as that can still be, and wait for the end of it. False: nothing is."""
        active = {group: self._drains[group] for group in groups if group in self._drains}
        for drain in active.values():
            drain.undrain(by)
        for drain in active.values():
            await drain.over.wait()
        # who drains only these writes his last word now, and must not write it over ours
        others = {intent for group, intent in self._drain_of.items() if group not in active}
        tasks = [self._tasks[i] for i in {self._drain_of.get(g, "") for g in active} - others if i in self._tasks]
        if tasks:
            await asyncio.wait(tasks)
        return bool(active)

    async def _node_spec(self) -> Stored[NodeSpec]:
        """Ours, as it is now, however long that takes."""
        delay = RETRY_FIRST
        while True:
            try:
                kv = await self._context.store.get(self._context.keys.node_spec(self._context.node))
            except StoreError:
                await asyncio.sleep(delay)
                delay = min(RETRY_MOST, 2 * delay)
                continue
            return decode_stored(NodeSpec, kv.value if kv else encode(NodeSpec()), kv.mod_revision if kv else 0)


def deadline_of(intent: Intent) -> float:
    """Seconds; for what has none, long enough to be carried out by a daemon that comes back."""
    given = intent.parameters.get("deadline_s")
    return float(given) if isinstance(given, int | float) and given > 0 else 900.0


def _toll(moved: int, cut: int) -> str:
    words = []
    if cut:
        words.append(f"cut {cut} stream{'s' if cut != 1 else ''}")
    if moved:
        words.append(f"{moved} moved to other groups")
    return ", ".join(words)
