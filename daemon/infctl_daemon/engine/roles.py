"""Which processes of an engine serve: the main one, and those that name themselves (`sglang::…`, `sim::…`).

The death of any of these ends the launch (R2). Others (resource tracker, compilers, version probes) come and go while
an engine loads; their end means nothing. A rank's own children (torch starts compilers) wear the rank's name between
fork and exec: what was started by a rank is no rank.
"""

from __future__ import annotations

from collections.abc import Iterable

_PREFIXES = ("sglang::", "sim::")
_RANKS = ("sglang::scheduler", "sim::scheduler")


def serves(title: str, parent: str = "") -> bool:
    """Does the end of a process of this title, started by one of the title `parent`, end the launch?"""
    return title.startswith(_PREFIXES) and not parent.startswith(_RANKS)


def ranks(titles: Iterable[str]) -> int:
    """How many of these are ranks (schedulers)."""
    return sum(t.startswith(_RANKS) for t in titles)
