"""Aligned columns without boxes, the same on a terminal and in a pipe: nothing is wrapped and nothing cut in a pipe.

On a terminal the last columns are left out when the line would not fit; the first two always stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from infctl.cli import io
from infctl.view.columns import Column

_GAP = "   "
_GOOD = frozenset({"Ready", "READY", "COMPLETED", "DECODING", "Serving"})
_BAD = frozenset({"NotReady", "NotResponding", "FAILED", "Failed", "Degraded"})


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, headers: bool) -> None:
    titles = [c.title for c in columns]
    shown = [titles, *rows] if headers else list(rows)
    if not shown:
        return
    widths = [max(len(row[i]) for row in shown) for i in range(len(columns))]
    keep = _fitting(widths, io.width())
    for n, row in enumerate(shown):
        cells = [_cell(row[i], columns[i], widths[i], last=i == keep - 1) for i in range(keep)]
        line = _GAP.join(cells).rstrip()
        if headers and n == 0:
            io.out(io.paint(line, "bold"))
        else:
            io.out(_coloured(line, row))


def _cell(text: str, column: Column, width: int, *, last: bool) -> str:
    clean = io.printable(text).replace("\n", " ").replace("\t", " ")
    if column.right:
        return clean.rjust(width)
    return clean if last else clean.ljust(width)


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
