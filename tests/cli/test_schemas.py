"""The schemas that are shipped: what the program's types say, and true of every document it prints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from infctl.view.schema import FOLDER, schemas, text_of
from tests.support.command import Run

GOLDEN = Path(__file__).parent / "golden"
MADE = schemas()


def shipped(name: str) -> Any:
    schema = json.loads((FOLDER / name).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", sorted(MADE))
def test_each_file_is_what_the_program_says(name: str) -> None:
    """INFCTL_UPDATE_GOLDEN=1 writes it anew after a field was added."""
    if os.environ.get("INFCTL_UPDATE_GOLDEN"):
        (FOLDER / name).write_text(text_of(MADE[name]))
    assert text_of(MADE[name]) == (FOLDER / name).read_text()


def test_there_is_no_file_too_many() -> None:
    assert {p.name for p in FOLDER.iterdir()} == set(MADE)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda p: p.name)
def test_every_golden_document_is_valid(path: Path) -> None:
    shipped(path.name).validate(json.loads(path.read_text()))


def test_what_is_printed_now_is_valid(infctl: Run) -> None:
    for words, name in (
        (["get", "nodes,pools,groups,endpoints,streams,gateways,events"], "list.json"),
        (["get", "group/a"], "groups.json"),
        (["version"], "version.json"),
        (["config", "get-contexts"], "contexts.json"),
        (["config", "view"], "config.json"),
    ):
        done = infctl(*words, "-o", "json")
        assert (done.returncode, done.stderr) == (0, "")
        shipped(name).validate(json.loads(done.stdout))


def broken() -> list[tuple[str, Any]]:
    """(what is wrong, document) made from a good one."""
    good = json.loads((GOLDEN / "groups.json").read_text())
    found: list[tuple[str, Any]] = []
    for what, path, value in (
        ("another version", ["apiVersion"], "infctl/v2"),
        ("another kind", ["kind"], "NodeList"),
        ("another kind inside", ["items", 0, "kind"], "Node"),
        ("text for a number", ["items", 0, "status", "generation"], "3"),
        ("null where something always is", ["items", 0, "status", "ready"], None),
    ):
        document = json.loads(json.dumps(good))
        inner = document
        for part in path[:-1]:
            inner = inner[part]  # type: ignore[index]
        inner[path[-1]] = value  # type: ignore[index]
        found.append((what, document))
    document = json.loads(json.dumps(good))
    del document["items"][0]["status"]["lastFault"]
    return [*found, ("a field left out", document)]


@pytest.mark.parametrize(("what", "document"), broken(), ids=lambda x: x if isinstance(x, str) else "")
def test_a_wrong_document_is_refused(what: str, document: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        shipped("groups.json").validate(document)


def test_a_newer_program_may_add_fields() -> None:
    document = json.loads((GOLDEN / "groups.json").read_text())
    document["items"][0]["status"]["new"] = 1
    shipped("groups.json").validate(document)


@pytest.mark.parametrize("name", sorted(MADE))
def test_names_are_camel_case_and_durations_say_their_unit(name: str) -> None:
    for title, part in MADE[name]["$defs"].items():
        for key in part["properties"]:
            assert key[0].islower() and "_" not in key, f"{title}.{key}"
            assert not key.endswith(("Ms", "Delay", "Timeout", "Interval", "Deadline", "Age")), f"{title}.{key}"
        assert part.get("description"), title
