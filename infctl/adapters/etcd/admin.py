"""What the doctor and the operator ask of etcd itself, beside the store port. Nothing here is needed to serve.

Keeps true: nothing that blocks a member (defragment) or ends an alarm happens unless the caller asked for it by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from infctl.adapters.etcd.client import EtcdStore
from infctl.adapters.etcd.messages import message

_ALARM_NAMES = {1: "NOSPACE", 2: "CORRUPT"}
_DEACTIVATE = 2


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """One member as the cluster knows it; an empty name has not started yet."""

    id: int
    name: str
    client_urls: tuple[str, ...]
    peer_urls: tuple[str, ...]
    learner: bool


@dataclass(frozen=True, slots=True)
class EtcdAlarm:
    member_id: int
    kind: int

    @property
    def name(self) -> str:
        return _ALARM_NAMES.get(self.kind, str(self.kind))


class EtcdAdmin:
    """Raises what `EtcdStore` raises."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store

    async def members(self, *, timeout: float = 5.0) -> tuple[EtcdMember, ...]:
        response = await self._store.call("MemberList", message("MemberListRequest")(), timeout, read=True)
        return tuple(
            EtcdMember(m.id, m.name, tuple(m.client_urls), tuple(m.peer_urls), m.is_learner) for m in response.members
        )

    async def alarms(self, *, timeout: float = 5.0) -> tuple[EtcdAlarm, ...]:
        response = await self._store.call("Alarm", message("AlarmRequest")(), timeout, read=True)
        return tuple(EtcdAlarm(alarm.member_id, alarm.alarm) for alarm in response.alarms)

    async def disarm(self, alarm: EtcdAlarm, *, timeout: float = 5.0) -> None:
        """After a NOSPACE: compact, defragment every member, and only then this."""
        request = message("AlarmRequest")(action=_DEACTIVATE, member_id=alarm.member_id, alarm=alarm.kind)
        await self._store.call("Alarm", request, timeout)

    async def defragment(self, *, timeout: float = 60.0) -> None:
        """Give free space back to the file; the member in use answers nothing meanwhile."""
        await self._store.call("Defragment", message("DefragmentRequest")(), timeout)
