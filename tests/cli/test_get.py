"""`infctl get`: tables and documents are what they were (golden files), and lists are always lists."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from tests.support.command import Run

GOLDEN = Path(__file__).parent / "golden"
KINDS = ["nodes", "pools", "groups", "endpoints", "streams", "gateways", "events"]


def golden(name: str, text: str) -> None:
    """Compare with the file; INFCTL_UPDATE_GOLDEN=1 writes it instead."""
    path = GOLDEN / name
    if os.environ.get("INFCTL_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def still(text: str) -> str:
    """Revisions and ages move, and columns with the width of the ages; everything else stands still."""
    text = re.sub(r'("revision"|^  revision): \d+', r"\1: 0", text, flags=re.MULTILINE)
    return re.sub(r"\b\d+d\d+h\b", "AGE", text)


def cells(text: str) -> str:
    """A table without its padding."""
    return "".join(re.sub(r" {2,}", " | ", line.rstrip()) + "\n" for line in text.splitlines())


@pytest.mark.parametrize("kind", KINDS)
def test_documents(infctl: Run, kind: str) -> None:
    done = infctl("get", kind, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["apiVersion"] == "infctl/v1"
    assert document["kind"] == f"{kind[:-1].capitalize()}List"
    golden(f"{kind}.json", still(done.stdout))
    as_yaml = infctl("get", kind, "-o", "yaml")
    assert (as_yaml.returncode, as_yaml.stderr) == (0, "")
    assert still(json.dumps(yaml.safe_load(as_yaml.stdout), indent=2)) + "\n" == still(done.stdout)
    golden(f"{kind}.yaml", still(as_yaml.stdout))


@pytest.mark.parametrize("kind", KINDS)
def test_tables(infctl: Run, kind: str) -> None:
    for form in ("table", "wide"):
        done = infctl("get", kind, "-o", form)
        assert (done.returncode, done.stderr) == (0, "")
        golden(f"{kind}.{form}.txt", cells(still(done.stdout)))
    bare = infctl("get", kind, "--no-headers")
    assert cells(still(bare.stdout)).splitlines() == (GOLDEN / f"{kind}.table.txt").read_text().splitlines()[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_addresses(infctl: Run, kind: str) -> None:
    done = infctl("get", kind, "-o", "name")
    assert (done.returncode, done.stderr) == (0, "")
    golden(f"{kind}.name.txt", done.stdout)


def test_several_kinds_at_once(infctl: Run) -> None:
    """Names say of which kind they are, and documents are one list."""
    done = infctl("get", "pools,groups")
    assert (done.returncode, done.stderr) == (0, "")
    golden("several.table.txt", cells(still(done.stdout)))
    assert infctl("get", "node/n1", "group/new", "node/n2", "-o", "name").stdout == "node/n1\nnode/n2\ngroup/new\n"
    document = json.loads(infctl("get", "pools,groups", "-o", "json").stdout)
    assert document["kind"] == "List"
    assert [item["kind"] for item in document["items"]] == ["Pool", "Group", "Group"]
    assert yaml.safe_load(infctl("get", "pools,groups", "-o", "yaml").stdout) == document


def test_events_of_one_thing(infctl: Run) -> None:
    assert infctl("get", "events", "--for", "group/a", "-o", "name").stdout == "event/e1\n"
    done = infctl("get", "events", "--for", "g/new", "-o", "name")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_one_object_is_a_list_too(infctl: Run) -> None:
    done = infctl("get", "group/a", "-o", "json")
    assert [item["metadata"]["name"] for item in json.loads(done.stdout)["items"]] == ["a"]


def test_yaml_says_the_same_as_json(infctl: Run) -> None:
    as_json = json.loads(infctl("get", "groups", "-o", "json").stdout)
    assert yaml.safe_load(infctl("get", "groups", "-o", "yaml").stdout) == as_json


def test_what_is_there_is_shown_though_something_else_is_not(infctl: Run) -> None:
    done = infctl("get", "group/a", "node/n9", "-o", "json")
    assert done.returncode == 5
    assert [item["kind"] for item in json.loads(done.stdout)["items"]] == ["Group"]
    assert json.loads(done.stderr)["error"]["message"] == "node/n9 not found"


def test_what_is_not_known_is_null(infctl: Run) -> None:
    done = infctl("get", "group", "new", "-o", "json")
    (item,) = json.loads(done.stdout)["items"]
    for name in ("phase", "generation", "launch", "pid", "url", "lastFault"):
        assert item["status"][name] is None


def test_names_headers_and_short_words(infctl: Run) -> None:
    assert infctl("get", "g", "-o", "name").stdout == "group/a\ngroup/new\n"
    assert infctl("get", "no", "--no-headers").stdout.startswith("n1 ")
    assert infctl("get", "groups", "new", "a", "-o", "name").stdout == "group/new\ngroup/a\n"


def test_a_value_that_is_not_ours_is_skipped_and_told(infctl: Run, endpoint: str) -> None:
    import asyncio

    from infctl.adapters.etcd import EtcdStore
    from infctl.store.keys import Keys

    async def write() -> None:
        store = EtcdStore([endpoint])
        await store.put(Keys("odd").pool_spec("x"), b'{"name": 3}')
        await store.close()

    asyncio.run(write())
    done = infctl("get", "pools", INFCTL_CLUSTER="odd")
    assert done.returncode == 0
    assert "warning: /infctl/v1/odd/pools/x/spec" in done.stderr


def test_nothing_there_is_said_on_stderr(infctl: Run) -> None:
    done = infctl("get", "streams", INFCTL_CLUSTER="empty")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "no streams in cluster empty (INFCTL_ENDPOINTS)\n"
    assert json.loads(infctl("get", "streams", "-o", "json", INFCTL_CLUSTER="empty").stdout)["items"] == []
