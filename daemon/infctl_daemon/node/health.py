"""Watches the health of one serving launch: carries out what `domain.health.step` asks for and tells what it decides.

Kept true: at most one question of a layer is on its way; every question has a deadline; what the store or this daemon
cannot do is never held against the engine; when the watch ends nothing of it is left running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from infctl.domain import group_events as group_ev
from infctl.domain import health as machine
from infctl.domain import health_events as ev
from infctl.domain.causes import Cause
from infctl.domain.errors import NotReady, Rejected
from infctl.domain.group_events import GroupEvent
from infctl.domain.health_events import HealthEvent, Layer, Reason
from infctl_daemon.engine import roles
from infctl_daemon.engine.probe import SHED
from infctl_daemon.node import hosts
from infctl_daemon.node.context import Context
from infctl_daemon.node.launch import Launch
from infctl_daemon.runtime.beat import last_beat


class HealthWatch:
    """`post` gets the group's events; `changed` is called when a condition is another one than before."""

    def __init__(
        self, context: Context, launch: Launch, post: Callable[[GroupEvent], None], changed: Callable[[], None]
    ) -> None:
        self._context = context
        self._launch = launch
        self._post = post
        self._changed = changed
        policy = machine.policy_of(context.limits, exact=launch.spec.deterministic, room=launch.spec.max_running)
        self.health = machine.begin(launch.name, policy)
        self.findings = machine.findings(self.health, 0.0)
        self._waits: dict[Layer, asyncio.TimerHandle] = {}
        self._asked: set[asyncio.Task[None]] = set()
        self._held = False

    async def run(self) -> None:
        """Until cancelled."""
        context, group = self._context, self._launch.spec.name
        context.stalled[group] = False
        context.recorder.initial("health", group, self.health)
        self.feed(ev.Began())
        self.suspected()
        if hosts.others(self._launch):
            self.hosts_seen()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            context.stalled.pop(group, None)
            for wait in self._waits.values():
                wait.cancel()
            for task in self._asked:
                task.cancel()
            await asyncio.gather(*self._asked, return_exceptions=True)

    def suspected(self) -> None:
        """What gateways hold against this launch may have changed."""
        seen = self._context.world.suspicions.get((self._launch.spec.name, self._launch.name), {})
        self.feed(ev.Suspected(tuple(ev.Suspicion(gw, s.kind, s.at) for gw, s in sorted(seen.items()))))

    def hosts_seen(self) -> None:
        """Which of the launch's other hosts the store has may have changed."""
        self.feed(ev.HostsSeen(hosts.lost(self._context, self._launch)))

    def feed(self, event: HealthEvent) -> None:
        """One step and its effects."""
        context, group = self._context, self._launch.spec.name
        if group not in context.stalled:
            return  # the watch has ended
        now = asyncio.get_running_loop().time()
        self.health, effects = machine.step(self.health, event, now)
        context.recorder.step("health", group, now, event, effects)
        context.stalled[group] = machine.bad(self.health, now)
        for effect in effects:
            match effect:
                case ev.Ask(layer, timeout):
                    self._ask(layer, timeout)
                case ev.Wait(layer, delay):
                    self._wait(layer, delay)
                case ev.Doubt(reason, why):
                    self._post(group_ev.HealthDoubted(self._launch.name, reason, why))
                case ev.Trust():
                    self._post(group_ev.HealthTrusted(self._launch.name))
                case ev.End(cause, evidence):
                    self._over(cause, evidence)
        if self.health.hold and not self._held:
            log = context.log_of(group, self._launch.name, self._launch.generation)
            log.warning("half of the groups look bad at once: holding")
        self._held = self.health.hold
        if (found := machine.findings(self.health, now)) != self.findings:
            self.findings = found
            self._changed()

    def _over(self, cause: Cause, evidence: str) -> None:
        tree = self._launch.tree
        stopped = sorted(tree.stopped.values()) if tree else []
        seen = "; ".join(filter(None, (evidence, f"in state T: {', '.join(stopped)}" if stopped else "")))
        if cause is Cause.CANARY_FAILED:
            self._post(group_ev.CanaryFailed(self._launch.name, seen))
        else:
            self._post(group_ev.HangConfirmed(self._launch.name, seen))

    def _wait(self, layer: Layer, delay: float) -> None:
        if layer in self._waits:
            self._waits[layer].cancel()
        loop, poll = asyncio.get_running_loop(), self.health.policy.process.interval
        due = loop.time() + delay
        if delay >= poll:
            due = last_beat(due, poll)  # with the questions to the other groups
        self._waits[layer] = loop.call_at(due, self.feed, ev.Due(layer))

    def _ask(self, layer: Layer, timeout: float) -> None:
        if layer in self._waits:
            self._waits.pop(layer).cancel()
        question = {Layer.PROCESS: self._poll, Layer.MODEL: self._model, Layer.CANARY: self._canary}[layer]
        task = asyncio.get_running_loop().create_task(self._put(question, layer, timeout))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _put(self, question: Callable[[float], Awaitable[HealthEvent]], layer: Layer, timeout: float) -> None:
        """Ask, and feed what came of it."""
        try:
            event = await question(timeout)
        except Exception:
            log = self._context.log_of(self._launch.spec.name, self._launch.name, self._launch.generation)
            log.exception("a question failed", layer=layer)
            event = ev.Unasked(layer)
        self.feed(event)

    async def _poll(self, timeout: float) -> HealthEvent:
        engine, hold = self._launch.engine, self._context.hold
        assert engine is not None
        try:
            loads = await engine.loads(timeout)
        except NotReady as error:
            return ev.Polled(None, why=error.message, hold=hold())
        return ev.Polled(loads.stamps, loads.running, loads.waiting, hold=hold())

    async def _model(self, timeout: float) -> HealthEvent:
        launch = self._launch
        assert launch.engine is not None and launch.model is not None
        if not await launch.engine.ready(timeout):
            return ev.ModelSeen(Reason.NOT_READY, "/ready does not say yes")
        try:
            version = await launch.engine.weight_version(timeout)
        except (NotReady, Rejected) as error:
            return ev.ModelSeen(Reason.NOT_READY, error.message)
        if version != launch.model.revision:
            return ev.ModelSeen(Reason.WRONG_WEIGHTS, f"serves weights {version!r}, not {launch.model.revision!r}")
        ranks = roles.ranks(launch.titles)
        wanted = launch.spec.ranks_per_host
        if ranks < wanted:
            return ev.ModelSeen(Reason.RANKS_MISSING, f"{ranks} ranks of {wanted}")
        return ev.ModelSeen()

    async def _canary(self, timeout: float) -> HealthEvent:
        canary = self._launch.canary
        assert canary is not None
        try:
            ids = await canary.answer(timeout)
        except NotReady as error:
            return ev.CanarySilent(error.message)
        except Rejected as error:
            if error.reason == SHED:
                return ev.CanaryShed()
            if error.reason == "WrongRevision":
                return ev.CanaryAnswered(0, 1, error.message)
            return ev.CanarySilent(error.message)
        known = canary.expected
        if not known:
            return ev.CanaryShed()  # nobody has told us yet what is right
        agreed = next(
            (i for i, (a, b) in enumerate(zip(ids, known, strict=False)) if a != b), min(len(ids), len(known))
        )
        if ids == known:
            return ev.CanaryAnswered(len(known), len(known))
        return ev.CanaryAnswered(min(agreed, len(known) - 1), len(known), canary.differs(ids))
