"""Names and ids: one grammar each, checked where they enter, so that no key or command line is ever ambiguous.

Random bytes and the time of day are arguments: this module reads no clock and no entropy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from infctl.domain.errors import UsageError

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_STREAM = re.compile(r"r[a-z2-7]{26}([0-9a-f]{2})?")
_ADDRESSED = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
# digits first, as in ASCII: the text then sorts like the number it stands for
_BASE32 = "234567abcdefghijklmnopqrstuvwxyz"


def check_name(text: str, what: str = "name") -> str:
    """Return `text` when it is a legal name (`[a-z0-9]([-a-z0-9.]*[a-z0-9])?`, at most 63), else UsageError."""
    if not NAME.fullmatch(text):
        raise UsageError(
            f"{what} {text!r} is not a legal name",
            hint="lower-case letters, digits, '-' and '.', at most 63, starting and ending with a letter or digit",
        )
    return text


def base32(raw: bytes, length: int) -> str:
    """The first `length` characters (5 bits each, big endian) of `raw` in lower-case base32."""
    bits = int.from_bytes(raw, "big")
    have = len(raw) * 8
    need = length * 5
    bits = bits >> (have - need) if have >= need else bits << (need - have)
    return "".join(_BASE32[(bits >> (5 * i)) & 31] for i in range(length - 1, -1, -1))


def stream_id(now_ms: int, entropy: bytes) -> str:
    """A stream id: `r` and 26 base32 characters; ids made later sort later. Needs 11 bytes of entropy."""
    return "r" + base32(now_ms.to_bytes(6, "big") + entropy[:11], 26)


def is_stream_id(text: str) -> bool:
    return _STREAM.fullmatch(text) is not None


def launch_id(group: str, entropy: bytes) -> str:
    """A launch id: `<group>-` and 8 base32 characters. Needs 5 bytes of entropy."""
    return f"{group}-{base32(entropy, 8)}"


def is_launch_id(text: str, group: str) -> bool:
    """Whether `text` is the id of a launch of `group`; nothing else may become part of a path."""
    return text.startswith(f"{group}-") and re.fullmatch(f"[{_BASE32}]{{8}}", text[len(group) + 1 :]) is not None


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """Who may speak for a request (R3): `term` changes only in the store, `attempt` only in its owner."""

    term: int
    attempt: int


def engine_rid(stream: str, epoch: Epoch, gateway: int) -> str:
    """The id under which an engine knows one attempt. Fixed length: SGLang aborts by prefix (R3).

    `gateway` is the gateway's incarnation; its low 16 bits are used.
    """
    return f"{stream}-{epoch.term & 0xFFFF:04x}{epoch.attempt & 0xFFFF:04x}{gateway & 0xFFFF:04x}"


def parse_address(text: str, kinds: dict[str, str]) -> tuple[str, str]:
    """Split `kind/name`; `kinds` maps each accepted word to its kind. Raises UsageError."""
    word, slash, name = text.partition("/")
    if not slash or word not in kinds:
        raise UsageError(
            f"{text!r} is not an address",
            hint=f"write kind/name with one of: {', '.join(sorted(set(kinds.values())))}",
        )
    if not _ADDRESSED.fullmatch(name):
        raise UsageError(
            f"{name!r} in {text!r} is not a legal name",
            hint="lower-case letters, digits, '-' and '.', starting and ending with a letter or digit",
        )
    return kinds[word], name
