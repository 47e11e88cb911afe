"""Values of the store: what we do not know survives, what is no record is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infctl.store import records
from infctl.store.codec import BadRecord, Record, decode, decode_stored, encode
from infctl.store.records import EventRecord, Generation, GroupSpec

SPEC = GroupSpec(name="a", pool="p", node="n", model_path="/m", max_running=4, max_queued=4)
KINDS = [
    kind
    for kind in vars(records).values()
    if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
]


def raw(value: bytes) -> dict[str, Any]:
    found = json.loads(value)
    assert isinstance(found, dict)
    return found


def test_a_record_comes_back_as_it_was_written() -> None:
    assert decode(GroupSpec, encode(SPEC)) == SPEC


def test_a_field_with_its_default_is_written_too() -> None:
    assert raw(encode(SPEC))["v"] == 1 and raw(encode(SPEC))["tp"] == 1


def test_a_missing_field_takes_its_default() -> None:
    assert decode(Generation, b'{"generation": 3, "launch": "a-1"}') == Generation(generation=3, launch="a-1")


def test_fields_of_a_later_version_survive_a_rewrite() -> None:
    written = b'{"v": 2, "generation": 3, "launch": "a-1", "colour": {"deep": [1, null]}, "n": 7}'
    stored = decode_stored(Generation, written, mod_revision=9)
    assert (stored.record.generation, stored.mod_revision) == (3, 9)
    rewritten = raw(stored.encode(msgspec.structs.replace(stored.record, generation=4)))
    assert rewritten == {
        "v": 2,
        "generation": 4,
        "launch": "a-1",
        "owner": "",
        "at": "",
        "colour": {"deep": [1, None]},
        "n": 7,
    }


def test_unknown_fields_inside_a_nested_record_survive_too() -> None:
    value = raw(encode(SPEC))
    value["restart"]["jitter"] = 0.5
    value["env"] = {"A": "1"}
    stored = decode_stored(GroupSpec, json.dumps(value).encode())
    changed = msgspec.structs.replace(stored.record, env={}, restart=records.Restart(attempts=9))
    rewritten = raw(stored.encode(changed))
    assert rewritten["restart"]["jitter"] == 0.5 and rewritten["restart"]["attempts"] == 9
    assert rewritten["env"] == {}, "a mapping of ours is replaced, not merged"


def test_a_field_that_we_know_is_never_overwritten_by_the_old_value() -> None:
    stored = decode_stored(Generation, b'{"generation": 3, "launch": "a-1"}')
    assert raw(stored.encode(Generation(generation=4, launch="a-2")))["launch"] == "a-2"


DEEP = b'{"at":"","kind":"","subject":"","actor":"","fields":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}"
DEEP_UNKNOWN = b'{"generation":1,"launch":"a","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"


@pytest.mark.parametrize("reader", [decode, decode_stored], ids=["decode", "decode_stored"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Generation, b""),
        (Generation, b"null"),
        (Generation, b"[]"),
        (Generation, b"{"),
        (Generation, b"\xff\xfe\x00"),
        (Generation, b"{}"),
        (Generation, b'{"generation": "3", "launch": "a"}'),
        (Generation, b'{"generation": 3.5, "launch": "a"}'),
        (Generation, b'{"generation": null, "launch": "a"}'),
        (Generation, b'{"generation": 3, "launch": "\xff"}'),
        (Generation, b'{"generation": 3, "launch": "\\ud800"}'),
        (Generation, b'{"generation": 3, "launch": "a"} trailing'),
        (EventRecord, DEEP),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else str(v[:30]),
)
def test_what_is_no_record_is_refused_with_the_name_of_its_kind(reader: Any, kind: type[Record], value: bytes) -> None:
    with pytest.raises(BadRecord) as caught:
        reader(kind, value)
    assert kind.__name__ in caught.value.message


def test_an_unknown_field_too_deep_to_keep_is_refused_instead_of_lost() -> None:
    with pytest.raises(BadRecord):
        decode_stored(Generation, DEEP_UNKNOWN)


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_bad_record(value: bytes) -> None:
    for kind in (Generation, GroupSpec):
        try:
            decode_stored(kind, value)
        except BadRecord:
            continue


SPEC = GroupSpec(name="g", pool="p", node="n", model_path="/m", max_running=1, max_queued=1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_every_record_needs_only_its_required_fields_and_round_trips(kind: type[Record]) -> None:
    samples: dict[Any, Any] = {str: "x", int: 1, list[int]: [1], float: 1.0, GroupSpec: SPEC}
    given = {f.name: samples[f.type] for f in msgspec.structs.fields(kind) if f.required}
    record = kind(**given)
    assert decode(kind, encode(record)) == record
    assert decode_stored(kind, encode(record)).unknown == {}
