"""The base of every part of a document."""

from __future__ import annotations

import msgspec


class View(msgspec.Struct, frozen=True, rename="camel"):
    """Base of every part of a document."""
