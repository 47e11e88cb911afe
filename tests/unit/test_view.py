"""What people read: ages, sizes, aligned columns that keep their text, and a snapshot that never leaves a key out."""

from __future__ import annotations

import contextlib
import io as std_io
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.cli.output.table import print_table
from infctl.client.listing import pick
from infctl.domain.errors import NotFound
from infctl.store.records import GroupSpec, GroupStatus
from infctl.view.columns import COLUMNS, Column
from infctl.view.documents import as_list, documents
from infctl.view.humanize import age, duration, short, size
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
    assert only_spec["status"]["phase"] is None


def test_picking_by_name_keeps_the_order_asked_for() -> None:
    found: list[dict[str, object]] = [{"metadata": {"name": n}} for n in ("a", "b", "c")]
    assert [d["metadata"] for d in pick(found, Kind.GROUP, ["c", "a"])] == [{"name": "c"}, {"name": "a"}]
    with pytest.raises(NotFound, match="group/x not found\ngroup/y not found"):
        pick(found, Kind.GROUP, ["a", "x", "y"])
