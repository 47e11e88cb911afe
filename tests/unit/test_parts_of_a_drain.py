"""A drained group is gone from every host: its owner's word waits for the parts that other hosts still end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import structlog

from infctl.adapters.memory_store import MemoryStore
from infctl.domain.drain import Instants, Result, Stage
from infctl.domain.group import Group, Phase
from infctl.store.keys import Keys
from infctl.store.records import RankPart
from infctl_daemon.node.drain_report import line
from infctl_daemon.node.drains import GroupDrain, Order
from infctl_daemon.node.permission import Permissions
from infctl_daemon.node.surroundings import Surroundings
from infctl_daemon.node.world import World
from infctl_daemon.runtime.recorder import Recorder

K, LAUNCH = Keys(), "g-aaaaaaaa"


class Loop:
    """A group whose launch ends."""

    name = "g"

    def __init__(self) -> None:
        self.state = Group("g", launch=LAUNCH, phase=Phase.ENDING)
        self.listeners: set[Any] = set()
        self.executor = SimpleNamespace(draining=False)
        self.post = self.told

    def told(self, event: object) -> None:
        pass

    async def caught_up(self) -> None:
        pass

    def tell(self) -> None:
        for listener in tuple(self.listeners):
            listener()


async def test_a_drain_is_over_when_the_last_host_has_ended_its_part() -> None:
    store, log, loop, world = MemoryStore(), structlog.get_logger(), Loop(), World()
    for node in ("n1", "n2"):
        part = RankPart(launch=LAUNCH, group="g", node=node, node_rank=0, state="loaded")
        world.set_part(LAUNCH, node, part)
    context: Any = SimpleNamespace(node="n1", store=store, keys=K, log=log, world=world, recorder=Recorder("drain"))
    order = Order("i1", began=asyncio.get_running_loop().time(), instants=Instants.of(900.0))
    group_loop: Any = loop
    permissions, surroundings = Permissions(store, K, "n1"), Surroundings(store, K, log)
    drain = GroupDrain(context, group_loop, order, surroundings, permissions, lambda: None, lambda group: None)
    running = asyncio.create_task(drain.run())
    await asyncio.sleep(0.01)
    assert drain.state.stage is Stage.STOPPING

    loop.state = Group("g", launch=LAUNCH, phase=Phase.IDLE)
    loop.tell()
    await asyncio.sleep(0.01)
    assert not running.done()
    assert line(drain, context).waits_for == "its processes to end, also on node/n2"

    world.set_part(LAUNCH, "n2", None)
    loop.tell()
    async with asyncio.timeout(5):
        assert (await running).result is Result.DRAINED
    assert line(drain, context).waits_for == ""
    await surroundings.close()
