"""A description as data: what is said of one object, in the order an operator reads it. How it looks is the CLI's."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Tone(StrEnum):
    """How good the news is; never the only way it is told."""

    GOOD = "good"
    PLAIN = "plain"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows about things that belong to the object. `right` are the columns that hold numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Line:
    """One event: local time, age, type, and what was said."""

    at: str
    age: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """What to look at or do next. `command` can be copied to a shell; "" where there is none."""

    text: str
    command: str = ""


@dataclass(slots=True)
class Page:
    """`state` is the one word, `why` the sentence after it; `earlier` counts the events that are not
    shown; `zone` names the time zone of those that are.
    """

    address: str
    state: str
    tone: Tone
    why: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    events: list[Line] = field(default_factory=list)
    earlier: int = 0
    zone: str = ""
    next: list[Step] = field(default_factory=list)

    def fact(self, label: str, *parts: str) -> None:
        """One fact; parts that are empty are left out, a fact without parts is not known."""
        self.facts.append((label, ", ".join(p for p in parts if p) or "-"))

    def table(self, title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, right: str = "") -> None:
        """A table, where there are rows; `right` names the columns of numbers."""
        if rows:
            numbers = frozenset(i for i, head in enumerate(heads) if head in right.split())
            self.tables.append(Table(title, heads, tuple(rows), numbers))

    def step(self, text: str, command: str = "", *words: str) -> None:
        """One step; `words` are data and go quoted behind the command, which people copy into a shell."""
        self.next.append(Step(text, " ".join([command, *map(shlex.quote, words)])))
