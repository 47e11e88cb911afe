"""Log probabilities of one stream's committed tokens, kept across attempts: a replacement tells only of its own tokens.

The engine's lists are cumulative for each attempt: `hear` takes what a frame adds, `commit` keeps what the request
machine delivers of it. What the first attempt said of the prompt stays; later ones are not asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# the engine's lists with one entry for each output token
_OUTPUT = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
_LENGTH = "output_token_logprobs_length"
# what asks for log probabilities of the prompt; a replay's input holds answer tokens, too
ABOUT_THE_PROMPT = "logprob_start_len"


class Logprobs:
    """`lists` hold one entry for each committed token; an entry of the first is `[logprob, token id, text]`.

    `offsets` are the characters of the answer's text before each token; `prompt` what was said of the prompt.
    """

    __slots__ = ("_fresh", "_ids", "lists", "offsets", "prompt")

    def __init__(self) -> None:
        self.lists: dict[str, list[Any]] = {}
        self.offsets: list[int] = []
        self.prompt: dict[str, Any] = {}
        self._fresh: dict[str, list[Any]] = {}
        self._ids: Sequence[int] = ()

    def hear(self, meta: dict[str, Any], start: int, ids: Sequence[int]) -> None:
        """`meta` of a frame whose `ids` are the attempt's from `start` on."""
        if not self.lists and not self.prompt:
            self.prompt = {name: value for name, value in meta.items() if name.startswith("input_")}
        self._ids = ids
        self._fresh = {}
        for name in _OUTPUT:
            given = meta.get(name)
            if isinstance(given, list):
                self._fresh[name] = given[start : start + len(ids)]

    def commit(self, skip: int, count: int) -> None:
        """Keep `count` entries of the frame heard last, from `skip` on."""
        have = len(self.offsets)
        for name in _OUTPUT:
            fresh = self._fresh.get(name)
            if fresh is None and name != _OUTPUT[0]:
                continue
            known = self.lists.setdefault(name, [])
            known += [None] * (have - len(known))
            taken = (fresh or [])[skip : skip + count]
            if name == _OUTPUT[0]:
                # an engine that leaves one out must not shift the others
                taken += [[None, token, None] for token in self._ids[skip + len(taken) : skip + count]]
            known += taken

    def at(self, number: int) -> tuple[float | None, list[Any]]:
        """Log probability of an output token and the engine's list of alternatives (empty without any)."""
        return _value(self.lists.get(_OUTPUT[0], []), number), _alternatives(self.lists.get(_OUTPUT[1], []), number)

    def at_prompt(self, number: int) -> tuple[float | None, list[Any]]:
        """As `at`, of a prompt token; the first one has none."""
        value = _value(self.prompt.get("input_token_logprobs") or [], number)
        return value, _alternatives(self.prompt.get("input_top_logprobs") or [], number)

    def into(self, meta: dict[str, Any], count: int) -> dict[str, Any]:
        """The engine's `meta_info` with the lists of the whole stream, through its first `count` tokens."""
        merged = {**meta, **self.prompt}
        for name, known in self.lists.items():
            merged[name] = known[:count]
        if _LENGTH in merged:
            merged[_LENGTH] = count
        return merged

    def mean(self) -> float:
        """Mean log probability of the answer's tokens, by which `best_of` chooses. Minus infinity without any."""
        known = [v for n in range(len(self.lists.get(_OUTPUT[0], []))) if (v := self.at(n)[0]) is not None]
        return sum(known) / len(known) if known else float("-inf")


def _value(entries: list[Any], number: int) -> float | None:
    entry = entries[number] if number < len(entries) else None
    value = entry[0] if isinstance(entry, list) and entry else None
    return float(value) if isinstance(value, int | float) else None


def _alternatives(entries: list[Any], number: int) -> list[Any]:
    entry = entries[number] if number < len(entries) else None
    if not isinstance(entry, list):
        return []
    return [one for one in entry if isinstance(one, list) and len(one) >= 2 and isinstance(one[1], int)]
