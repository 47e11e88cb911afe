"""Several node daemons on loopback, each as a host of its own, over one etcd: groups that span them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from infctl.adapters.etcd import EtcdStore
from infctl.store.codec import decode
from infctl.store.records import GroupSpec, Host, RankPart
from infctl_daemon.proc import procfs
from infctl_daemon.proc.state_file import Process, StateFile
from tests.support.etcd import BINARIES, LiveEtcd, live_etcd, store_on
from tests.support.noded import Cluster, Noded, model, until


class HostNoded(Noded):
    """One host's daemon: a group's processes here, as owner or as member."""

    def part(self, group: str) -> list[Process]:
        """Of the group's launch on this host, main first."""
        for state in (self.state, StateFile(self.folder / "state" / "parts")):
            if (found := state.read(group)).processes:
                self._seen.update(found.processes)
                return list(found.processes)
        return []

    def rank(self, group: str) -> int:
        """The pid of the (first) scheduler of the group on this host."""
        return next(p.pid for p in self.part(group) if "::scheduler" in p.title)

    def living(self, group: str) -> list[Process]:
        return [p for p in self.part(group) if procfs.is_alive(p.ident)]


class Hosts(Cluster):
    """`daemons` by node; `noded` of the base is that of node `a`, which owns the groups."""

    def __init__(self, etcd: LiveEtcd, store: EtcdStore, daemons: dict[str, HostNoded], model_path: Path) -> None:
        super().__init__(etcd, store, daemons["a"], model_path)
        self.daemons = daemons

    def spread(self, name: str = "g", over: Sequence[str] = ("a", "b", "c"), **other: Any) -> GroupSpec:
        """One rank on each host."""
        hosts = [Host(node=node) for node in over]
        return self.spec(name, node=over[0], hosts=hosts, tp=len(over), **other)

    async def parts(self, launch: str, group: str = "g") -> dict[str, RankPart]:
        found = await self.store.range(f"{self.keys.group(group)}ranks/{launch}/")
        return {part.node: part for part in (decode(RankPart, kv.value) for kv in found.kvs)}

    def now(self, group: str = "g") -> list[Process]:
        """Every process of the group that lives on any host."""
        return [process for daemon in self.daemons.values() for process in daemon.living(group)]

    async def ended(self, processes: Sequence[Process], seconds: float = 20.0) -> None:
        """None of these is left, whatever was started since."""

        async def look() -> bool:
            return not any(procfs.is_alive(process.ident) for process in processes)

        await until(look, seconds, "the processes of the launch are gone")

    async def gone(self, group: str = "g", seconds: float = 20.0) -> None:
        """No process of the group's last launch is left on any host."""

        async def look() -> bool:
            return not any(daemon.living(group) for daemon in self.daemons.values())

        await until(look, seconds, f"the processes of {group} are gone")


@asynccontextmanager
async def hosts_cluster(
    folder: Path, nodes: Sequence[str] = ("a", "b", "c"), crash_at: Mapping[str, str] | None = None
) -> AsyncIterator[Hosts]:
    async with live_etcd(BINARIES[0], folder / "etcd") as etcd, store_on(etcd.endpoint) as store:
        daemons = {node: HostNoded(folder / node, etcd.endpoint, node) for node in nodes}
        try:
            for node, daemon in daemons.items():
                daemon.start(crash_at=(crash_at or {}).get(node, ""))
            yield Hosts(etcd, store, daemons, model(folder / "model"))
        finally:
            for daemon in daemons.values():
                daemon.part("g")
                await daemon.close()
