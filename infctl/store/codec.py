"""Values in the store: JSON with a schema version `v`; fields that we do not know survive a rewrite.

What comes out of the store was written by another version or by a stranger: anything that does not decode raises
`BadRecord`, and the reader decides whether to skip it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from infctl.domain.errors import InfctlError


class BadRecord(InfctlError):
    """A value that is not what its key promises."""

    reason = "BadRecord"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of every stored record. `v` is the version of the schema that wrote it."""

    v: int = 1


R = TypeVar("R", bound=Record)

_decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


def encode(record: Record) -> bytes:
    return msgspec.json.encode(record)


def decode(kind: type[R], value: bytes) -> R:
    """Read one record. Raises BadRecord with the field that is wrong."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(f"{kind.__name__}: {error}") from None


@dataclass(frozen=True, slots=True)
class Stored(Generic[R]):
    """A record together with the fields that this version does not know."""

    record: R
    unknown: dict[str, Any]
    mod_revision: int = 0

    def encode(self, record: R) -> bytes:
        """`record` in place of ours, the unknown fields kept."""
        return msgspec.json.encode(_merged(msgspec.to_builtins(record), self.unknown))


def decode_stored(kind: type[R], value: bytes, mod_revision: int = 0) -> Stored[R]:
    """Read a record that will be written back."""
    record = decode(kind, value)
    try:
        raw = _decoder.decode(value)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRecord(f"{kind.__name__}: {error}") from None
    return Stored(record, _unknown(record, raw), mod_revision)


def _unknown(record: msgspec.Struct, raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of `raw` that the type of `record` does not have, also inside nested records."""
    found: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in record.__struct_fields__:
            found[name] = value
        elif isinstance(inner := getattr(record, name), msgspec.Struct) and (deeper := _unknown(inner, value)):
            found[name] = deeper
    return found


def _merged(known: dict[str, Any], unknown: dict[str, Any]) -> dict[str, Any]:
    for name, value in unknown.items():
        known[name] = _merged(known[name], value) if name in known else value
    return known
