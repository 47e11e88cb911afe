"""One request inside rank 0: its prefix, what it has said, and when it ends.

What stays true: the order of endings is SGLang's (abort, stop string, stop token, length), and no token is shown while
the text so far could be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infctl_daemon.engine.sim.odds import Asked, Odds, Taste
from infctl_daemon.engine.sim.tokens import Vocabulary, fold

Finish = dict[str, Any]
_NO_ROOM = "Out of memory even after retracting all other requests in the decode batch. Aborting the last request."
Decode = Callable[[Sequence[int]], str]


class Request:
    """A request that waits or runs. `params` is what `intake.Generate.params` made."""

    __slots__ = (
        "_banned", "_decode", "_eos_every", "_hold", "_ignore_eos", "_longest", "_max_new", "_min_new", "_missing",
        "_salt", "_stop_ids", "_stops", "_taste", "_vocab", "aborted", "adapter", "asked", "cached", "every", "ids",
        "input_logs", "opened", "out", "out_of_memory", "output_logs", "plain", "retractions", "rid", "sent", "space",
        "state", "trim",
    )  # fmt: skip

    def __init__(
        self,
        rid: str,
        ids: list[int],
        params: Mapping[str, Any],
        vocab: Vocabulary,
        decode: Decode,
        eos_every: int,
    ) -> None:
        self.rid = rid
        self.ids = ids
        self.out: list[int] = []
        self.sent = 0
        self.cached = 0
        self.state = 0
        self.aborted = False
        self.out_of_memory = False
        self.retractions = 0
        self.opened = False
        self.every: int = params["every"]
        self.adapter: str | None = params["adapter"]
        self.space: int = params["space"]
        self.trim = (params["skip_special"], params["no_stop_trim"])
        self._vocab = vocab
        self._decode = decode
        self._eos_every = eos_every
        self._missing = vocab.missing(ids)
        self._max_new: int = params["max_new"]
        self._min_new: int = params["min_new"]
        self._ignore_eos: bool = params["ignore_eos"]
        self._stop_ids = frozenset() if self._ignore_eos else frozenset(params["stop_ids"]) | vocab.eos
        self._banned = frozenset(params["stop_ids"]) | vocab.eos if self._min_new else frozenset()
        self._stops: list[str] = params["stops"]
        self._longest = max((len(s) for s in self._stops), default=0)
        self._salt: int = params["salt"]
        self._hold = False
        self._taste = Taste(*params["taste"])
        self.asked: Asked | None = Asked(*params["logs"]) if params["logs"] is not None else None
        self.plain = (
            not (eos_every or self._min_new or self._stops or self._stop_ids or self.asked or self._max_new == 0)
            and self._taste.plain
        )
        self.input_logs: list[Any] = []
        self.output_logs: list[Any] = []

    @property
    def held_tokens(self) -> int:
        return len(self.ids) + len(self.out)

    @property
    def left(self) -> int:
        """How many tokens it may still say."""
        return self._max_new - len(self.out)

    def retract(self) -> None:
        self.retractions += 1
        self._taste.counts.clear()

    def step_plain(self) -> Finish | None:
        """`step` for a request that only its length can end."""
        token, self.state, self._missing = self._vocab.follow(self.state, self._salt, self._missing)
        self.out.append(token)
        if self.aborted or self.out_of_memory or len(self.out) >= self._max_new:
            return self._finish(token)
        return None

    def step(self, wrong: bool) -> Finish | None:
        """Says one more token; the reason when it was the last one."""
        if self._max_new == 0:
            return {"type": "length", "length": 0}
        banned = self._banned if len(self.out) < self._min_new else ()
        salt = self._salt ^ (0x5EED if wrong else 0)
        first = self._forced(self.state) if not banned else None
        taste = self._taste
        if first is not None and taste.plain:
            token = first
        elif taste.plain:
            token = self._vocab.choose(self.state, salt, self._missing, banned)
        else:
            odds = Odds(self._vocab, self.state, self._missing, salt=salt, banned=banned, first=first, taste=taste)
            token = odds.best()
        if self.asked is not None:
            odds = Odds(self._vocab, self.state, self._missing, banned=banned, first=first, taste=taste)
            self.output_logs.append(self.asked.entry(odds, token))
        if taste.penalises:
            taste.counts[token] = taste.counts.get(token, 0) + 1
        self.out.append(token)
        self._missing = self._vocab.after(token, self._missing)
        self.state = fold(self.state, token)
        return self._finish(token)

    def _forced(self, state: int) -> int | None:
        """The end-of-text token where this state ends a text."""
        if self._eos_every and not self._ignore_eos and state % self._eos_every == 0:
            return min(self._vocab.eos, default=0)
        return None

    def log_input(self, start: int) -> None:
        """Log probabilities of the prompt from `asked.start` on, given the state of the empty prefix."""
        if self.asked is None or self.asked.start < 0:
            return
        asked = self.asked
        self.input_logs = []
        state, missing = start, 0
        for position, token in enumerate(self.ids):
            if position == asked.start:
                self.input_logs.append((None, token, None, None))
            elif position > asked.start:
                odds = Odds(self._vocab, state, missing, first=self._forced(state))
                self.input_logs.append(asked.entry(odds, token))
            missing = self._vocab.after(token, missing)
            state = fold(state, token)

    def _finish(self, token: int) -> Finish | None:
        if self.aborted:
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        if self.out_of_memory:
            return {"type": "abort", "message": _NO_ROOM, "status_code": 500, "err_type": "InternalServerError"}
        if self._stops and len(self.out) >= self._min_new:
            tail = self._decode(self.out[-(self._longest + 4) :])
            for stop in self._stops:
                if stop in tail:
                    return {"type": "stop", "matched": stop}
            self._hold = any(
                tail.endswith(stop[:n]) for stop in self._stops for n in range(1, min(len(stop), len(tail)) + 1)
            )
        if token in self._stop_ids and len(self.out) >= self._min_new:
            return {"type": "stop", "matched": token}
        if len(self.out) >= self._max_new:
            return {"type": "length", "length": self._max_new}
        return None

    def due(self) -> bool:
        """Whether the tokens said so far are shown after this step."""
        return not self._hold and (len(self.out) == 1 or len(self.out) - self.sent >= self.every)
