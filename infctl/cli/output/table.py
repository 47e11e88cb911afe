"""Aligned columns without boxes, the same on a terminal and in a pipe: nothing is wrapped and nothing cut in a pipe.

On a terminal the last columns are left out when the line would not fit; the first two always stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from infctl.cli import io
from infctl.view.columns import Column

_GAP = "   "
_GOOD = frozenset({"Ready", "READY", "COMPLETED", "DECODING", "Serving"})
_BAD = frozenset({"NotReady", "NotResponding", "FAILED", "Failed", "Degraded"})


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, headers: bool) -> None:
    right = frozenset(i for i, c in enumerate(columns) if c.right)
    print_cells([c.title for c in columns], rows, headers=headers, right=right)


def print_cells(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, headers: bool, right: Collection[int] = ()
) -> None:
    """Rows of text under their titles; the columns in `right` are numbers."""
    rows = [[io.printable(text).replace("\n", " ").replace("\t", " ") for text in row] for row in rows]
    shown = [titles, *rows] if headers else rows
    if not shown:
        return
    widths = [max(len(row[i]) for row in shown) for i in range(len(titles))]
    keep = _fitting(widths, io.width())
    for n, row in enumerate(shown):
        cells = [row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i]) for i in range(keep)]
        line = _GAP.join(cells).rstrip()
        io.out(io.paint(line, "bold") if headers and n == 0 else _coloured(line, row))


def _fitting(widths: list[int], limit: int) -> int:
    """How many columns fit into `limit` (0: all)."""
    if not limit:
        return len(widths)
    used = 0
    for i, width in enumerate(widths):
        used += width + (len(_GAP) if i else 0)
        if used > limit and i >= 2:
            return i
    return len(widths)


def _coloured(line: str, row: Sequence[str]) -> str:
    word = row[1] if len(row) > 1 else ""
    style = "green" if word in _GOOD else ("red" if word in _BAD else "")
    if not style:
        return line
    at = line.find(word, len(row[0]))
    return line if at < 0 else line[:at] + io.paint(word, style) + line[at + len(word) :]
