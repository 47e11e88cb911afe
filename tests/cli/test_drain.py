"""Drain, restart and cordon at the command line: what is refused before anything is written, and what is said."""

from __future__ import annotations

import asyncio
import json

import pytest

from infctl.store.codec import decode, encode
from infctl.store.intent_records import Intent, IntentStatus
from infctl.store.keys import Keys
from infctl.store.records import NodeStatus
from tests.support.command import Run
from tests.support.etcd import store_on

WHERE = {"INFCTL_CLUSTER": "golden"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("drain", "group/a"), 2, "give --yes"),
        (("restart", "group/a"), 2, "give --yes"),
        (("drain", "group/nobody", "--yes"), 5, "group/nobody not found"),
        (("drain", "node/nobody", "--yes"), 5, "node/nobody not found"),
        (("undrain", "group/nobody"), 5, "group/nobody not found"),
        (("cordon", "node/nobody"), 5, "node/nobody not found"),
        (("drain", "a", "--yes"), 2, "is not an address"),
        (("drain", "pool/p", "--yes"), 2, "is not an address"),
        (("restart", "node/n1", "--yes"), 2, "is not an address"),
        (("cordon", "group/a"), 2, "is not an address"),
        (("drain", "group/a", "--yes", "--deadline", "soon"), 2, "90s, 15m or 2h"),
        (("drain", "group/a", "--yes", "--deadline", "0s"), 2, "90s, 15m or 2h"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(
    infctl: Run, words: tuple[str, ...], code: int, said: str
) -> None:
    done = infctl(*words, **WHERE)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_the_plan_says_what_waits_and_when_what_happens(infctl: Run) -> None:
    done = infctl("drain", "group/a", **WHERE)
    first, times, group, *_ = done.stderr.splitlines()
    assert first == "drain group/a: 1 group, no streams in flight"
    assert "SIGTERM" in times and "SIGKILL" in times and "15m00s, all told" in times
    assert group == "  group/a: ready, no streams; waits for MinReady: pool/p needs 2 ready, 0 would be left"


def test_a_cordon_holds_without_a_daemon_and_leaves_its_intent_and_its_event(infctl: Run, endpoint: str) -> None:
    keys, where = Keys("cordon1"), {"INFCTL_CLUSTER": "cordon1"}
    status = NodeStatus(node="n1", cpus=1)

    async def prepare() -> None:
        async with store_on(endpoint) as store:
            await store.put(keys.node_status("n1"), encode(status))

    async def intents() -> list[tuple[str, str, bool]]:
        async with store_on(endpoint) as store:
            kvs = (await store.range(keys.intents)).kvs
        pairs = zip(kvs[::2], kvs[1::2], strict=True)
        return [(decode(Intent, a.value).kind, decode(IntentStatus, b.value).outcome, bool(a.lease)) for a, b in pairs]

    asyncio.run(prepare())
    assert infctl("cordon", "node/n1", "-m", "fan", **where).stdout == "node/n1 cordoned\n"
    assert infctl("cordon", "node/n1", **where).stdout == "node/n1 already cordoned\n"
    (node,) = json.loads(infctl("get", "nodes", "-o", "json", **where).stdout)["items"]
    assert (node["spec"]["cordoned"], node["spec"]["reason"]) == (True, "fan")
    assert "node.cordoned" in infctl("get", "events", "--for", "node/n1", **where).stdout
    assert infctl("uncordon", "node/n1", **where).stdout == "node/n1 uncordoned\n"
    assert infctl("uncordon", "node/n1", **where).stdout == "node/n1 was not cordoned\n"
    assert asyncio.run(intents()) == [("cordon", "cordoned", True), ("uncordon", "uncordoned", True)]
