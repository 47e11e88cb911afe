"""What a daemon did is what its machine decided: the record of a real run, replayed, gives the same effects (R10)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from infctl.domain.group import Group, Phase, step
from infctl.domain.group_events import GroupEvent
from infctl.domain.health import Health
from infctl.domain.health import step as judge
from infctl.domain.health_events import HealthEvent
from infctl_daemon.runtime.recorder import from_wire, to_wire
from tests.support.noded import node_cluster

pytestmark = [pytest.mark.faults, pytest.mark.timeout(90)]


def replay(lines: list[dict[str, Any]]) -> tuple[Group, list[str]]:
    """The last state, and the effects in order. Fails where the replay decides otherwise than the record."""
    group: Group | None = None
    done: list[str] = []
    for line in lines:
        if "initial" in line:
            group = from_wire((Group,), line["initial"])
            continue
        assert group is not None
        event = from_wire(get_args(GroupEvent), line["event"])
        group, effects = step(group, event, line["now"])
        again = msgspec.json.decode(msgspec.json.encode([to_wire(e) for e in effects]))
        assert again == line["effects"], f"{line['event']} in {group.phase}"
        done += [e["type"] for e in again]
    assert group is not None
    return group, done


def replay_health(lines: list[dict[str, Any]]) -> set[str]:
    """The kinds of effects. Fails where the replay decides otherwise than the record."""
    health: Health | None = None
    done: set[str] = set()
    for line in lines:
        if "initial" in line:
            health = from_wire((Health,), line["initial"])
            continue
        assert health is not None
        health, effects = judge(health, from_wire(get_args(HealthEvent), line["event"]), line["now"])
        again = msgspec.json.decode(msgspec.json.encode([to_wire(e) for e in effects]))
        assert again == line["effects"], line["event"]
        done |= {e["type"] for e in again}
    return done


async def test_the_record_of_a_killed_rank_replays_to_exactly_the_effects_that_were_executed(tmp_path: Path) -> None:
    async with node_cluster(tmp_path) as cluster:
        await cluster.apply(cluster.spec())
        first = await cluster.ready()
        os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGKILL)
        await cluster.ready(not_launch=first.launch)
        cluster.noded.signal(signal.SIGTERM)
        assert await cluster.noded.ended() == 0
        files = list(cluster.noded.record.glob("*.jsonl"))

    assert len(files) == 1
    lines = [msgspec.json.decode(line) for line in files[0].read_bytes().splitlines()]
    group, done = replay([line for line in lines if (line["machine"], line["key"]) == ("group", "a")])
    assert group.phase is Phase.IDLE
    assert done.count("SpawnLaunch") == 2
    assert done.count("PublishEndpoint") == 2
    assert done.count("KillLaunch") == 1
    assert done.count("StopLaunch") == 1
    assert done.count("WriteFault") == 2
    judged = replay_health([line for line in lines if line["machine"] == "health"])
    assert {"Ask", "Wait"} <= judged
    kill = done.index("KillLaunch")
    assert done[kill + 1] == "WriteFault", "kill and notice leave in one step"
