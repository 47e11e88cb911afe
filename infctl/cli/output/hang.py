"""Lines that are too long for a terminal, broken between words with the rest hung below; a pipe gets them whole."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

# less room than this beside what stands before, and the text goes below it
ROOM = 32
BELOW = "      "


def hang(head: str, text: str, indent: str, width: int) -> list[str]:
    """`head` and `text` on one line, or broken between words to `width` (0: never), the rest after `indent`."""
    flat = " ".join(text.split("\n"))
    if not width or len(head) + len(flat) <= width:
        return [(head + flat).rstrip()]
    wrapped = textwrap.wrap(
        flat,
        width,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.rstrip() for line in wrapped] or [head.rstrip()]


def goes_below(head: int, texts: Iterable[str], width: int) -> bool:
    """Whether the texts of a column that begins after `head` characters get a line of their own: all or none."""
    return bool(width) and width - head < ROOM and head + max(map(len, texts), default=0) > width


def hang_beside(head: str, text: str, width: int, *, below: bool) -> list[str]:
    """The text in a column of its own beside `head`, or on lines below it."""
    if below and text:
        return [head.rstrip(), *hang(BELOW, text, BELOW, width)]
    return hang(head, text, " " * len(head), width)
