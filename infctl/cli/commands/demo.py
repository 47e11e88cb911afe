"""`infctl demo`."""

from __future__ import annotations

HELP = "demo"


def demo() -> None:
    pass
