"""`infctl diff`: what `apply` would change, as golden files; nothing is written, and the exit code tells."""

from __future__ import annotations

import asyncio
import json

import jsonschema
import yaml

from infctl.adapters.etcd import EtcdStore
from infctl.store.keys import Keys
from infctl.view.schema import FOLDER
from tests.cli.test_apply import stored
from tests.cli.test_get import golden
from tests.support.command import Run

POOL = "apiVersion: infctl/v1\nkind: Pool\nmetadata: {name: p}\nspec: {model: m, minReady: 1}\n"
GROUP = """\
apiVersion: infctl/v1
kind: Group
metadata: {name: g}
spec:
  pool: p
  node: n
  engine: sim
  modelPath: /m
  maxRunning: 4
  maxQueued: 8
  engineArgs: [--sim-seed, "1"]
  env: {A: one, B: two}
"""
NEW_POOL = POOL.replace("minReady: 1", "minReady: 2, canary: {answer: [1, 2, 3]}")
NEW_GROUP = (
    GROUP.replace("node: n", "hosts: [{node: n, gpus: [0, 1]}]\n  tensorParallel: 2")
    .replace("maxRunning: 4", "maxRunning: 16")
    .replace("A: one, ", "")
    .replace("engineArgs:", "restart: {attempts: 9}\n  engineArgs:")
)
BOTH = f"{NEW_POOL}---\n{NEW_GROUP}"


def start(infctl: Run, cluster: str) -> dict[str, str]:
    env = {"INFCTL_CLUSTER": cluster}
    assert infctl("apply", "-f", "-", stdin=f"{POOL}---\n{GROUP}", **env).returncode == 0
    return env


def revision(endpoint: str) -> int:
    async def ask() -> int:
        store = EtcdStore([endpoint])
        try:
            return (await store.range(Keys("diff").root)).revision
        finally:
            await store.close()

    return asyncio.run(ask())


def test_a_change_is_shown_in_canonical_form_and_nothing_is_written(infctl: Run, endpoint: str) -> None:
    env = start(infctl, "diff1")
    before = revision(endpoint)
    done = infctl("diff", "-f", "-", stdin=BOTH, **env)
    assert (done.returncode, done.stderr) == (1, "")
    golden("diff/changed.txt", done.stdout)
    assert revision(endpoint) == before


def test_programs_get_each_field_and_when_it_takes_effect(infctl: Run) -> None:
    env = start(infctl, "diff2")
    done = infctl("diff", "-f", "-", "-o", "json", stdin=BOTH, **env)
    assert (done.returncode, done.stderr) == (1, "")
    golden("diff/changed.json", done.stdout)
    as_yaml = infctl("diff", "-f", "-", "-o", "yaml", stdin=BOTH, **env)
    assert yaml.safe_load(as_yaml.stdout) == json.loads(done.stdout)
    jsonschema.validate(json.loads(done.stdout), json.loads((FOLDER / "diff.json").read_text()))


def test_new_objects_are_shown_whole(infctl: Run) -> None:
    done = infctl("diff", "-f", "-", stdin=f"{POOL}---\n{GROUP}", INFCTL_CLUSTER="diff3")
    assert (done.returncode, done.stderr) == (1, "")
    golden("diff/new.txt", done.stdout)


def test_nothing_to_change_is_exit_code_0_and_silence(infctl: Run) -> None:
    env = start(infctl, "diff4")
    # written otherwise, and the same in canonical form
    same = GROUP.replace("node: n", "hosts: [{node: n}]\n  tensorParallel: 1\n  drain: {killGraceSeconds: 30}")
    done = infctl("diff", "-f", "-", stdin=same, **env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (item,) = json.loads(infctl("diff", "-f", "-", "-o", "json", stdin=same, **env).stdout)["items"]
    assert (item["outcome"], item["changes"]) == ("unchanged", [])


def test_after_applying_there_is_no_difference(infctl: Run, endpoint: str) -> None:
    env = start(infctl, "diff5")
    key = Keys("diff5").group_spec("g")
    have = stored(endpoint, key)
    assert have is not None
    value = json.loads(have.value)
    # what a newer version wrote beside ours, also inside
    newer = {**value, "from_the_future": 1, "restart": {**value["restart"], "patience": 2}}
    stored(endpoint, key, json.dumps(newer).encode())
    assert infctl("diff", "-f", "-", stdin=GROUP, **env).returncode == 0
    assert infctl("apply", "-f", "-", stdin=BOTH, **env).returncode == 0
    assert infctl("diff", "-f", "-", stdin=BOTH, **env).returncode == 0
    after = stored(endpoint, key)
    assert after is not None
    found = json.loads(after.value)
    assert (found["from_the_future"], found["restart"]["patience"], found["restart"]["attempts"]) == (1, 2, 9)


def test_colour_is_for_terminals_that_want_it(infctl: Run) -> None:
    env = start(infctl, "diff6")
    coloured = infctl("diff", "-f", "-", stdin=NEW_POOL, FORCE_COLOR="1", **env).stdout
    assert "\x1b[31m-  minReady: 1\x1b[0m" in coloured
    assert "\x1b[32m+  minReady: 2\x1b[0m" in coloured
    assert "\x1b[1m--- pool/p (in the cluster)\x1b[0m" in coloured
    assert "\x1b" not in infctl("diff", "-f", "-", stdin=NEW_POOL, **env).stdout


def test_errors_are_never_exit_code_1(infctl: Run, endpoint: str) -> None:
    bad = infctl("diff", "-f", "-", stdin=GROUP.replace("maxQueued: 8", "maxQueud: 8"), INFCTL_CLUSTER="diff7")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert infctl("diff", "-f", "-", stdin=GROUP, INFCTL_CLUSTER="diff7").returncode == 5
    assert infctl("diff", "-f", "-", "-o", "table", stdin=GROUP, INFCTL_CLUSTER="diff7").returncode == 2
    assert infctl("diff", "-f", "-", stdin=GROUP, INFCTL_ENDPOINTS="127.0.0.1:1").returncode == 3
    stored(endpoint, Keys("diff7").pool_spec("p"), b"not json")
    unreadable = infctl("diff", "-f", "-", stdin=POOL, INFCTL_CLUSTER="diff7")
    assert (unreadable.returncode, unreadable.stdout) == (7, "")
    assert "BadRecord" in unreadable.stderr
