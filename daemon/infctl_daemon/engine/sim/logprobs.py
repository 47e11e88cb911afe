"""Log probabilities as they stand in an answer's meta_info.

What stays true: the lists are cumulative and as long as the output ids; what concerns the prompt is complete in the
first frame and repeated in every one. The encoded lists are kept, so a frame costs the same at any length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Wanted:
    """What a request asked for: see `odds.Asked`; `text` says whether each entry shows its token's text."""

    start: int
    top: int
    ids: tuple[int, ...]
    text: bool


class Lists:
    """The lists of one answer, encoded. `decode` gives the text of one token."""

    __slots__ = ("_decode", "_ids", "_input", "_output", "_top", "count")

    def __init__(self, wanted: Wanted, decode: Callable[[int], str]) -> None:
        self._decode = decode if wanted.text else None
        self._top = wanted.top > 0
        self._ids = bool(wanted.ids)
        self._input = (bytearray(), bytearray(), bytearray())
        self._output = (bytearray(), bytearray(), bytearray())
        self.count = 0

    def take(self, prompt: Sequence[Any] | None, output: Sequence[Any]) -> None:
        """More entries as `odds.Asked.entry` makes them; `prompt` comes once."""
        for entry in prompt or ():
            self._append(self._input, entry)
        for entry in output:
            self._append(self._output, entry)
        self.count += len(output)

    def _append(self, lists: tuple[bytearray, bytearray, bytearray], entry: Any) -> None:
        value, token, top, ids = entry
        rows = (self._one(value, token), self._row(top) if self._top else b"", self._row(ids) if self._ids else b"")
        for kept, row in zip(lists, rows, strict=True):
            if row:
                kept += b"," + row if kept else row

    def _one(self, value: float | None, token: int) -> bytes:
        text = "null" if self._decode is None else json.dumps(self._decode(token), ensure_ascii=False)
        return f"[{'null' if value is None else repr(value)},{token},{text}]".encode()

    def _row(self, entries: Iterable[tuple[float, int]] | None) -> bytes:
        if entries is None:
            return b"null"
        return b"[" + b",".join(self._one(*entry) for entry in entries) + b"]"

    def body(self) -> bytes:
        """The keys of meta_info, each with a comma behind it."""
        own, top, ids = self._input
        said, said_top, said_ids = self._output
        parts: list[bytes | bytearray] = [
            b'"input_token_logprobs":[', own, b'],"output_token_logprobs":[', said,
            b'],"output_token_logprobs_length":%d,' % self.count,
        ]  # fmt: skip
        if self._top:
            parts += [b'"input_top_logprobs":[', top, b'],"output_top_logprobs":[', said_top, b"],"]
        if self._ids:
            parts += [b'"input_token_ids_logprobs":[', ids, b'],"output_token_ids_logprobs":[', said_ids, b"],"]
        return b"".join(parts)
