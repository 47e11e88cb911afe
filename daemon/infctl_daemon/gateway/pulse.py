"""Watches every launch that carries streams for silence, and asks its heartbeat before it calls it frozen.

Frames only note the time (`seen`); one task looks at the notes and polls `/v1/loads` of launches in use once a
second, so that a heartbeat from before the silence is at hand when the question comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from infctl.domain.model import Limits
from infctl.domain.stall import StallVerdict, WorkerPulse

TICK = 0.25


class PulseWatch:
    """`probe(launch, timeout)` returns the newest `loads[].timestamp`, None without an answer in time."""

    def __init__(
        self,
        limits: Limits,
        probe: Callable[[str, float], Awaitable[float | None]],
        on_frozen: Callable[[str, str], None],
    ) -> None:
        self.limits = limits
        self._probe = probe
        self._on_frozen = on_frozen
        self._pulses: dict[str, WorkerPulse] = {}
        self.last: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._polled: dict[str, float] = {}

    def streams(self, launch: str, count: int) -> None:
        """The number of streams on a launch changed."""
        now = asyncio.get_running_loop().time()
        if count == 0:
            self._pulses.pop(launch, None)
            self.last.pop(launch, None)
            self._polled.pop(launch, None)
            return
        pulse = self._pulses.get(launch)
        if pulse is None:
            pulse = WorkerPulse(last_token=now)
            self.last[launch] = now
        self._pulses[launch] = pulse.streams_now(count, now)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK)
            now = loop.time()
            for launch, pulse in list(self._pulses.items()):
                seen = self.last.get(launch, pulse.last_token)
                if seen > pulse.last_token:
                    pulse = self._pulses[launch] = replace(pulse, last_token=seen, asked_at=None)
                if launch in self._asking:
                    continue
                if pulse.check(now, self.limits.stall) is StallVerdict.ASK:
                    self._pulses[launch] = pulse.asked(now)
                    self._ask(launch)
                elif now - self._polled.get(launch, 0.0) >= self.limits.loads_poll:
                    self._ask(launch)

    def _ask(self, launch: str) -> None:
        self._polled[launch] = asyncio.get_running_loop().time()
        task = self._asking[launch] = asyncio.create_task(self._one(launch))
        task.add_done_callback(lambda _: self._asking.pop(launch, None))

    async def _one(self, launch: str) -> None:
        value = await self._probe(launch, self.limits.probe)
        pulse = self._pulses.get(launch)
        if pulse is None:
            return
        now = asyncio.get_running_loop().time()
        seen = self.last.get(launch, pulse.last_token)
        if seen > pulse.last_token:
            pulse = replace(pulse, last_token=seen, asked_at=None)
        self._pulses[launch], verdict = pulse.beat(value, now)
        if verdict is StallVerdict.FROZEN:
            heartbeat = "did not answer" if value is None else "did not move"
            self._on_frozen(launch, f"no token for {now - pulse.last_token:.1f} s and its heartbeat {heartbeat}")
