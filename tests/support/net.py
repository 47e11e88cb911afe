"""Free ports on loopback."""

from __future__ import annotations

from infctl.adapters.free_port import free_ports

__all__ = ["free_ports"]
