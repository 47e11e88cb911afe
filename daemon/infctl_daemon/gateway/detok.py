"""Text from ids, in the gateway, so that a character or a stop string split by a migration stays whole.

The stream of text never shows half a character, nor the beginning of what may become a stop string. Stop strings
and stop tokens are cut off, as the engine does unless `no_stop_trim` was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

CONTEXT = 6  # prompt ids that decide whether a leading space belongs to the first token


class Detokenizer:
    """Feeds on committed ids; `text` is everything that may be shown so far."""

    __slots__ = ("_context", "_ids", "_pending", "_raw", "_skip", "_stops", "_stream", "_tokenizer", "_trim", "text")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        stops: Sequence[str] = (),
        skip_special_tokens: bool = True,
        no_stop_trim: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._context = list(prompt_ids[-CONTEXT:])
        self._skip = skip_special_tokens
        self._stream: DecodeStream | None = DecodeStream(ids=self._context, skip_special_tokens=skip_special_tokens)
        self._stops = tuple(s for s in stops if s)
        self._trim = not no_stop_trim
        self._ids: list[int] = []
        self._raw = 0  # characters that the decoder has given so far
        self._pending = ""
        self.text = ""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that the new ids make showable."""
        self._ids.extend(ids)
        fresh = self._decode(ids)
        if not fresh:
            return ""
        self._raw += len(fresh)
        return self._show(self._pending + fresh)

    def feed_each(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """As `feed`; with it how many characters of the whole text come before each of the ids."""
        shown: list[str] = []
        offsets: list[int] = []
        for token in ids:
            offsets.append(self._raw)
            shown.append(self.feed((token,)))
        return "".join(shown), offsets

    def _decode(self, ids: Sequence[int]) -> str:
        if self._stream is not None:
            step, tokenizer = self._stream.step, self._tokenizer
            try:
                return "".join(piece for token in ids if (piece := step(tokenizer, token)))
            except Exception:  # the library raises bare Exception when a prefix decodes differently later on
                self._stream = None
        tail = self._tail()
        return "" if tail.endswith("\ufffd") else tail

    def finish(self, matched: str | int | None) -> str:
        """The rest of the text at the end of the stream. `matched` is the stop string or token that ended it."""
        rest = self._pending + self._tail()
        self._pending = ""
        if self._trim and isinstance(matched, str) and matched in rest:
            rest = rest[: rest.index(matched)]
        elif self._trim and isinstance(matched, int) and self._ids and self._ids[-1] == matched:
            last = self._tokenizer.decode([matched], skip_special_tokens=self._skip)
            if last and rest.endswith(last):
                rest = rest[: -len(last)]
        self.text += rest
        return rest

    def _tail(self) -> str:
        """What the incremental decoder still holds back: the ids end inside a character."""
        whole = self._tokenizer.decode(self._context + self._ids, skip_special_tokens=self._skip)
        before = self._tokenizer.decode(self._context, skip_special_tokens=self._skip)
        return str(whole[len(before) + self._raw :])

    def _show(self, text: str) -> str:
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._pending = text[len(text) - keep :] if keep else ""
        shown = text[: len(text) - keep] if keep else text
        self.text += shown
        return shown


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` begin (or are) the stop string; all from its start if it is inside."""
    inside = text.find(stop)
    if inside >= 0:
        return len(text) - inside
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
