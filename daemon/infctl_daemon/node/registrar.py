"""What an owner writes into the store for its group: launches, generations, the endpoint, the fault.

Kept true: what the store holds is in the state file before anybody hears of it; a notice is one for its launch, however
often it is tried; each result is an event; a store without a definite answer raises, and the caller tries again (R5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from infctl.domain import group_events as ev
from infctl.domain.group_events import GroupEvent
from infctl.store.records import FaultNotice, Secret
from infctl.store.stamp import now_ms
from infctl_daemon.node import endpoint, hosts
from infctl_daemon.node import launch as launches
from infctl_daemon.node.claims import Refused
from infctl_daemon.node.context import Context
from infctl_daemon.node.launch import Launch
from infctl_daemon.node.notices import Notices
from infctl_daemon.runtime import crash

STORE_DEADLINE = 15.0


def fault_words(notice: FaultNotice) -> dict[str, str]:
    return {"reason": notice.reason, "fault_id": notice.fault_id}


class Registrar:
    """Of one group. Everything here raises StoreError, BadRecord or TimeoutError where the answer is not definite."""

    def __init__(self, context: Context, group: str) -> None:
        self._context = context
        self._group = group
        self.notices = Notices(context.node, group)

    async def claim_launch(self, above: int) -> tuple[GroupEvent, Launch | None]:
        """The next launch, where everything that it needs is there."""
        context = self._context
        known = context.world.specs.get(self._group)
        if known is None:
            return ev.ClaimDeferred("the group has no specification any more"), None
        pool = context.world.pools.get(known[0].pool)
        if pool is None:
            return ev.ClaimDeferred(f"waits for pool {known[0].pool}, which does not exist"), None
        if why := hosts.not_ready(context, known[0]):
            return ev.ClaimDeferred(why), None
        state = context.state.read(self._group)
        lease = context.lease()
        crash.point("claim")
        async with asyncio.timeout(STORE_DEADLINE):
            got = await context.claims.claim_launch(known[0], max(above, state.generation), lease)
        if isinstance(got, Refused):
            return ev.ClaimRefused("", got.why), None
        if got.before < state.generation:
            # we write our file after the store: only another database, or an older state of it, knows less
            message = (
                f"generation {state.generation} was registered, and the store knows {got.before}: was it restored?"
            )
            log = context.log_of(self._group, state.launch, state.generation)
            log.error("the store is behind our own file", message=message)
            context.events.say("store.replaced", f"group/{self._group}", message=message)
        crash.point("claimed")
        begun = state.begun(got.launch, lease=lease, generation=got.generation)
        await asyncio.to_thread(context.state.write, begun)
        # what is wanted now, not when the claim began: the machine takes it for that too
        spec = context.world.specs.get(self._group, known)[0]
        pool = context.world.pools.get(spec.pool, pool)
        return ev.LaunchClaimed(got.launch, got.generation), Launch(got.launch, spec, pool, got.generation, lease=lease)

    async def claim_generation(self, name: str, current: Launch | None, above: int) -> GroupEvent:
        """The next generation of the launch that runs; `current` is what we have of it."""
        lease = self._context.lease()
        async with asyncio.timeout(STORE_DEADLINE):
            got = await self._context.claims.claim_generation(self._group, name, above, lease)
        if isinstance(got, Refused):
            return ev.ClaimRefused(name, got.why)
        crash.point("generation")
        await self._raised(current, got.generation, lease)
        return ev.GenerationClaimed(name, got.generation)

    async def _raised(self, launch: Launch | None, generation: int, lease: int) -> None:
        """The store holds this generation of ours: so does the state file before anyone hears of it."""
        if launch is not None:
            launch.generation, launch.lease = generation, lease
            await launches.record(self._context, launch)

    async def publish(self, launch: Launch, generation: int, state: str, draining: Callable[[], bool]) -> GroupEvent:
        """Write the endpoint; while the group drains it says that, whatever `state` is."""
        name = launch.name
        written = endpoint.record(self._context, launch, generation, state)
        secret = Secret(launch=name, api_key=launch.api_key)
        lease, claims = self._context.lease(), self._context.claims
        async with asyncio.timeout(STORE_DEADLINE):
            registered = await claims.recall(self._group, name)
            if registered is not None and registered.generation > generation:
                # taken by an earlier life that died before it could write it down
                await self._raised(launch, registered.generation, lease)
                return ev.GenerationClaimed(name, registered.generation)
            while True:
                drains = draining()
                written = msgspec.structs.replace(written, state="draining" if drains else state)
                refused = await claims.publish(written, secret, lease)
                if refused or drains == draining():
                    break  # else: a drain began, or was taken back, while it was written
        crash.point("published")
        return ev.ClaimRefused(name, refused.why) if refused else ev.EndpointPublished(name, generation, state)

    def notice(self, name: str, current: Launch | None, reason: str, evidence: str) -> FaultNotice:
        """That of the launch; `current` is what we have of it."""
        generation = current.generation if current is not None and current.name == name else 0
        return self.notices.make(name, generation, reason, evidence)

    async def write_fault(self, notice: FaultNotice) -> None:
        async with asyncio.timeout(STORE_DEADLINE):
            written = await self._context.claims.write_fault(notice)
        crash.point("fault")
        self._context.log_of(self._group, notice.launch, notice.generation).info(
            "fault written" if written else "fault not needed: another launch is registered",
            **fault_words(notice),
            took_ms=round(now_ms() - notice.at_ms, 2),
        )
