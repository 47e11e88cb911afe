"""Changes to the text of the contexts file that leave everything else as the operator wrote it, comments included.

Text in, text out. The caller reads the result again and compares: a layout that this does not understand is its cue
to write the file anew.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence

_HEADER = re.compile(r"\s*\[(?!\[)[^\]]*\]\s*(#.*)?")
_CURRENT = re.compile(r"\s*current\s*=")


def set_current(text: str, name: str) -> str:
    """`current = name`; an empty name takes the line away."""
    lines = text.splitlines()
    end = _first_header(lines)
    kept = [line for line in lines[:end] if not _CURRENT.match(line)]
    at = next((i for i, line in enumerate(lines[:end]) if _CURRENT.match(line)), len(_comments(kept)))
    line = [f"current = {quote(name)}"] if name else []
    return _joined([*kept[:at], *line, *kept[at:], *lines[end:]])


def set_context(text: str, name: str, words: Mapping[str, str | Sequence[str]]) -> str:
    """The table of one context, replaced where it stands or added at the end."""
    table = [f"[contexts.{key_of(name)}]", *(f"{key} = {value_of(word)}" for key, word in words.items())]
    lines = text.splitlines()
    found = _table(lines, name)
    if found is None:
        while lines and not lines[-1].strip():
            lines.pop()
        return _joined([*lines, *([""] if lines else []), *table])
    start, end = found
    return _joined([*lines[:start], *table, *lines[end:]])


def drop_context(text: str, name: str) -> str:
    """The text without the table of one context."""
    lines = text.splitlines()
    found = _table(lines, name)
    if found is None:
        return text
    start, end = found
    rest = lines[end:]
    while start and rest and not lines[start - 1].strip() and not rest[0].strip():
        rest.pop(0)
    return _joined([*lines[:start], *rest])


def key_of(name: str) -> str:
    """A name as a key: bare where TOML allows it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quote(name)


def value_of(word: str | Sequence[str]) -> str:
    """A text, or a list of texts."""
    return quote(word) if isinstance(word, str) else f"[{', '.join(quote(w) for w in word)}]"


def quote(text: str) -> str:
    """A TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else _escape(c) for c in escaped) + '"'


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"


def _first_header(lines: list[str]) -> int:
    return next((i for i, line in enumerate(lines) if _HEADER.fullmatch(line)), len(lines))


def _comments(lines: list[str]) -> list[str]:
    """The comment that heads the file."""
    count = next((i for i, line in enumerate(lines) if not line.lstrip().startswith("#")), len(lines))
    return lines[:count]


def _table(lines: list[str], name: str) -> tuple[int, int] | None:
    """First line and end of the table of one context; blank lines and comments before the next header are not in it."""
    for start, line in enumerate(lines):
        if _HEADER.fullmatch(line) and _names(line) == name:
            end = start + 1 + _first_header(lines[start + 1 :])
            while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
                end -= 1
            return start, end
    return None


def _names(header: str) -> str | None:
    """The context whose table a header opens."""
    try:
        data = tomllib.loads(header)
    except tomllib.TOMLDecodeError:
        return None
    contexts = data.get("contexts")
    return next(iter(contexts), None) if isinstance(contexts, dict) and len(data) == 1 else None


def _joined(lines: list[str]) -> str:
    return "\n".join(lines).strip("\n") + "\n" if lines else ""
