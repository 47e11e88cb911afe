"""Aligned columns without boxes, the same on a terminal and in a pipe: nothing is wrapped and nothing cut in a pipe.

On a terminal the last columns are left out when the line would not fit; the first two always stay. A column of
sentences at the end is broken between words instead.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from infctl.cli import io
from infctl.cli.output.hang import goes_below, hang_beside
from infctl.view.columns import Column

_GAP = "   "
_GOOD = frozenset({"Ready", "READY", "COMPLETED", "DECODING", "Serving"})
_BAD = frozenset({"NotReady", "NotResponding", "FAILED", "Failed", "Degraded"})


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, headers: bool) -> None:
    right = frozenset(i for i, c in enumerate(columns) if c.right)
    print_cells([c.title for c in columns], rows, headers=headers, right=right, flex=bool(columns and columns[-1].flex))


def print_cells(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    headers: bool,
    right: Collection[int] = (),
    flex: bool = False,
) -> None:
    """Rows of text under their titles; the columns in `right` are numbers, the last one is sentences if `flex`."""
    rows = [[io.printable(text).replace("\n", " ").replace("\t", " ") for text in row] for row in rows]
    shown = [titles, *rows] if headers else rows
    if not shown:
        return
    width = io.width()
    widths = [max(len(row[i]) for row in shown) for i in range(len(titles))]
    fixed = widths[:-1] if flex else widths
    keep = _fitting(fixed, width)
    sentences = flex and keep == len(fixed)
    below = sentences and goes_below(sum(fixed) + len(_GAP) * keep, [row[-1] for row in rows], width)
    for n, row in enumerate(shown):
        title = headers and n == 0
        cells = [row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i]) for i in range(keep)]
        lines = [_GAP.join(cells).rstrip()]
        if sentences:
            lines = hang_beside(_GAP.join([*cells, ""]), row[-1], width, below=below and not title)
        for line in lines:
            io.out(io.paint(line, "bold") if title else _coloured(line, row))


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
