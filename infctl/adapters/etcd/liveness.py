"""Whether a silent stream still has somebody at its other end: asked after a while, given up after a while more.

Keeps true: one timer, set anew only when it fires, so that an event costs nothing here; the time in which nobody reads
the stream is not held against the other end. What others found out about the member shortens the wait: `doubt`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_BEAT_S = 0.5  # idle streams ask together: for a client at rest each time it wakes costs more than a question
DOUBT_S = 1.0  # for the answer of a member that somebody else has just given up


class Liveness:
    """Calls `ask` when nothing was heard for long enough, `end(why)` once when that is not answered."""

    def __init__(self, patience: float, *, ask: Callable[[], None], end: Callable[[float], None]) -> None:
        """Creating the stream is the first question."""
        self._loop = asyncio.get_running_loop()
        self.patience = patience
        self._ask = ask
        self._end = end
        self._asked = True
        self._reading = True
        self._due = self._loop.time() + patience
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(self._due, self._fire)

    def heard(self) -> None:
        """Something came, and its reader is busy with it until `waiting`."""
        self._asked = self._reading = False

    def waiting(self, quiet: float) -> None:
        """Reading again; after `quiet` seconds of silence it asks."""
        self._reading = True
        due = self._loop.time() + quiet
        self._set(due - due % _BEAT_S if quiet > 2 * _BEAT_S else due)

    def doubt(self) -> None:
        """Somebody had no answer from this member: ask now, and do not wait long."""
        if self._timer is None or not self._reading:
            return  # what comes next is asked for soon enough
        if not self._asked:
            self._asked = True
            self._ask()
            self._set(self._loop.time() + min(self.patience, DOUBT_S))
        elif (soon := self._loop.time() + DOUBT_S) < self._due:
            self._set(soon)

    def stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _set(self, due: float) -> None:
        self._due = due
        if self._timer is not None and due < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        now = self._loop.time()
        if not self._reading:
            self._due = now + self.patience
        elif now >= self._due:
            if self._asked:
                self._timer = None
                self._end(self.patience)
                return
            self._asked = True
            self._ask()
            self._due = now + self.patience
        self._timer = self._loop.call_at(self._due, self._fire)
