"""What people read: ages, sizes, aligned columns that keep their text, and a snapshot that never leaves a key out."""

from __future__ import annotations

import contextlib
import io as std_io
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.cli import io
from infctl.cli.output.hang import hang_beside
from infctl.cli.output.table import print_table
from infctl.client.listing import first_of, pick
from infctl.domain.errors import NotFound
from infctl.store.records import GroupSpec, GroupStatus
from infctl.view.columns import COLUMNS, Column, rows
from infctl.view.documents import Doc, as_list, documents
from infctl.view.humanize import age, clock, duration, reason_and_message, short, size
from infctl.view.kinds import WORDS, Kind
from infctl.view.snapshot import Snapshot

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0s"), (0, "0s"), (59.9, "59s"), (60, "1m00s"), (192, "3m12s"), (3600, "1h00m"), (90061, "1d1h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(None, "-"), (0, "0B"), (1023, "1023B"), (1536, "1.5KiB"), (24 * 2**30, "24GiB")]
)
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


def test_ages() -> None:
    assert age("2026-01-01T23:59:00.000Z", NOW) == "1m00s"
    assert age("2026-01-01T23:59:00", NOW) == "1m00s"
    assert age("yesterday", NOW) == age(None, NOW) == "-"


def test_times_of_day_are_local_and_have_a_date_on_other_days() -> None:
    east = datetime(2026, 1, 2, 1, 0, tzinfo=timezone(timedelta(hours=2)))
    assert clock("2026-01-01T22:59:00.5Z", east) == "00:59:00.500"
    assert clock("2026-01-01T21:59:00Z", east) == "2026-01-01 23:59:00"
    assert clock("2026-01-01T22:59:00", east) == "00:59:00.000"
    assert clock("yesterday", east) == "yesterday"


@pytest.mark.parametrize(
    ("reason", "message", "both"),
    [("", "", ""), ("r", "", "r"), ("", "m", "m"), ("r", "m", "r: m"), ("r", "r: m", "r: m")],
)
def test_a_reason_is_said_once(reason: str, message: str, both: str) -> None:
    assert reason_and_message(reason, message) == both


@given(st.text(max_size=200), st.integers(4, 90))
def test_short_text_fits_and_is_printable(text: str, most: int) -> None:
    found = short(text, most)
    assert len(found) <= most
    assert found.isprintable()


def table(columns: list[Column], rows: list[list[str]], *, headers: bool = True) -> str:
    out = std_io.StringIO()
    with contextlib.redirect_stdout(out):
        print_table(columns, rows, headers=headers)
    return out.getvalue()


def test_columns_are_aligned_and_nothing_is_cut() -> None:
    columns = [Column("NAME", lambda d, n: ""), Column("N", lambda d, n: "", right=True), Column("X", lambda d, n: "")]
    long = "x" * 300
    assert table(columns, [["a", "1", "[b]"], ["longer", "100", long]]) == (
        f"NAME       N   X\na          1   [b]\nlonger   100   {long}\n"
    )
    assert table(columns, [["a", "1", "b\x1b[2J\nc"]], headers=False) == "a   1   b\\x1b[2J c\n"


def test_sentences_hang_below_their_row_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [Column("A", lambda d, n: ""), Column("B", lambda d, n: ""), Column("C", lambda d, n: "", flex=True)]
    rows = [["a", "b" * 20, "one two three four five"], ["a", "b", "six"]]
    monkeypatch.setattr("infctl.cli.io.width", lambda default=0: 36)
    wide = "b" * 20
    assert table(columns, rows) == f"A   B{' ' * 22}C\na   {wide}\n      one two three four five\na   b\n      six\n"
    monkeypatch.setattr("infctl.cli.io.width", lambda default=0: 60)
    assert table(columns, rows).splitlines()[1] == f"a   {wide}   one two three four five"
    monkeypatch.setattr("infctl.cli.io.width", lambda default=0: 20)
    assert (
        table([Column("X", lambda d, n: ""), *columns], [["x", *row] for row in rows], headers=False)
        == "x   a\nx   a\n"
    )


@given(st.text(max_size=300), st.text(max_size=60), st.integers(20, 120), st.booleans())
def test_hung_lines_lose_no_word(text: str, head: str, width: int, below: bool) -> None:
    flat = " ".join(io.printable(text).split())
    lines = hang_beside(head, flat, width, below=below)
    assert " ".join(lines).split() == f"{head}{' ' if below and flat else ''}{flat}".split()


def test_every_kind_has_columns_words_and_a_list() -> None:
    for kind in Kind:
        assert COLUMNS[kind]
        assert WORDS[kind.plural] is kind
        assert as_list(kind, documents(Snapshot(), kind), 7) == {
            "apiVersion": "infctl/v1",
            "kind": f"{kind.value.capitalize()}List",
            "metadata": {"revision": 7},
            "items": [],
        }


def test_half_known_objects_have_the_same_keys() -> None:
    snapshot = Snapshot()
    snapshot.groups["spec"] = GroupSpec(name="spec", pool="p", node="n", model_path="/m", max_running=1, max_queued=1)
    snapshot.group_status["status"] = GroupStatus(group="status", node="n", phase="loading")
    only_spec, only_status = documents(snapshot, Kind.GROUP)
    assert only_spec["status"].keys() == only_status["status"].keys()
    assert only_status["spec"] is None
    assert (only_status["status"]["ownerHeard"], only_spec["status"]["ownerHeard"]) == (False, None)
    assert [row[1:3] for row in rows(Kind.GROUP, [only_spec, only_status], NOW, wide=False)[1]] == [
        ["-", "-"],
        ["Loading?", "OwnerNotHeard"],
    ]
    assert only_spec["status"]["phase"] is None


def test_picking_by_name_keeps_the_order_asked_for() -> None:
    found: list[Doc] = [{"metadata": {"name": n}} for n in ("a", "b", "c")]
    there, error = pick(found, Kind.GROUP, ["c", "a", "c"])
    assert ([d["metadata"]["name"] for d in there], error) == (["c", "a"], None)
    there, error = pick(found, Kind.GROUP, ["a", "x", "y"])
    assert [d["metadata"]["name"] for d in there] == ["a"]
    assert error is not None and error.message == "group/x not found\ngroup/y not found"
    assert error.hint == "infctl get groups"
    both = first_of([None, error, NotFound("node/n not found")])
    assert both is not None and both.message == "group/x not found\ngroup/y not found\nnode/n not found"
    assert first_of([None]) is None
