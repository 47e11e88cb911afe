"""What a gateway did is what its machine decided: the record of a killed rank replays to the same effects."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from infctl.domain import group, health, request
from infctl.domain.group_events import GroupEvent
from infctl.domain.health_events import HealthEvent
from infctl.domain.request_events import RequestEvent
from infctl_daemon.runtime.recorder import from_wire, to_wire
from tests.support.cluster import running
from tests.support.witness import Seen, body, until, watch

pytestmark = [pytest.mark.faults, pytest.mark.timeout(90)]

MACHINES: dict[str, tuple[type, Any, Any]] = {
    "request": (request.Request, RequestEvent, request.step),
    "group": (group.Group, GroupEvent, group.step),
    "health": (health.Health, HealthEvent, health.step),
}


def replay(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The effects in order. Fails where a step decides otherwise than the record says it was carried out."""
    kind, events, step = MACHINES[lines[0]["machine"]]
    state = from_wire((kind,), lines[0]["initial"])
    done: list[dict[str, Any]] = []
    for line in lines[1:]:
        if "initial" in line:
            state = from_wire((kind,), line["initial"])
            continue
        state, effects = step(state, from_wire(get_args(events), line["event"]), line["now"])
        again = msgspec.json.decode(msgspec.json.encode([to_wire(e) for e in effects]))
        assert again == line["effects"], line["event"]
        done += again
    return done


async def test_a_killed_rank_replays_in_daemon_and_gateway(tmp_path: Path) -> None:
    async with running(tmp_path, sim=("--sim-decode-seconds", "0.02"), record=True) as cluster:
        seen = Seen()
        task = asyncio.create_task(watch(cluster.url, body(tokens=90), seen, group="a"))
        await until(lambda: len(seen.ids) >= 40, 20, "40 tokens")
        (await cluster.rank("a", 1)).kill()
        await task
        assert seen.broken == [] and len(seen.ids) == 90
        await cluster.ready("a", above=1)
    records: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in cluster.record_dir.glob("*.jsonl"):
        for raw in file.read_bytes().splitlines():
            line = msgspec.json.decode(raw)
            records.setdefault((line["machine"], line["key"]), []).append(line)
    assert {key for key in records if key[0] == "group"} == {("group", "a"), ("group", "b")}
    replayed = {key: replay(lines) for key, lines in records.items()}

    stream = replayed["request", seen.stream]
    kinds = [effect["type"] for effect in stream]
    assert sum(e["count"] for e in stream if e["type"] == "Deliver") == 90
    assert kinds.count("Dispatch") == 2 and kinds.count("Finish") == 1
    moved = kinds.index("Dispatch", kinds.index("Deliver"))
    assert kinds[moved + 1] == "AbortAttempt", "the new attempt leaves before anything else is done"
    assert [e["base"] for e in stream if e["type"] == "Dispatch"][1] >= 40

    owner = [effect["type"] for effect in replayed["group", "a"]]
    assert owner.count("KillLaunch") == 1 and owner[owner.index("KillLaunch") + 1] == "WriteFault"
