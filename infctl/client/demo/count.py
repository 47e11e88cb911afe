"""What a client can say about the tokens it got: lost, repeated, exact. Pure; knows only bytes that arrived.

`p` of an SSE id counts the tokens of the stream through its frame, `crc` is over those ids (4 bytes each, little
endian). Positions show what the server admits; the comparison with an uninterrupted run shows what it does not.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

# a splice is recognised when this many tokens after it fit the reference at a shifted place
_FIT = 4
_SHIFTS = 16


@dataclass(slots=True)
class Received:
    """One stream as it arrives. `lost` and `repeated` so far are those that positions give away."""

    ids: list[int] = field(default_factory=list)
    position: int = 0
    crc: int = 0
    lost: int = 0
    repeated: int = 0
    faults: list[str] = field(default_factory=list)

    def frame(self, ids: Sequence[int], event_id: str) -> None:
        """One frame with tokens and its SSE id `<p>-<crc>`."""
        self.ids.extend(ids)
        self.crc = zlib.crc32(struct.pack(f"<{len(ids)}I", *ids), self.crc)
        head, dash, tail = event_id.partition("-")
        if not dash or not head.isdigit():
            self.faults.append(f"a frame with tokens has the id {event_id!r}")
            self.position += len(ids)
            return
        position = int(head)
        expected = self.position + len(ids)
        self.lost += max(0, position - expected)
        self.repeated += max(0, expected - position)
        if position <= self.position:
            self.faults.append(f"position {position} came after {self.position}")
        self.position = position
        if position == expected and tail != f"{self.crc:08x}":
            self.faults.append(f"the digest at {position} does not fit the tokens received")


@dataclass(frozen=True, slots=True)
class Count:
    """The verdict about one stream. `differs_at` is the first token that is not the reference's, -1 without one."""

    tokens: int
    lost: int
    repeated: int
    exact: bool
    differs_at: int
    faults: tuple[str, ...] = ()


def compare(received: Received, reference: Sequence[int]) -> Count:
    """Count against an uninterrupted run of the same request."""
    got = received.ids
    lost, repeated = received.lost, received.repeated
    at = next((i for i, (a, b) in enumerate(zip(got, reference, strict=False)) if a != b), -1)
    if at < 0 and len(got) != len(reference):
        at = min(len(got), len(reference))
        lost += max(0, len(reference) - len(got)) if not received.lost else 0
    elif at >= 0:
        shift = _shift(got, reference, at)
        repeated = max(repeated, shift)
        lost = max(lost, -shift)
    exact = at < 0 and not received.faults and lost == 0 and repeated == 0
    return Count(len(got), lost, repeated, exact, at, tuple(received.faults))


def _shift(got: Sequence[int], reference: Sequence[int], at: int) -> int:
    """How far the stream slipped at a splice: n > 0 tokens came again, n < 0 were left out, 0: it just differs."""
    for n in range(1, _SHIFTS):
        # came again: what follows the n extra tokens is the reference from there on
        again = got[at + n : at + n + _FIT]
        if len(again) == _FIT and again == list(reference[at : at + _FIT]):
            return n
        left_out = reference[at + n : at + n + _FIT]
        if len(left_out) == _FIT and list(left_out) == got[at : at + _FIT]:
            return -n
    return 0
