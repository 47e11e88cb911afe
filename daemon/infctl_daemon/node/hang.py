"""Finds an engine that lives and makes no progress: two classes of evidence, never one (R6).

First class: the schedulers' heartbeat stands still. Second: either gateways wrote a suspicion about this launch, or a
real generation with a known answer does not come back. A heartbeat that moves again withdraws everything. A process
in state T is named in the evidence and triggers nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from infctl.domain.errors import NotReady, StartFailed
from infctl_daemon.engine.progress import Heartbeat
from infctl_daemon.node.context import Context
from infctl_daemon.node.launch import Launch

CANARY_STALLS = 2.0  # how many stall times the checked canary gets


class HangWatch:
    """Polls one launch until cancelled; `confirmed` is called at most once, with the evidence."""

    def __init__(self, context: Context, launch: Launch, confirmed: Callable[[str], None]) -> None:
        self._context = context
        self._launch = launch
        self._confirmed = confirmed
        self._beat = Heartbeat(context.limits.stall)
        self._look_now = asyncio.Event()

    def nudge(self) -> None:
        """A gateway wrote a suspicion: look now."""
        self._look_now.set()

    async def run(self) -> None:
        group = self._launch.spec.name
        self._context.stalled[group] = False
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._look_now.wait(), self._context.limits.loads_poll)
                self._look_now.clear()
                evidence = await self._look()
                if evidence:
                    self._confirmed(evidence)
                    return
        finally:
            self._context.stalled.pop(group, None)

    async def _poll(self) -> None:
        engine = self._launch.engine
        assert engine is not None
        now = asyncio.get_running_loop().time
        try:
            self._beat.polled(await engine.heartbeat(self._context.limits.probe), now())
        except NotReady as error:
            self._beat.polled(None, now(), error.message)

    async def _look(self) -> str:
        """One poll and, if the engine is suspect, the second class; the evidence when both agree."""
        loop = asyncio.get_running_loop()
        await self._poll()
        suspect = self._beat.suspect(loop.time())
        self._context.stalled[self._launch.spec.name] = suspect
        if not suspect:
            return ""
        second = self._suspicion() or await self._canary()
        if not second:
            return ""
        if self._context.hold():
            log = self._context.log_of(self._launch.spec.name, self._launch.name, self._launch.generation)
            log.warning("half of the groups look stalled at once: holding")
            return ""
        # the last word is the heartbeat's: a long prefill that ended while the canary waited is no hang
        await self._poll()
        if not self._beat.suspect(loop.time()):
            return ""
        return "; ".join(filter(None, (self._beat.evidence(loop.time()), second, await self._stopped())))

    def _suspicion(self) -> str:
        seen = self._context.world.suspicions.get((self._launch.spec.name, self._launch.name), {})
        return "data path: " + ", ".join(f"{gw} saw {kind}" for gw, kind in sorted(seen.items())) if seen else ""

    async def _canary(self) -> str:
        canary = self._launch.canary
        assert canary is not None
        limit = CANARY_STALLS * self._context.limits.stall
        asked = asyncio.ensure_future(canary.still_right(limit))
        try:
            while not asked.done():
                await asyncio.wait({asked}, timeout=self._context.limits.probe)
                if self._suspicion():
                    return self._suspicion()
            wrong = asked.result()
        except (NotReady, StartFailed) as error:
            return f"canary: {error.message}"
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        return f"canary: {wrong.why}" if wrong else ""

    async def _stopped(self) -> str:
        tree = self._launch.tree
        if tree is None:
            return ""
        await tree.scan()
        names = sorted(tree.stopped.values())
        return f"in state T: {', '.join(names)}" if names else ""
