"""Server-sent events as clients get them, whatever the surface: marks, comments, errors, the end.

A frame that carries tokens ends with `id: <p>-<crc>`: p counts the tokens of the stream through this frame, crc is
the crc32 over those ids (each as 4 bytes, little endian). With several answers in one response p is `<p0>.<p1>...`
and crc goes over the answers' own digests, in order. Finish, usage and [DONE] frames have no id line.
Comments stand inside a data block, before its id line: a block of its own breaks the official client (docs/design.md).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from infctl_daemon.gateway.asked import Job

encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


def crc_of(ids: Sequence[int], crc: int = 0) -> int:
    """Go on with `crc` over more ids."""
    return zlib.crc32(struct.pack(f"<{len(ids)}I", *ids), crc)


def tail(mark: bytes, comment: str) -> bytes:
    """What follows the data line of a frame with tokens."""
    return b": %s\nid: %s\n\n" % (comment.encode(), mark) if comment else b"id: %s\n\n" % mark


def data(body: Any) -> bytes:
    """A frame without tokens."""
    return b"data: " + encode(body) + b"\n\n"


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Surface(Protocol):
    """How one answer looks on the wire."""

    def tokens(self, ids: Sequence[int], text: str, mark: bytes, comment: str) -> bytes:
        """A frame with `ids`, which make `text` showable; `mark` goes into its id line."""
        ...

    def finish(self, reason: str, matched: str | int | None, text: str) -> bytes: ...

    def choice(self, ids: Sequence[int], text: str, reason: str, matched: str | int | None) -> dict[str, Any]:
        """The whole answer, for a client that did not ask for a stream."""
        ...

    def absorb(self, meta: dict[str, Any]) -> None:
        """What the engine says beside the tokens, where a surface can show it."""
        ...


class Form(Protocol):
    """How one client's response looks: its answers, and what is said once for all of them."""

    def surface(self, number: int, stream: str, job: Job) -> Surface: ...

    def closing(self, usage: Usage) -> bytes:
        """The last bytes of a stream that went well."""
        ...

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> Any: ...


def error_frame(body: dict[str, Any]) -> bytes:
    """The last frame of a stream that failed: no [DONE] follows."""
    return data(body)
