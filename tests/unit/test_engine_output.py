"""The end of an engine's output, and the records of how launches ended: bounded, whole, and the right ones."""

from __future__ import annotations

import itertools
import os
import secrets
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.domain.ids import base32, is_launch_id, launch_id
from infctl_daemon.node import launch as launches
from infctl_daemon.node.api_logs import MOST_LINE, Lines, redact
from infctl_daemon.proc.ended import KEPT, Ended, read, write
from infctl_daemon.proc.reading import BLOCK, more, tail


@given(text=st.text(alphabet="ab\n\r", max_size=60), lines=st.integers(0, 8), block=st.sampled_from([1, 2, 3, 7, 64]))
def test_the_tail_is_what_the_whole_file_ends_with(
    tmp_path_factory: pytest.TempPathFactory, text: str, lines: int, block: int
) -> None:
    path = tmp_path_factory.mktemp("out") / "log"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infctl_daemon.proc.reading.BLOCK", block)
        found = tail(path, lines)
    whole = [line + "\n" for line in text.split("\n")[:-1]] + [text.split("\n")[-1]]
    wanted = [line for line in whole if line][-lines:] if lines else []
    assert (found.text.decode(), found.end, found.cut) == ("".join(wanted), len(text), False)


def test_a_tail_is_bounded_in_bytes_and_says_that_lines_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %06d\n" % n for n in range(3 * BLOCK // 12)))
    found = tail(path, 10**6, most=5000)
    assert found.cut and len(found.text) <= 5000
    assert found.text.startswith(b"line ") and found.text.endswith(b"%06d\n" % (3 * BLOCK // 12 - 1))
    assert not tail(path, 3, most=5000).cut
    path.write_bytes(b"x" * 10_000)
    one = tail(path, 3, most=5000)
    assert one.cut and one.text == b"x" * 5000, "a line without end is shown as far as it goes"


def test_a_file_that_is_not_there_has_no_lines_and_one_that_shrank_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert tail(path, 5).text == b"" and more(path, 10) == (b"", 0)
    path.write_bytes(b"0123456789")
    assert more(path, 4, most=3) == (b"456", 7)
    assert more(path, 10) == (b"", 10)
    os.truncate(path, 2)
    assert more(path, 10) == (b"01", 2)


def test_our_keys_have_the_shape_that_is_taken_out() -> None:
    for _ in range(20):
        key = launches._new_key()
        assert redact(f"ServerArgs(api_key='{key}', x=1)".encode()) == b"ServerArgs(api_key='***', x=1)"
    assert redact(b"k8s and kernels stay") == b"k8s and kernels stay"


@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_lines_come_whole_and_without_keys_however_they_arrive(cuts: list[int]) -> None:
    key = "k" + "0123456789ab" * 4
    text = f"one\nkey={key}\n\nlast {key} line".encode()
    lines, out = Lines(), b""
    edges = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    for start, end in itertools.pairwise(edges):
        taken = lines.take(text[start:end])
        assert taken == b"" or taken.endswith(b"\n")
        out += taken
    assert out + lines.end() == b"one\nkey=***\n\nlast *** line"


@pytest.mark.parametrize("at", [MOST_LINE - 60, MOST_LINE - 20, MOST_LINE, MOST_LINE + 20])
def test_a_line_without_end_is_passed_on_in_pieces_that_break_no_key(at: int) -> None:
    key = b"k" + b"0123456789ab" * 4
    text = b"x" * at + key + b"y" * 200
    lines = Lines()
    out = b"".join(lines.take(text[n : n + 10]) for n in range(0, len(text), 10))
    assert out, "memory is bounded: something came before the end"
    assert out + lines.end() == text.replace(key, b"***")


def record(n: int, group: str = "a") -> Ended:
    launch = launch_id(group, n.to_bytes(5, "big"))
    return Ended(group=group, launch=launch, reason="x", signal=9, ended_at=f"2026-01-02T03:04:{n:02}.000Z")


def test_the_newest_records_of_a_group_are_kept_and_old_logs_go_with_theirs(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    other = record(1, "a-b")
    write(tmp_path, other)
    every = [record(n) for n in range(4 * KEPT)]
    for one in [*every, other]:
        (logs / f"{one.launch}.log").write_text("x")
    for one in every:
        write(tmp_path, one)
    assert read(tmp_path, "a") == every[::-1][:KEPT]
    assert read(tmp_path, "a-b") == [other] and read(tmp_path, "none") == []
    kept = {p.stem for p in logs.iterdir()}
    assert kept >= {one.launch for one in every[-KEPT:]} | {other.launch}
    assert len(kept) <= 2 * KEPT + 1
    (mode,) = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "ended" / "a").iterdir()}
    assert mode == 0o600


def test_the_first_word_on_a_launch_stays_and_rubbish_is_passed_over(tmp_path: Path) -> None:
    first = record(1)
    write(tmp_path, first)
    write(tmp_path, Ended(group="a", launch=first.launch, reason="said again", ended_at=first.ended_at))
    (tmp_path / "ended" / "a" / "bad.json").write_text("{")
    assert read(tmp_path, "a") == [first]


def test_only_a_launch_of_the_group_can_become_a_path() -> None:
    assert is_launch_id(launch_id("a-b", secrets.token_bytes(5)), "a-b")
    assert is_launch_id(launch_id("g" * 63, b"12345"), "g" * 63)
    good = base32(b"12345", 8)
    for text in (
        f"b-{good}",
        f"a-b-{good}",
        good,
        f"a-{good}x",
        f"a-{good[:7]}",
        "a-../../x",
        f"a-{good}\n",
        f"a{good}",
    ):
        assert not is_launch_id(text, "a"), text
