"""A description as text. On a terminal lines are broken between words to its width; in a pipe nothing is."""

from __future__ import annotations

from infctl.cli import io
from infctl.cli.output.hang import goes_below, hang, hang_beside
from infctl.view.describe.page import Page, Table, Tone

_STYLE = {Tone.GOOD: "green", Tone.PLAIN: "bold", Tone.WARN: "yellow", Tone.BAD: "red"}
_GAP = "   "


def print_page(page: Page) -> None:
    width = io.width()
    address, state = _flat(page.address), _flat(page.state)
    head = f"{address}  {state}"
    lines = hang(head, f": {_flat(page.why)}" if page.why else "", "  ", width)
    first = lines[0].replace(head, f"{io.paint(address, 'bold')}  {io.paint(state, _STYLE[page.tone])}", 1)
    for line in [first, *lines[1:]]:
        io.out(line)
    if page.facts:
        facts = [(_flat(label), _flat(text)) for label, text in page.facts]
        longest = max(len(label) for label, _ in facts)
        for label, text in facts:
            for line in hang(f"  {label.ljust(longest)}  ", text, " " * (longest + 4), width):
                io.out(line)
    for table in page.tables:
        _print_table(table, width)
    _print_events(page, width)
    if page.next or page.tone is Tone.GOOD:
        _title("Next")
        if not page.next:
            io.out("  nothing needs doing")
        for step in page.next:
            for line in hang("  - ", _flat(step.text), "    ", width):
                io.out(line)
            if step.command:
                io.out(f"    $ {io.paint(_flat(step.command), 'cyan')}")


def _print_events(page: Page, width: int) -> None:
    if not page.events:
        _title("Events")
        io.out("  none in the last minutes")
        return
    earlier = f"; {page.earlier} earlier ones are not shown" if page.earlier else ""
    _title(f"Events, oldest first ({page.zone}{earlier})" if page.zone else f"Events, oldest first{earlier}")
    rows = [(_flat(e.at), e.age, _flat(e.kind), _flat(e.text)) for e in page.events]
    clock, age, kind = (max(len(row[i]) for row in rows) for i in range(3))
    below = goes_below(clock + age + kind + 8, [row[3] for row in rows], width)
    for row in rows:
        head = f"  {row[0].ljust(clock)}  {row[1].rjust(age)}  {row[2].ljust(kind)}  "
        for line in hang_beside(head, row[3], width, below=below):
            io.out(line)


def _print_table(table: Table, width: int) -> None:
    _title(table.title)
    rows = [table.heads, *(tuple(_flat(cell) for cell in row) for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.heads))]
    last = len(table.heads) - 1
    below = goes_below(sum(widths[:last]) + len(_GAP) * last + 2, [row[last] for row in rows], width)
    for n, row in enumerate(rows):
        cells = [c.rjust(w) if i in table.right else c.ljust(w)
                 for i, (c, w) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
        head = "  " + "".join(f"{c}{_GAP}" for c in cells[:last])
        for line in hang_beside(head, cells[last].rstrip(), width, below=below and n > 0):
            io.out(io.paint(line, "dim") if n == 0 else line)


def _title(text: str) -> None:
    io.out()
    io.out(io.paint(text, "bold"))


def _flat(text: str) -> str:
    """One line without control characters: much of what is shown was written by somebody else."""
    return io.printable(text).replace("\n", " ").replace("\t", " ")
