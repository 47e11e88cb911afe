"""The kinds of things an operator names, with every word that means them. Imports nothing: completion reads it too."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    NODE = "node"
    POOL = "pool"
    GROUP = "group"
    ENDPOINT = "endpoint"
    STREAM = "stream"
    GATEWAY = "gateway"
    EVENT = "event"

    @property
    def plural(self) -> str:
        return f"{self.value}s"

    @property
    def title(self) -> str:  # type: ignore[override]
        """As documents spell it: `Node`."""
        return self.value.capitalize()


_SHORT = {
    "no": Kind.NODE,
    "host": Kind.NODE,
    "hosts": Kind.NODE,
    "p": Kind.POOL,
    "g": Kind.GROUP,
    "worker": Kind.GROUP,
    "workers": Kind.GROUP,
    "ep": Kind.ENDPOINT,
    "s": Kind.STREAM,
    "request": Kind.STREAM,
    "requests": Kind.STREAM,
    "gw": Kind.GATEWAY,
    "frontend": Kind.GATEWAY,
    "ev": Kind.EVENT,
}

WORDS: dict[str, Kind] = {**{k.value: k for k in Kind}, **{k.plural: k for k in Kind}, **_SHORT}


def nearest(word: str, known: list[str]) -> str:
    """The known word that was probably meant, or ""."""
    import difflib

    found = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return found[0] if found else ""
