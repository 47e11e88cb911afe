"""How likely the simulated model finds each next token: logits, penalties, biases, log probabilities.

What stays true: all of it is a function of the prefix state, and of the output so far where penalties are asked for, so
a replay of prompt + k tokens gives the same numbers. Without penalties and biases the first of the ranking is what
`Vocabulary.choose` says. Penalties see output tokens only, as in SGLang: a replay that moves tokens into the prompt
loses them. The order is SGLang's: added penalties, the repetition factor, then the bias.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from infctl_daemon.engine.sim.tokens import Vocabulary, mix

_LIKELY = 8
_FLOOR = -6.0
_REST = 0.05
_UNIT = 1.0 / (1 << 64)

Entry = tuple[float, int]


@dataclass
class Taste:
    """What one request does to the logits. `counts` holds its output tokens, kept up by the caller."""

    frequency: float = 0.0
    presence: float = 0.0
    repetition: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    @property
    def penalises(self) -> bool:
        return self.frequency != 0 or self.presence != 0 or self.repetition != 1

    @property
    def plain(self) -> bool:
        return not self.bias and not self.penalises

    @property
    def rewards(self) -> bool:
        """Whether a token may rise because it was said before."""
        return self.frequency < 0 or self.presence < 0 or self.repetition < 1

    def adjust(self, token: int, logit: float) -> float:
        count = self.counts.get(token, 0)
        if count:
            logit -= self.frequency * count + self.presence
            logit = logit / self.repetition if logit > 0 else logit * self.repetition
        return logit + self.bias.get(token, 0.0)


PLAIN = Taste()


def _unlikely(state: int, token: int) -> float:
    return _FLOOR - 6.0 * mix(state ^ (token * 0x2545F4914F6CDD1D + 1 & 0xFFFFFFFFFFFFFFFF)) * _UNIT


class Odds:
    """The ranking at one place. `first` is a token that comes before all others whatever the draw says."""

    def __init__(
        self,
        vocab: Vocabulary,
        state: int,
        missing: int,
        *,
        salt: int = 0,
        banned: Container[int] = (),
        first: int | None = None,
        taste: Taste = PLAIN,
    ) -> None:
        self._vocab = vocab
        self._state = state
        self._taste = taste
        raw: dict[int, float] = {}
        logit = 4.0 + mix(state + 1 & 0xFFFFFFFFFFFFFFFF) * _UNIT
        for token in vocab.draws(state, salt, missing, banned, first, _LIKELY):
            raw[token] = logit
            logit -= 0.1 + 0.6 * mix(state ^ len(raw)) * _UNIT
        self._raw = raw
        pool = set(raw) | set(taste.bias)
        if taste.rewards:
            pool |= taste.counts.keys()
        self._pool = {token: self.logit(token) for token in pool if token not in banned}
        self._log_sum: float | None = None

    def logit(self, token: int) -> float:
        raw = self._raw.get(token)
        return self._taste.adjust(token, _unlikely(self._state, token) if raw is None else raw)

    def best(self) -> int:
        """The token with the highest logit."""
        token = max(self._pool, key=self._pool.__getitem__)
        if self._pool[token] > _FLOOR:
            return token
        return self._whole(1)[0][1]

    def log_probability(self, token: int) -> float:
        if self._log_sum is None:
            self._log_sum = math.log(math.fsum(map(math.exp, self._pool.values())) + _REST)
        value = min(0.0, self.logit(token) - self._log_sum)
        return round(value, 6) or 0.0

    def top(self, count: int) -> list[Entry]:
        """The `count` most likely tokens, most likely first."""
        if self._taste.plain and count <= len(self._raw):
            return [(self.log_probability(t), t) for t in list(self._raw)[:count]]
        return self._whole(count)

    def of(self, tokens: Iterable[int]) -> list[Entry]:
        return [(self.log_probability(t), t) for t in tokens]

    def _whole(self, count: int) -> list[Entry]:
        ranked = sorted(range(self._vocab.size), key=self.logit, reverse=True)[:count]
        return [(self.log_probability(t), t) for t in ranked]


@dataclass(frozen=True)
class Asked:
    """Which log probabilities a request wants: from `start` of the prompt on (-1: none), `top` a place, and `ids`."""

    start: int = -1
    top: int = 0
    ids: Sequence[int] = ()

    def entry(self, odds: Odds, token: int) -> tuple[float | None, int, list[Entry] | None, list[Entry] | None]:
        """One place: value and id of what was said, the top of the ranking, the ids asked for."""
        return (
            odds.log_probability(token),
            token,
            odds.top(self.top) if self.top > 0 else None,
            odds.of(self.ids) if self.ids else None,
        )
