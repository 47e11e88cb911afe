"""One launch of a group at a time on this host, whichever part of it we have: when a group's owner changes, the launch
that we owned and the one that we take part in meet here, and what the first one holds is free before the other begins.

Kept true: nobody enters while another launch of the group is there; what an earlier life left counts as there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turns:
    """Of all groups of one host. A launch that is called gone has left."""

    def __init__(self) -> None:
        self._there: dict[str, set[str]] = {}
        self._changed: dict[str, asyncio.Event] = {}

    def before(self, group: str, launch: str) -> str:
        """The launches that have to go first, as words; "" when it may begin."""
        return ", ".join(sorted(self._there.get(group, set()) - {launch}))

    def found(self, group: str, launch: str) -> None:
        """It is there, with or without a turn."""
        self._there.setdefault(group, set()).add(launch)

    async def enter(self, group: str, launch: str, given_up: Callable[[], bool]) -> bool:
        """Wait until no other one is there; False when it was given up meanwhile.

        The load timer ends a launch that waits for too long. Whoever gives up calls `look`.
        """
        while self.before(group, launch) and not given_up():
            await self._changed.setdefault(group, asyncio.Event()).wait()
        if given_up():
            return False
        self.found(group, launch)
        return True

    def leave(self, group: str, launch: str) -> None:
        """Nothing of it is left, or it was never begun."""
        there = self._there.get(group, set())
        there.discard(launch)
        if not there:
            self._there.pop(group, None)
        self.look(group)

    def look(self, group: str) -> None:
        """Everybody who waits looks again."""
        if (changed := self._changed.pop(group, None)) is not None:
            changed.set()
