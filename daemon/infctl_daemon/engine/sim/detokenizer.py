"""The detokenizer process: ids in from rank 0, text out to the HTTP process.

What stays true: text lags ids while a character is incomplete, and never takes back what it has shown; a frozen
detokenizer silences every stream while the scheduler's load snapshot goes on moving, as in SGLang.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infctl_daemon.engine.sim.tokens import Vocabulary
from infctl_daemon.engine.sim.wire import Pipe

_OPEN = "\ufffd"


class Text:
    """Text of one request. Decodes a short window only: what was shown last, and what is new."""

    __slots__ = ("_ids", "_no_trim", "_read", "_shown", "_skip", "_spoken", "_tokenizer")

    def __init__(self, tokenizer: Any, spoken: dict[int, str], skip_special: bool, no_stop_trim: bool) -> None:
        self._tokenizer = tokenizer
        self._spoken = spoken
        self._skip = skip_special
        self._no_trim = no_stop_trim
        self._ids: list[int] = []
        self._shown = 0
        self._read = 0

    def push(self, new: list[int], finish: dict[str, Any] | None) -> str:
        """The text that `new` adds. A whole word after whole words needs no window: it is what it is."""
        if finish is None and len(new) == 1 and self._read == len(self._ids):
            text = self._spoken.get(new[0])
            if text is not None:
                self._ids += new
                self._shown = self._read
                self._read += 1
                return text
        trim = finish is not None and finish["type"] == "stop" and not self._no_trim
        matched = finish["matched"] if trim and finish else None
        self._ids += new[:-1] if isinstance(matched, int) else new
        before = self._decode(self._ids[self._shown : self._read])
        now = self._decode(self._ids[self._shown :])
        added = now[len(before) :]
        if isinstance(matched, str):
            end = now.find(matched)
            return added if end < 0 else now[len(before) : end]
        if finish is None and added.endswith(_OPEN):
            return ""
        self._shown = self._read
        self._read = len(self._ids)
        return added

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=self._skip)) if ids else ""


def run_detokenizer(model_path: str, source: Pipe, sink: Pipe) -> None:
    """Life of the process; raises `PeerGone` when either side ends."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(model_path) / "tokenizer.json"))
    spoken = Vocabulary(Path(model_path)).spoken()
    live: dict[str, Text] = {}
    while True:
        out = []
        for rid, new, finish, base, opening, logs in source.recv():
            if opening is not None:
                live[rid] = Text(tokenizer, spoken, *opening)
            text = live.get(rid)
            added = text.push(new, finish) if text is not None else ""
            if finish is not None:
                live.pop(rid, None)
            out.append((rid, new, added, finish, base, logs))
        sink.send(out)
