"""The address by which other hosts reach the engines of this one: a literal IP, so that it can be bound as it is.

Kept true: no name that resolves one way here and another way there, and nothing that only listens everywhere.
"""

from __future__ import annotations

import ipaddress

LOOPBACK = "127.0.0.1"


def host_address(text: str) -> str:
    """The address in its shortest form. Raises ValueError."""
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"expected an IP address of this host, not {text!r}") from None
    if ip.is_unspecified or ip.is_multicast:
        raise ValueError(f"{text} is no address that others can reach this host by")
    return str(ip)


def is_loopback(address: str) -> bool:
    """Only this host can reach it; a text that is no address is none of these."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def in_url(address: str) -> str:
    """As the host part of a URL."""
    return f"[{address}]" if ":" in address else address
