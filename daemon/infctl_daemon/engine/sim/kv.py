"""KV memory of the simulated engine: prefixes that are kept, and the room that running requests take.

What stays true: a prefix counts as cached only after it was computed here, under the same adapter and cache key; kept
prefixes give way to running requests, the least used first; what runs never needs more than there is.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable

from infctl_daemon.engine.sim.request import Request
from infctl_daemon.engine.sim.tokens import fold


class Memory:
    """`capacity` tokens in all. `origin` is the state of the empty prefix; `keep` turns the prefix cache on."""

    def __init__(self, capacity: int, origin: int, *, keep: bool) -> None:
        self._capacity = capacity
        self._origin = origin
        self._keep = keep
        self._kept: OrderedDict[int, None] = OrderedDict()

    def clear(self) -> None:
        self._kept.clear()

    def start(self, request: Request) -> int:
        """State of the empty prefix; an adapter's name makes another model of it."""
        if request.adapter is None:
            return self._origin
        return fold(self._origin, zlib.crc32(request.adapter.encode()))

    def enter(self, request: Request) -> int:
        """Walks the prompt: sets the state after it, and how much of it was cached; returns what must be computed."""
        if request.out:
            return self._enter_again(request)
        asked = request.asked
        last = len(request.ids) - 1
        if asked is not None and asked.start >= 0:
            last = min(last, asked.start)
        state = self.start(request)
        cached, seen, kept, space = 0, self._keep, self._kept, request.space
        for position, token in enumerate(request.ids):
            state = fold(state, token)
            if seen and position < last and state ^ space in kept:
                cached = position + 1
            else:
                seen = False
        request.state = state
        request.cached = cached
        return len(request.ids) - cached

    def _enter_again(self, request: Request) -> int:
        """A retracted one: its state stands, its prompt and output are computed again."""
        state, cached = self.start(request), 0
        for token in (*request.ids, *request.out):
            state = fold(state, token)
            if not self._keep or state ^ request.space not in self._kept:
                break
            cached += 1
        return request.held_tokens - cached

    def remember(self, request: Request) -> None:
        """Keeps what was computed for a request so far."""
        if not self._keep:
            return
        state, kept, space = self.start(request), self._kept, request.space
        for token in (*request.ids, *request.out):
            state = fold(state, token)
            kept[state ^ space] = None
            kept.move_to_end(state ^ space)

    def used(self, running: Iterable[Request]) -> int:
        return sum(request.held_tokens for request in running)

    def fits(self, tokens: int) -> bool:
        """Whether running requests may hold so many tokens; kept prefixes give way."""
        return tokens <= self._capacity

    def trim(self, used: int) -> None:
        """Drops prefixes until they and `used` tokens fit."""
        while self._kept and len(self._kept) + used > self._capacity:
            self._kept.popitem(last=False)


def to_retract(running: list[Request], more: int, memory: Memory) -> list[Request]:
    """Who must leave the batch before `more` tokens of each are said: the shortest outputs first, never the last."""
    order = sorted(running, key=lambda r: (len(r.out), -len(r.ids)), reverse=True)
    gone: list[Request] = []
    need = memory.used(order) + more * len(order)
    while len(order) > 1 and not memory.fits(need):
        request = order.pop()
        need -= request.held_tokens + more
        gone.append(request)
    return gone
