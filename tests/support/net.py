"""Free ports on loopback."""

from __future__ import annotations

from infctl.adapters.free_port import free_port


def free_ports(count: int) -> list[int]:
    """Different ports, free at this moment and unlikely to be taken in the next: no outgoing connection gets them."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)
