"""Names, ids and addresses: one grammar each."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infctl.domain.errors import UsageError
from infctl.domain.ids import Epoch, base32, check_name, engine_rid, is_stream_id, launch_id, parse_address, stream_id


@pytest.mark.parametrize("name", ["a", "0", "a-b", "node.example", "a" * 63])
def test_legal_names_pass(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", ".a", "a/b", "a b", "a\n", "ä", "a_b", "a" * 64])
def test_illegal_names_are_refused_with_the_name_and_a_hint(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_name(name, "group")
    assert repr(name) in caught.value.message and "group" in caught.value.message
    assert caught.value.hint


@settings(max_examples=60)
@given(st.integers(0, 2**47), st.integers(1, 2**46), st.binary(min_size=11, max_size=11))
def test_streams_that_are_made_later_sort_later(now: int, later: int, entropy: bytes) -> None:
    assert stream_id(now, b"\xff" * 11) < stream_id(now + later, entropy)


@pytest.mark.parametrize("entropy", [b"\x00" * 11, b"\xff" * 11, b"\xff" * 40])
def test_a_stream_id_has_one_length_and_is_recognised(entropy: bytes) -> None:
    made = stream_id(1_790_000_000_000, entropy)
    assert len(made) == 27
    assert is_stream_id(made) and is_stream_id(made + "0a")


@pytest.mark.parametrize(
    "text", ["", "r", "r" + "a" * 25, "r" + "a" * 27, "x" + "a" * 26, "r" + "A" * 26, "r" + "1" * 26]
)
def test_other_texts_are_no_stream_ids(text: str) -> None:
    assert not is_stream_id(text)


def test_different_entropy_gives_different_ids_and_all_of_it_counts() -> None:
    base = b"\x00" * 11
    made = {stream_id(1, base[:i] + b"\x80" + base[i + 1 :]) for i in range(11)}
    assert len(made) == 11
    assert len({launch_id("a", bytes([0] * i + [128] + [0] * (4 - i))) for i in range(5)}) == 5


def test_a_launch_names_its_group_and_eight_characters() -> None:
    made = launch_id("group-a", os.urandom(5))
    group, _, tail = made.rpartition("-")
    assert (group, len(tail)) == ("group-a", 8)
    assert check_name(made) == made


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=20), st.binary(min_size=1, max_size=20))
def test_base32_keeps_the_order_of_numbers_of_one_size(a: bytes, b: bytes) -> None:
    a, b = a.ljust(20, b"\0"), b.ljust(20, b"\0")
    assert (base32(a, 32) < base32(b, 32)) == (a < b)


def test_base32_fills_up_what_is_too_short() -> None:
    assert len(base32(b"\x01", 8)) == 8
    assert base32(b"\xf8", 1) == base32(b"\xf8\x00", 1)


@pytest.mark.parametrize("epoch", [Epoch(1, 1), Epoch(0xFFFF, 0xFFFF), Epoch(70_000, 70_001)])
def test_an_engine_rid_has_one_length_whatever_the_numbers(epoch: Epoch) -> None:
    stream = stream_id(5, b"\x07" * 11)
    assert len(engine_rid(stream, epoch, 123_456_789)) == 27 + 1 + 12


def test_no_engine_rid_is_a_prefix_of_another() -> None:
    one, two = stream_id(5, b"\x07" * 11), stream_id(6, b"\x07" * 11)
    streams = [one, two, one + "00", one + "0a"]
    rids = [engine_rid(s, Epoch(t, a), g) for s in streams for t in (1, 16) for a in (1, 17) for g in (1, 0xABCD)]
    assert len(set(rids)) == len(rids)
    assert not [(a, b) for a in rids for b in rids if a != b and b.startswith(a)]


def test_epochs_are_ordered_by_term_then_attempt() -> None:
    assert Epoch(1, 9) < Epoch(2, 0) < Epoch(2, 1)


KINDS = {"node": "node", "nodes": "node", "group": "group"}


@pytest.mark.parametrize(
    ("text", "kind", "name"), [("node/a", "node", "a"), ("nodes/a.b", "node", "a.b"), ("group/x-1", "group", "x-1")]
)
def test_an_address_gives_its_kind_and_name(text: str, kind: str, name: str) -> None:
    assert parse_address(text, KINDS) == (kind, name)


@pytest.mark.parametrize("text", ["", "node", "node/", "pod/a", "/a", "node/a/b", "node/A", "node/../x", "node/a "])
def test_what_is_no_address_is_refused_and_never_reaches_a_key(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text, KINDS)
    assert caught.value.hint
