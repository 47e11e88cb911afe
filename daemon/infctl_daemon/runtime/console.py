"""What a daemon's program says to a person at a terminal: answers on stdout, errors on stderr with reason and hint."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from infctl.domain.errors import InfctlError


def say(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def warn(text: str) -> None:
    sys.stderr.write(text + "\n")


def complain(error: InfctlError) -> int:
    """Write the error and return its exit code."""
    warn(f"error: {error.message}\n  reason: {error.reason}" + (f"\n  hint: {error.hint}" if error.hint else ""))
    return error.exit_code


def columns(rows: Iterable[Sequence[str]]) -> str:
    """Rows of words under each other, two blanks between the widest and the next."""
    table = [list(row) for row in rows]
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))] if table else []
    lines = ("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in table)
    return "\n".join(line.rstrip() for line in lines)
