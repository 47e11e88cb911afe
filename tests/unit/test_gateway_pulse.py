"""When a worker is called frozen: silence alone is not enough, and progress clears it at once."""

import asyncio
import contextlib

import pytest

from infctl.domain.model import Limits
from infctl_daemon.gateway import pulse as module
from infctl_daemon.gateway.pulse import PulseWatch
from tests.support.witness import until

LIMITS = Limits(loads_poll=0.05, stall=0.3, probe=0.1)


class Worker:
    """A heartbeat that moves until it is told not to."""

    def __init__(self):
        self.moving = True
        self.answers = True
        self.beats = 0.0
        self.asked = 0

    async def probe(self, launch, timeout):
        self.asked += 1
        if not self.answers:
            await asyncio.sleep(timeout)
            return None
        if self.moving:
            self.beats += 1
        return self.beats


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "TICK", 0.02)


@contextlib.asynccontextmanager
async def watching(worker, streams=1):
    frozen: list[str] = []
    watch = PulseWatch(LIMITS, worker.probe, lambda launch, why: frozen.append(why))
    watch.streams("a-1", streams)
    task = asyncio.create_task(watch.run())
    try:
        yield watch, frozen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_silence_with_a_moving_heartbeat_is_fine():
    async with watching(Worker()) as (_, frozen):
        await asyncio.sleep(0.8)
        assert frozen == []


async def test_silence_with_a_still_heartbeat_is_frozen():
    worker = Worker()
    async with watching(worker) as (_, frozen):
        await asyncio.sleep(0.1)
        worker.moving = False
        await until(lambda: frozen, 2, "frozen")
        assert "did not move" in frozen[0]


async def test_silence_without_an_answer_is_frozen():
    worker = Worker()
    async with watching(worker) as (_, frozen):
        await asyncio.sleep(0.1)
        worker.answers = False
        await until(lambda: frozen, 2, "frozen")
        assert "did not answer" in frozen[0]


async def test_tokens_with_a_still_heartbeat_are_fine():
    worker = Worker()
    worker.moving = False
    async with watching(worker) as (watch, frozen):
        loop = asyncio.get_running_loop()
        for _ in range(40):
            watch.last["a-1"] = loop.time()
            await asyncio.sleep(0.02)
        assert frozen == []


async def test_an_idle_worker_is_not_asked_and_never_frozen():
    worker = Worker()
    worker.answers = False
    async with watching(worker, streams=0) as (_, frozen):
        await asyncio.sleep(0.6)
        assert frozen == [] and worker.asked == 0


async def test_the_silence_before_a_stream_came_does_not_count():
    worker = Worker()
    async with watching(worker) as (watch, frozen):
        watch.streams("a-1", 0)
        worker.answers = False
        await asyncio.sleep(0.5)
        began = asyncio.get_running_loop().time()
        watch.streams("a-1", 1)
        await until(lambda: frozen, 2, "frozen")
        assert asyncio.get_running_loop().time() - began >= LIMITS.stall
