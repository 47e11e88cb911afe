"""What the simulated model says next: a function of the whole prefix, the seed and the model revision.

What stays true: prompt + k output ids as a new prompt gives exactly the tokens that would have followed (the state is
a rolling hash of the prefix, so a step costs the same at any length); the text is always valid UTF-8 when the prompt
is, and now and then holds a character of two to four bytes, one token a byte, so that cuts inside a character occur.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from infctl_daemon.engine.sim.model import BYTE_CHARS

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_PLANE, _PICTURES = 0xF0, 0x9F


def mix(x: int) -> int:
    """Scrambles 64 bits (the finaliser of splitmix64)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def fold(state: int, token: int) -> int:
    """State of a prefix with one more token."""
    return mix(state ^ ((token + _GOLDEN) & _MASK))


def origin(seed: int, revision: str) -> int:
    """State of the empty prefix."""
    state = mix(seed & _MASK)
    for byte in revision.encode():
        state = fold(state, byte)
    return state


class Vocabulary:
    """Which token ids the model uses: words, other printable entries, and single bytes of longer characters."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        special = {t["id"] for t in tokenizer.get("added_tokens", [])}
        to_byte = {char: b for b, char in enumerate(BYTE_CHARS)}
        left = {m.split(" ")[0] if isinstance(m, str) else m[0] for m in tokenizer["model"].get("merges", [])}
        words: list[int] = []
        other: list[int] = []
        self._bytes: dict[int, bytes] = {}
        single: dict[int, int] = {}
        for text, token in tokenizer["model"]["vocab"].items():
            if token in special or any(char not in to_byte for char in text):
                continue
            raw = bytes(to_byte[char] for char in text)
            self._bytes[token] = raw
            if len(raw) == 1:
                single[raw[0]] = token
            if raw.isascii() and raw.decode().isprintable():
                whole = len(raw) > 2 and raw[:1] == b" " and raw[1:].isalpha() and text not in left
                (words if whole else other).append(token)
        self._byte_level = (tokenizer.get("decoder") or {}).get("type") == "ByteLevel"
        self.size = int(config.get("vocab_size") or len(self._bytes) + len(special))
        self.context = int(config.get("max_position_embeddings") or 4096)
        eos = config.get("eos_token_id")
        self.eos: frozenset[int] = frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])
        self.architectures: list[str] = config.get("architectures") or []
        self.model_type: str = config.get("model_type") or "sim"
        plain = sorted(words) or sorted(other) or [t for t in range(self.size) if t not in special]
        self.words: Sequence[int] = plain
        self.other: Sequence[int] = sorted(other) or plain
        self.tails: Sequence[int] = [single[b] for b in range(0x80, 0xC0) if b in single]
        leads = [0xC3, *range(0xE4, 0xEA), _PLANE, _PLANE, _PLANE]
        have = len(self.tails) == 64 and all(b in single for b in leads)
        self.leads: Sequence[int] = [single[b] for b in leads] if have else []
        # after the lead of a character of four bytes not every byte is legal; most of what follows here is emoji
        seconds = [*range(0x90, 0xC0), *[_PICTURES] * 208]
        self.seconds: Sequence[int] = [single[b] for b in seconds] if have else []

    def missing(self, ids: Sequence[int]) -> int:
        """How many bytes the last character of `ids` still lacks."""
        tail = b"".join(self._bytes.get(t, b"\0") for t in ids[-4:])
        for back in range(1, min(4, len(tail)) + 1):
            byte = tail[-back]
            if byte & 0xC0 == 0x80:
                continue
            need = 2 if byte >> 5 == 6 else 3 if byte >> 4 == 14 else 4 if byte >> 3 == 30 else 1
            return max(0, need - back)
        return 0

    def _draw(self, x: int, missing: int) -> int:
        if missing and self.tails:
            return self.seconds[x & 255] if missing == 3 and self.seconds else self.tails[x & 63]
        kind = x & 127
        if kind < 2 and self.leads:
            return self.leads[(x >> 8) % len(self.leads)]
        if kind < 12:
            return self.other[(x >> 8) % len(self.other)]
        return self.words[(x >> 8) % len(self.words)]

    def choose(self, state: int, salt: int, missing: int, banned: Container[int] = ()) -> int:
        """The token that follows a prefix; `missing` as of `missing()`, `banned` ids are passed over."""
        x = mix(state ^ salt)
        for _ in range(64):
            token = self._draw(x, missing)
            if token not in banned:
                return token
            x = mix(x + 1)
        return token

    def follow(self, state: int, salt: int, missing: int) -> tuple[int, int, int]:
        """`choose`, `fold` and `after` in one, for the plain case: the token, the state and what is missing after it.

        Spelled out because a frame's price is mostly this: the same in calls costs twice as much.
        """
        x = state ^ salt
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
        if missing and self.tails:
            token = self.seconds[x & 255] if missing == 3 and self.seconds else self.tails[x & 63]
            missing -= 1
        else:
            kind = x & 127
            missing = 0
            if kind >= 12:
                token = self.words[(x >> 8) % len(self.words)]
            elif kind >= 2 or not self.leads:
                token = self.other[(x >> 8) % len(self.other)]
            else:
                token = self.leads[(x >> 8) % len(self.leads)]
                missing = self.missing((token,))
        x = state ^ ((token + _GOLDEN) & _MASK)
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        return token, x ^ (x >> 31), missing

    def spoken(self) -> dict[int, str]:
        """Text of the tokens that are plain ASCII, where text of tokens is simply joined (byte-level decoding)."""
        return {t: raw.decode() for t, raw in self._bytes.items() if self._byte_level and raw.isascii()}

    def draws(
        self, state: int, salt: int, missing: int, banned: Container[int], first: int | None, count: int
    ) -> list[int]:
        """Up to `count` different tokens in the order of preference; without `first` it begins as `choose` does."""
        found: dict[int, None] = {} if first is None else {first: None}
        x = mix(state ^ salt)
        for _ in range(64 + count):
            token = self._draw(x, missing)
            if token not in banned:
                found[token] = None
                if len(found) == count:
                    break
            x = mix(x + 1)
        return list(found)

    def after(self, token: int, missing: int) -> int:
        """`missing` once `token` has been appended."""
        raw = self._bytes.get(token, b"\0")
        if len(raw) != 1 or raw[0] < 0x80:
            return self.missing([token])
        if raw[0] < 0xC0:
            return max(0, missing - 1)
        return self.missing([token])


def states(start: int, ids: Iterable[int]) -> list[int]:
    """State after each token of `ids`."""
    out: list[int] = []
    state = start
    for token in ids:
        state = fold(state, token)
        out.append(state)
    return out
