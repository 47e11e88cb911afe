"""`infctl apply`: created, unchanged, configured; all errors before the first write; unknown fields survive."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from infctl.adapters.etcd import EtcdStore
from infctl.ports.store import KeyValue
from infctl.store.keys import Keys
from tests.support.command import Run

POOL = "apiVersion: infctl/v1\nkind: Pool\nmetadata: {name: p}\nspec: {model: m}\n"
GROUP = """\
apiVersion: infctl/v1
kind: Group
metadata: {name: g}
spec: {pool: p, node: n, engine: sim, modelPath: /m, maxRunning: 4, maxQueued: 8}
"""


def stored(endpoint: str, key: str, value: bytes | None = None) -> KeyValue | None:
    async def ask() -> KeyValue | None:
        store = EtcdStore([endpoint])
        try:
            if value is not None:
                await store.put(key, value)
            return await store.get(key)
        finally:
            await store.close()

    return asyncio.run(ask())


def test_created_unchanged_configured(infctl: Run, tmp_path: Path) -> None:
    env = {"INFCTL_CLUSTER": "apply1"}
    # the group comes first in the folder: pools are written first all the same
    (tmp_path / "a.yaml").write_text(GROUP)
    (tmp_path / "b.yml").write_text(POOL)
    (tmp_path / "notes.txt").write_text("not mine")
    assert infctl("apply", "-f", str(tmp_path), **env).stdout == "pool/p created\ngroup/g created\n"
    assert infctl("apply", "-f", str(tmp_path), **env).stdout == "pool/p unchanged\ngroup/g unchanged\n"
    changed = GROUP.replace("maxRunning: 4", "maxRunning: 5")
    dry = infctl("apply", "-f", "-", "--dry-run", stdin=changed, **env)
    assert dry.stdout == "group/g configured (at the next launch: maxRunning) (dry run)\n"
    done = infctl("apply", "-f", "-", stdin=changed, **env)
    assert done.stdout == "group/g configured (at the next launch: maxRunning)\n"
    (item,) = json.loads(infctl("get", "group/g", "-o", "json", **env).stdout)["items"]
    assert item["spec"]["maxRunning"] == 5
    told = infctl("get", "events", "--no-headers", **env).stdout
    assert [line.split()[1:3] for line in told.splitlines()] == [
        ["spec.created", "pool/p"],
        ["spec.created", "group/g"],
        ["spec.configured", "group/g"],
    ]


def test_each_change_says_when_it_takes_effect(infctl: Run) -> None:
    env = {"INFCTL_CLUSTER": "apply6"}
    infctl("apply", "-f", "-", stdin=f"{POOL}---\n{GROUP}", **env)
    pool = POOL.replace("model: m", "model: m2, minReady: 0, budgets: {disruptions: 2}")
    group = GROUP.replace("node: n", "node: n2, drain: {killGraceSeconds: 5}, env: {A: x}")
    done = infctl("apply", "-f", "-", stdin=f"{pool}---\n{group}", **env)
    assert done.stdout == (
        "pool/p configured (now: minReady, budgets.disruptions; at the next launch: model)\n"
        "group/g configured (now: drain.killGraceSeconds; the group moves: node; at the next launch: env.A)\n"
    )
    (event, *_) = json.loads(infctl("get", "events", "--for", "group/g", "-o", "json", **env).stdout)["items"][::-1]
    assert event["status"]["message"] == "changed: node, env.A, drain.killGraceSeconds"


def test_what_may_surprise_is_a_note_and_no_error(infctl: Run) -> None:
    group = GROUP.replace("engine: sim", "python: /py, role: prefill")
    done = infctl("apply", "-f", "-", stdin=f"{POOL}---\n{group}", INFCTL_CLUSTER="apply7")
    assert done.returncode == 0
    assert done.stdout == "pool/p created\ngroup/g created\n"
    assert done.stderr == (
        "note: <stdin>:9: spec.maxQueued: SGLang ignores the queue cap of a prefill worker (gateways alone hold it)\n"
    )


def test_a_group_needs_its_pool(infctl: Run) -> None:
    done = infctl("apply", "-f", "-", stdin=GROUP, INFCTL_CLUSTER="apply2")
    assert (done.returncode, done.stdout) == (5, "")
    assert "PoolNotFound" in done.stderr


def test_one_bad_file_stops_all_before_the_first_write(infctl: Run, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(POOL)
    (tmp_path / "bad.yaml").write_text(GROUP.replace("maxQueued: 8", "maxQueud: 8"))
    done = infctl("apply", "-f", str(tmp_path / "good.yaml"), "-f", str(tmp_path / "bad.yaml"), INFCTL_CLUSTER="apply3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "bad.yaml:4: spec.maxQueued: required, but missing" in done.stderr
    assert "bad.yaml:4: spec.maxQueud: unknown key (did you mean maxQueued?)" in done.stderr
    assert infctl("get", "pools", "-o", "name", INFCTL_CLUSTER="apply3").stdout == ""


def test_fields_of_a_newer_version_survive(infctl: Run, endpoint: str) -> None:
    env = {"INFCTL_CLUSTER": "apply4"}
    key = Keys("apply4").pool_spec("p")
    infctl("apply", "-f", "-", stdin=POOL, **env)
    before = stored(endpoint, key)
    assert before is not None
    stored(endpoint, key, json.dumps({**json.loads(before.value), "from_the_future": [1]}).encode())
    assert infctl("apply", "-f", "-", stdin=POOL, **env).stdout == "pool/p unchanged\n"
    infctl("apply", "-f", "-", stdin=POOL.replace("model: m", "model: m2"), **env)
    after = stored(endpoint, key)
    assert after is not None
    value = json.loads(after.value)
    assert (value["model"], value["from_the_future"]) == ("m2", [1])


def test_a_value_that_nobody_can_read_is_not_overwritten(infctl: Run, endpoint: str) -> None:
    stored(endpoint, Keys("apply5").pool_spec("p"), b"not json")
    done = infctl("apply", "-f", "-", stdin=POOL, INFCTL_CLUSTER="apply5")
    assert done.returncode == 1
    assert "BadRecord" in done.stderr
    kept = stored(endpoint, Keys("apply5").pool_spec("p"))
    assert kept is not None
    assert kept.value == b"not json"
