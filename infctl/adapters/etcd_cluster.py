"""The embedded cluster: one member, or three on this machine, started and stopped together over one directory.

Keeps true: the members' names and peer ports are written before any of them starts, because etcd keeps them in its data
for ever; a start that fails stops what it had started, and nothing that ran before.

Three members on one machine protect against the loss of a process, not of the machine: they are for trying out what a
real cluster of three goes through. Directory: that of the member where there is one, else `cluster.json` and one
directory each.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from infctl.adapters.etcd_server import EmbeddedEtcd, RunningEtcd
from infctl.adapters.free_port import free_port
from infctl.domain.errors import ConfigError

SIZES = (1, 3)


class EmbeddedCluster:
    """Members are named in the order of their endpoints: `etcd`, or `etcd-1` to `etcd-3`."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        size: int = 1,
        *,
        binary: str | os.PathLike[str] | None = None,
        unsafe_no_fsync: bool = False,
    ) -> None:
        if size not in SIZES:
            raise ConfigError(f"{size} etcd members", hint="1, or 3: two tolerate no loss, and three are enough to try")
        self.dir = Path(folder).absolute()
        self.size = size
        self._binary = binary
        self._unsafe_no_fsync = unsafe_no_fsync
        self.members: dict[str, EmbeddedEtcd] = {}
        if size == 1:
            self.members["etcd"] = EmbeddedEtcd(self.dir, binary=binary, unsafe_no_fsync=unsafe_no_fsync)
        elif ports := self._read_ports():
            self._make(ports)

    @property
    def running(self) -> dict[str, RunningEtcd]:
        """The members that run now, started by whichever process."""
        found = {name: member.running for name, member in self.members.items() if member.dir.exists()}
        return {name: running for name, running in found.items() if running is not None}

    @property
    def attached(self) -> bool:
        """Every member ran before `start`."""
        return all(member.attached for member in self.members.values())

    async def start(self, timeout: float = 30.0) -> list[RunningEtcd]:
        """Start every member that does not run; returns when each answers with a quorum. Raises as a member does."""
        if not self.members:
            self._make(self._choose_ports())
        members = list(self.members.values())
        done = await asyncio.gather(*(member.start(timeout) for member in members), return_exceptions=True)
        failed = [each for each in done if isinstance(each, BaseException)]
        if failed:
            await asyncio.gather(*(member.stop() for member in members if not member.attached), return_exceptions=True)
            raise failed[0]
        return [each for each in done if isinstance(each, RunningEtcd)]

    async def stop(self, timeout: float = 10.0) -> list[str]:
        """Stop every member; returns the names of those that ran.

        One after the other: a leader hands over first, and waits for seconds when all the others end with it.
        """
        found = {name: member for name, member in self.members.items() if member.dir.exists()}
        return [name for name, member in found.items() if await member.stop(timeout)]

    def _make(self, ports: dict[str, int]) -> None:
        for name in ports:
            self.members[name] = EmbeddedEtcd(
                self.dir / name, name=name, cluster=ports, binary=self._binary, unsafe_no_fsync=self._unsafe_no_fsync
            )

    def _choose_ports(self) -> dict[str, int]:
        chosen: dict[str, int] = {}
        while len(chosen) < self.size:
            port = free_port()
            if port not in chosen.values():
                chosen[f"etcd-{len(chosen) + 1}"] = port
        self.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.dir / ".cluster.json.new"
        fresh.write_text(json.dumps({"peer_ports": chosen}), encoding="utf-8")
        os.replace(fresh, self.dir / "cluster.json")
        return chosen

    def _read_ports(self) -> dict[str, int]:
        path = self.dir / "cluster.json"
        try:
            ports = json.loads(path.read_bytes())["peer_ports"]
            return {str(name): int(port) for name, port in ports.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConfigError(f"{path} does not tell the members of this etcd cluster: {error!r}") from None
