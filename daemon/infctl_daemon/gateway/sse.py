"""Server-sent events as clients get them: one builder for each surface, bytes ready to write.

A frame that carries tokens ends with `id: <p>-<crc>`: p counts the tokens of the stream through this frame, crc is
the crc32 over those ids (each as 4 bytes, little endian). Finish, usage and [DONE] frames have no id line.
Comments stand inside a data block, before its id line: a block of its own breaks the official client (docs/design.md).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


def crc_of(ids: Sequence[int], crc: int = 0) -> int:
    """Go on with `crc` over more ids."""
    return zlib.crc32(struct.pack(f"<{len(ids)}I", *ids), crc)


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Surface(Protocol):
    """How one kind of request looks on the wire."""

    def tokens(self, ids: Sequence[int], text: str, position: int, crc: int, comment: str) -> bytes: ...

    def finish(self, reason: str, matched: str | int | None, text: str) -> bytes: ...

    def whole(self, reason: str, matched: str | int | None) -> dict[str, Any]: ...

    def absorb(self, meta: dict[str, Any]) -> None:
        """What the engine says beside the tokens (log probabilities, …), where a surface can show it."""
        ...


class CompletionSurface:
    """`/v1/completions`. The parts of a frame that never change are encoded once."""

    def __init__(self, stream: str, model: str, created: int, *, token_ids: bool, usage: bool, prompt: int) -> None:
        self.id = f"cmpl-{stream}"
        self._model = model
        self._created = created
        self._token_ids = token_ids
        self._usage = usage
        self._prompt = prompt
        self._ids: list[int] = []
        self._text: list[str] = []
        head = _encode({"id": self.id, "object": "text_completion", "created": created, "model": model})[:-1]
        self._head = b"data: " + head + b',"choices":[{"index":0,"text":'
        self._tail = b',"logprobs":null,"finish_reason":null}]}\n'

    def tokens(self, ids: Sequence[int], text: str, position: int, crc: int, comment: str) -> bytes:
        self._ids.extend(ids)
        self._text.append(text)
        shown = b',"token_ids":[' + ",".join(map(str, ids)).encode() + b"]" if self._token_ids else b""
        note = f": {comment}\n".encode() if comment else b""
        return b"".join((self._head, _encode(text), shown, self._tail, note, b"id: %d-%08x\n\n" % (position, crc)))

    def finish(self, reason: str, matched: str | int | None, text: str) -> bytes:
        self._text.append(text)
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "matched_stop": matched}
        frames = [b"data: " + _encode({**self._base(), "choices": [choice]}) + b"\n\n"]
        if self._usage:
            frames.append(b"data: " + _encode({**self._base(), "choices": [], "usage": self._usage_now()}) + b"\n\n")
        frames.append(DONE)
        return b"".join(frames)

    def whole(self, reason: str, matched: str | int | None) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join(self._text),
            "logprobs": None,
            "finish_reason": reason,
            "matched_stop": matched,
        }
        if self._token_ids:
            choice["token_ids"] = self._ids
        return {**self._base(), "choices": [choice], "usage": self._usage_now()}

    def absorb(self, meta: dict[str, Any]) -> None:
        """Nothing of it has a place in a completion."""

    def _base(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self._created, "model": self._model}

    def _usage_now(self) -> Usage:
        return Usage(self._prompt, len(self._ids), self._prompt + len(self._ids))


class GenerateSurface:
    """SGLang's `/generate`: cumulative frames in the engine's own shape, the stream's id in place of the rid."""

    def __init__(self, stream: str, prompt: int, revision: str) -> None:
        self._stream = stream
        self._prompt = prompt
        self._revision = revision
        self._ids: list[int] = []
        self._text = ""
        self._engine_meta: dict[str, Any] = {}

    def tokens(self, ids: Sequence[int], text: str, position: int, crc: int, comment: str) -> bytes:
        self._ids.extend(ids)
        self._text += text
        note = f": {comment}\n".encode() if comment else b""
        return b"data: " + _encode(self._body(None)) + b"\n" + note + b"id: %d-%08x\n\n" % (position, crc)

    def finish(self, reason: str, matched: str | int | None, text: str) -> bytes:
        return b"data: " + _encode(self.whole(reason, matched, text)) + b"\n\n" + DONE

    def whole(self, reason: str, matched: str | int | None, text: str = "") -> dict[str, Any]:
        self._text += text
        finish: dict[str, Any] = {"type": reason}
        finish |= {"length": len(self._ids)} if reason == "length" else {"matched": matched}
        return self._body(finish)

    def absorb(self, meta: dict[str, Any]) -> None:
        self._engine_meta = meta

    def _body(self, finish: dict[str, Any] | None) -> dict[str, Any]:
        meta = {
            **self._engine_meta,
            "id": self._stream,
            "finish_reason": finish,
            "prompt_tokens": self._prompt,
            "weight_version": self._revision,
            "completion_tokens": len(self._ids),
        }
        return {"text": self._text, "output_ids": self._ids, "meta_info": meta}


def error_frame(body: dict[str, Any]) -> bytes:
    """The last frame of a stream that failed: no [DONE] follows."""
    return b"data: " + _encode(body) + b"\n\n"
