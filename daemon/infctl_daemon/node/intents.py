"""Carries out what operators want of this node and its groups, once each, and says how far it is.

Kept true: what is too old or meant for another generation is only marked expired; a begun drain is taken up again by
the next life of the daemon; at most one drain runs for a group; a drained group is held by a durable key until it is
undrained, so that no restart of anything brings it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from infctl.domain.errors import StoreError, UsageError
from infctl.domain.ids import parse_address
from infctl.domain.intents import CLOSED, FOR_DAEMONS, Begin, Expire, IntentKind, Leave, Resume, State, judge
from infctl.ports.store import Compare, Delete, Op
from infctl.store.codec import decode
from infctl.store.intent_records import Intent, IntentStatus
from infctl.store.stamp import now_ms
from infctl_daemon.node.context import Context
from infctl_daemon.node.group_loop import GroupLoop
from infctl_daemon.node.intent_book import RETRY_FIRST, RETRY_MOST, Entry
from infctl_daemon.node.intent_work import Refused, Work, deadline_of
from infctl_daemon.node.leases import RotatingLease
from infctl_daemon.node.permission import Permissions

KEPT = 6 * 3600.0
_KINDS = {"node": "node", "group": "group"}


class Intents:
    """`loop_of` gives the loop of a group of ours; `let_go` applies its specification again."""

    def __init__(
        self, context: Context, loop_of: Callable[[str], GroupLoop | None], let_go: Callable[[str], None]
    ) -> None:
        self._context = context
        self._loop_of = loop_of
        self._permissions = Permissions(context.store, context.keys, context.node)
        self._lease = RotatingLease(context.store, ttl=KEPT, rotation=KEPT / 6)
        self._open: dict[str, tuple[Intent, bytes]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._work = Work(context, loop_of, let_go, self._permissions, self._tasks)
        self._closed: set[str] = set()
        self._begun = False

    # what is watched
    def changed(self, parts: tuple[str, ...], value: bytes | None) -> None:
        """`intents/<parts>` was written or removed. Raises BadRecord."""
        match parts:
            case (name,) if value is None:
                self._open.pop(name, None)
                self._closed.discard(name)
            case (name,) if value is not None and name not in self._closed:
                self._open[name] = (decode(Intent, value), value)
                self.look()
            case (name, "status", _) if value is not None and decode(IntentStatus, value).state in CLOSED:
                self._closed.add(name)
                self._open.pop(name, None)

    def begin(self) -> None:
        """Everything was listed once: what is open is taken up."""
        self._begun = True
        sweep = asyncio.get_running_loop().create_task(self._sweep(set(self._open)), name="intents: old disruptions")
        self._tasks[""] = sweep
        for group in set(self._context.world.holds) - set(self._context.world.specs):
            self.group_gone(group)
        self.look()

    def group_gone(self, group: str) -> None:
        """A group that has no specification any more is not held either: one of that name may come again."""
        name = f"hold of {group}"
        if self._begun and name not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._unhold(group), name=name)
            self._tasks[name] = task
            task.add_done_callback(partial(self._done, name))

    async def _unhold(self, group: str) -> None:
        """Whose group it was does not matter: the store itself sees to it that there is none."""
        keys, delay = self._context.keys, RETRY_FIRST
        while True:
            try:
                compare = Compare.absent(keys.group_spec(group))
                await self._context.store.txn([compare], [Delete(keys.group_hold(group))])
                return
            except StoreError:
                await asyncio.sleep(delay)
                delay = min(RETRY_MOST, 2 * delay)

    async def _sweep(self, open_: set[str]) -> None:
        """Disruptions that an earlier life of ours entered and nothing stands for any more."""
        delay = RETRY_FIRST
        while True:
            try:
                await self._permissions.forget_all_but(open_)
                return
            except StoreError:
                await asyncio.sleep(delay)
                delay = min(RETRY_MOST, 2 * delay)

    def look(self) -> None:
        """Take up every open intent that is ours; also when a group became ours."""
        if not self._begun:
            return
        for name, (intent, value) in list(self._open.items()):
            if name in self._tasks or intent.kind not in FOR_DAEMONS or not self._is_ours(intent):
                continue
            entry = Entry(self._context.store, self._context.keys, self._context.node, intent, value, self._lease)
            task = asyncio.get_running_loop().create_task(self._carry_out(entry), name=f"intent {name}")
            self._tasks[name] = task
            task.add_done_callback(partial(self._done, name))

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        self._open.pop(name, None)
        self._tasks.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._context.log.error("an intent could not be carried out", intent=name, exc_info=error)

    def _is_ours(self, intent: Intent) -> bool:
        kind, name = self._target(intent)
        return name == self._context.node if kind == "node" else name in self._context.world.specs

    @staticmethod
    def _target(intent: Intent) -> tuple[str, str]:
        try:
            return parse_address(intent.target, _KINDS)
        except UsageError:
            return "", ""

    async def close(self) -> None:
        """Stop carrying out; whatever is open is taken up by the next life."""
        self._begun = False
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._work.surroundings.close()

    # one intent
    async def _carry_out(self, entry: Entry) -> None:
        kind, name = self._target(entry.intent)
        key = self._context.keys.group_generation(name) if kind == "group" else ""
        if not await self._read(entry, key):
            return
        status, intent = entry.status, entry.intent
        verdict = judge(
            generation=intent.generation,
            not_after_ms=intent.not_after_ms,
            now_ms=now_ms(),
            current=entry.generation,
            state=status.state if status else "",
            deadline_ms=status.began_ms + deadline_of(intent) * 1000.0 if status else 0.0,
        )
        log = self._context.log
        if isinstance(verdict, Expire) and status is not None and await self._nothing_runs(kind, name):
            verdict = Resume()  # there is nothing left that it could stop: only its end is written
        match verdict:
            case Leave():
                return
            case Expire(why):
                log.warning("intent expired", intent=intent.intent, kind=intent.kind, target=intent.target, why=why)
                await self._expire(entry, why)
                return
            case Begin() | Resume():
                log.info("intent taken up", intent=intent.intent, kind=intent.kind, target=intent.target)
        try:
            match intent.kind, kind:
                case IntentKind.DRAIN, "group":
                    await self._work.drain(entry, [name], f"group/{name}", isinstance(verdict, Resume))
                case IntentKind.DRAIN, _:
                    await self._work.drain(entry, self._work.groups(), f"node/{name}", isinstance(verdict, Resume))
                case IntentKind.RESTART, "group":
                    await self._work.restart(entry, name, isinstance(verdict, Resume))
                case IntentKind.UNDRAIN, "group":
                    await self._work.undrain_group(entry, name)
                case IntentKind.UNDRAIN, _:
                    await self._work.undrain_node(entry)
                case _:
                    raise Refused(f"{intent.kind} of a {kind} is nothing that a daemon does")
        except Refused as no:
            await self._work.close(entry, State.FAILED, "refused", str(no))
        except Exception as error:
            log.exception("an intent failed", intent=intent.intent)
            await self._work.close(entry, State.FAILED, "failed", f"a bug: {error!r}", self._lifted(intent))
        finally:
            if entry.closed:
                self._closed.add(intent.intent)

    async def _read(self, entry: Entry, generation_key: str) -> bool:
        delay = RETRY_FIRST
        while True:
            try:
                return await entry.look(generation_key)
            except StoreError:
                await asyncio.sleep(delay)
                delay = min(RETRY_MOST, 2 * delay)

    async def _nothing_runs(self, kind: str, name: str) -> bool:
        loops = [self._loop_of(g) for g in ([name] if kind == "group" else self._work.groups())]
        for loop in loops:
            if loop is not None:
                await loop.caught_up()
        return not any(loop is not None and loop.processes_left for loop in loops)

    async def _expire(self, entry: Entry, why: str) -> None:
        await self._work.close(entry, State.EXPIRED, "expired", why, self._lifted(entry.intent))

    def _lifted(self, intent: Intent) -> list[Op]:
        """Holds that it had set go with it: what nobody carries out is not half done for ever."""
        holds = self._context.world.holds.items()
        return [Delete(self._context.keys.group_hold(g)) for g, hold in holds if hold.intent == intent.intent]
