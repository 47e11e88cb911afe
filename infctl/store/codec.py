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
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRecord(f"{kind.__name__}: {error}") from None


@dataclass(frozen=True, slots=True)
class Stored(Generic[R]):
    """A record together with the fields that this version does not know."""

    record: R
    unknown: dict[str, Any]
    mod_revision: int = 0

    def encode(self, record: R) -> bytes:
        """`record` in place of ours, the unknown fields kept."""
        known = msgspec.to_builtins(record)
        return msgspec.json.encode({**self.unknown, **known})


def decode_stored(kind: type[R], value: bytes, mod_revision: int = 0) -> Stored[R]:
    """Read a record that will be written back."""
    record = decode(kind, value)
    fields = set(kind.__struct_fields__)
    unknown = {k: v for k, v in _decoder.decode(value).items() if k not in fields}
    return Stored(record, unknown, mod_revision)
