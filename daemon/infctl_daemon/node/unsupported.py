"""What a specification may ask for, and this daemon does not do yet: said in the group's status, never half done."""

from __future__ import annotations

from infctl.domain.model import Role
from infctl.store.records import GroupSpec


def unsupported(spec: GroupSpec) -> str:
    """Why a group is not started, as one sentence; "" when it can be."""
    if spec.role != Role.UNIFIED:
        return f"role {spec.role} is asked for, and this version's gateways know unified groups only"
    return ""
