"""The witness's counting: every way in which a stream can be wrong is seen, and a right one is left alone."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from infctl.client.demo.count import Count, Received, compare
from infctl.client.demo.report import Arrivals, Report


def crc(ids: Sequence[int]) -> str:
    return f"{zlib.crc32(struct.pack(f'<{len(ids)}I', *ids)):08x}"


def receive(ids: Sequence[int], cuts: Sequence[int] = ()) -> Received:
    """Frames that are right in themselves, cut at the given places."""
    received = Received()
    edges = [0, *sorted({c for c in cuts if 0 < c < len(ids)}), len(ids)]
    for a, b in itertools.pairwise(edges):
        if b > a:
            received.frame(ids[a:b], f"{b}-{crc(ids[:b])}")
    return received


REFERENCE = [(i * 7919 + 13) % 500 for i in range(64)]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=80), st.lists(st.integers(1, 80)))
def test_an_unbroken_stream_is_exact_however_it_is_cut(ids: list[int], cuts: list[int]) -> None:
    assert compare(receive(ids, cuts), ids) == Count(len(ids), 0, 0, True, -1)


def test_a_repeated_token_that_positions_hide() -> None:
    got = [*REFERENCE[:30], REFERENCE[29], *REFERENCE[30:63]]
    count = compare(receive(got, range(64)), REFERENCE)
    assert (count.lost, count.repeated, count.exact, count.differs_at) == (0, 1, False, 30)


def test_a_lost_token_that_positions_hide() -> None:
    count = compare(receive([*REFERENCE[:30], *REFERENCE[31:]], range(64)), REFERENCE)
    assert (count.lost, count.repeated, count.exact, count.differs_at) == (1, 0, False, 30)


def test_positions_that_jump_or_stand_still() -> None:
    jumped = receive(REFERENCE[:10], range(10))
    jumped.frame([1], "13-00000000")
    assert (jumped.lost, jumped.repeated) == (2, 0)
    still = receive(REFERENCE[:10], range(10))
    still.frame([REFERENCE[9]], f"10-{crc(REFERENCE[:10])}")
    assert (still.lost, still.repeated) == (0, 1)
    assert not compare(still, REFERENCE[:10]).exact


def test_a_digest_that_does_not_fit_and_an_id_that_is_none() -> None:
    wrong = Received()
    wrong.frame([1, 2], "2-00000000")
    assert not compare(wrong, [1, 2]).exact
    nameless = Received()
    nameless.frame([1, 2], "")
    assert not compare(nameless, [1, 2]).exact


def test_too_few_and_too_many() -> None:
    short = compare(receive(REFERENCE[:60]), REFERENCE)
    assert (short.lost, short.exact, short.differs_at) == (4, False, 60)
    long = compare(receive([*REFERENCE, 1, 2]), REFERENCE)
    assert (long.lost, long.exact, long.differs_at) == (0, False, 64)


def test_a_wrong_token_is_neither_lost_nor_repeated() -> None:
    got = [*REFERENCE[:30], 501, *REFERENCE[31:]]
    count = compare(receive(got), REFERENCE)
    assert (count.lost, count.repeated, count.exact, count.differs_at) == (0, 0, False, 30)


def test_the_gap_counts_from_the_last_token_of_the_dead_worker() -> None:
    frames = [(i + 1, i * 0.05) for i in range(10)]  # the tenth arrives at 0.45
    arrivals = Arrivals("r", [*frames, (11, 0.75), (12, 0.80)])
    # the fault came at 0.42; token 10 was on its way already
    gap = arrivals.gap_ms(0.42, committed=10)
    assert gap is not None
    assert abs(gap - 250.0) < 0.01
    assert Arrivals().gap_ms(0.0, 0) is None


def test_the_report_has_exactly_the_promised_keys() -> None:
    assert " ".join(Report("sim", "none").to_dict()) == (
        "engine fault tokens lost repeated exact gap_ms net_gap_ms prefill_ms detect_ms replayed_tokens launch_before "
        "launch_after generation_before generation_after requests_after_notice"
    )
