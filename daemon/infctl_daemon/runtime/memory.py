"""Keeps what a daemon holds in memory small."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_M_ARENA_MAX = -8  # malloc.h of glibc


def one_arena() -> None:
    """One heap for all threads: each of the dozen that gRPC and /proc need would keep pieces of its own.

    Where the C library has no such thing nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


@contextmanager
def without(module: str) -> Iterator[None]:
    """What is imported meanwhile does not find `module`, an optional part that costs megabytes and is not used."""
    if module in sys.modules:  # it is here already: nothing to save
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # as the import system has it for "not there"
    try:
        yield
    finally:
        del sys.modules[module]
