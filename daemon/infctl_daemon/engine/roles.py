"""Which processes of an engine serve: the main one, and those that name themselves (`sglang::…`, `sim::…`).

The death of any of these ends the launch (R2). Others (resource tracker, compilers, version probes) come and go while
an engine loads; their end means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

_PREFIXES = ("sglang::", "sim::")
_RANKS = ("sglang::scheduler", "sim::scheduler")


def serves(title: str) -> bool:
    return title.startswith(_PREFIXES)


def ranks(titles: Iterable[str]) -> int:
    """How many of these are ranks (schedulers)."""
    return sum(t.startswith(_RANKS) for t in titles)
