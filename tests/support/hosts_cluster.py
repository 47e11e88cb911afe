"""A cluster over several hosts: etcd on one of its own, a node daemon on each of the others, a gateway on one of these.

Everything runs in network namespaces (`hosts.py`) and is ended with them. The test looks from the observer, a host that
no cut between the others concerns: `store` is etcd seen from there, `outside` turns a URL into one that the test's own
process can ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from infctl.adapters.etcd import EtcdStore
from infctl.adapters.etcd_binary import command
from infctl.domain.errors import StoreError
from infctl.store.records import EndpointRecord
from tests.support.containers import remove_cgroups
from tests.support.etcd import BINARIES
from tests.support.hosted import HostNoded
from tests.support.hosted import Hosts as HostsCluster
from tests.support.hosts import Hosts, hosts, reap
from tests.support.noded import model, until

BIN = Path(sys.executable).parent
STORE = "store"
ETCD, GATEWAY, ADMIN, READ_API = 2379, 8080, 8081, 8070


class HostedCluster(HostsCluster):
    """`cluster.hosts` is what can be cut; `cluster.daemons` are its daemons by host, `cluster.noded` is that of `a`."""

    def __init__(self, folder: Path, made: Hosts, names: tuple[str, ...]) -> None:
        self.folder, self.hosts = folder, made
        self.endpoint_of_etcd = f"{made[STORE].address}:{ETCD}"
        self.env = {**os.environ, "INFCTL_ENDPOINTS": self.endpoint_of_etcd, "HOME": str(folder / "home")}
        self.env["XDG_STATE_HOME"] = self.env["XDG_CONFIG_HOME"] = str(folder / "home")
        daemons = {name: self._noded(name) for name in names}
        self.started: dict[str, list[subprocess.Popen[bytes]]] = {}
        host, port = made.reach(made[STORE].address, ETCD)
        any_etcd: Any = None
        super().__init__(any_etcd, EtcdStore([f"{host}:{port}"]), daemons, model(folder / "model"))
        self.url = self.admin = ""

    def _noded(self, name: str) -> HostNoded:
        host = self.hosts[name]
        noded = HostNoded(self.folder / name, self.endpoint_of_etcd, name)
        token = self.folder / "read-api-token"
        token.write_text("the-token-of-these-tests\n")
        token.chmod(0o600)
        noded.read_api = {"listen": f"{host.address}:{READ_API}", "tokenFile": str(token)}
        noded.flags = ["--address", host.address]
        noded.inside = host.command([])
        return noded

    def spawn(self, host: str, name: str, argv: list[str]) -> None:
        """On that host; its output goes to `<name>.log`."""
        with open(self.folder / f"{name}.log", "ab") as log:
            process = self.hosts[host].popen(argv, env=self.env, stdout=log, stderr=log, cwd=self.folder)
        self.started.setdefault(host, []).append(process)

    async def start_etcd(self) -> None:
        """Answering when this returns. A second start goes on with the same data."""
        address = self.hosts[STORE].address
        client, peer = f"http://{address}:{ETCD}", f"http://{address}:{ETCD + 1}"
        argv = command(
            BINARIES[0],
            name="infctl",
            data_dir=self.folder / "etcd",
            client_url=client,
            peer_url=peer,
            cluster={"infctl": peer},
            unsafe_no_fsync=True,
        )
        self.spawn(STORE, "etcd", argv)

        async def answers() -> bool:
            with contextlib.suppress(StoreError):
                await self.store.get("ready", timeout=1.0)
                return True
            return False

        await until(answers, 20.0, "etcd answers")

    async def start_gateway(self, host: str, name: str = "gw1") -> None:
        address = self.hosts[host].address
        argv = [str(BIN / "infctl-gateway"), "--name", name, "--state-dir", str(self.folder / name)]
        argv += ["--listen", f"{address}:{GATEWAY}", "--admin", f"{address}:{ADMIN}"]
        log = self.folder / f"{name}.log"
        before = log.read_text().count("gateway.listening") if log.exists() else 0
        self.spawn(host, name, argv)

        async def listens() -> bool:
            return log.read_text().count("gateway.listening") > before

        await until(listens, 20.0, "the gateway listens")
        self.url, self.admin = (self.outside(f"http://{address}:{port}") for port in (GATEWAY, ADMIN))

    async def registered(self, host: str) -> None:
        """The host's daemon is there; one that ended instead fails the test with what it said."""

        async def there() -> bool:
            process = self.daemons[host].process
            assert process is not None and process.poll() is None, self.daemons[host].log.read_text()[-2000:]
            return await self.store.get(self.keys.node_lease(host)) is not None

        await until(there, 20.0, f"the daemon of {host} is registered")

    def outside(self, url: str) -> str:
        """Where the test's own process finds what the observer sees at this URL."""
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        host, port = self.hosts.reach(parts.hostname, parts.port)
        return parts._replace(netloc=f"{host}:{port}").geturl()

    async def cli(self, host: str, *arguments: str, timeout: float = 30.0) -> tuple[int, str, str]:
        """`infctl` as somebody on that host runs it: exit code, output, errors."""
        argv = [str(BIN / "infctl"), *arguments]
        done = await asyncio.to_thread(self.hosts[host].run, argv, timeout, env=self.env)
        return done.returncode, done.stdout, done.stderr

    async def ready(self, group: str = "a", not_launch: str = "", seconds: float = 60.0) -> EndpointRecord:
        found = await super().ready(group, not_launch, seconds)
        for noded in self.daemons.values():
            noded.known(group)
        return found

    def power_off(self, host: str) -> None:
        """Nothing of it is left, and nothing got out; what it had on disk stays."""
        self.hosts.power_off(host)
        self._reap(host)

    def _reap(self, host: str) -> None:
        for process in self.started.pop(host, []):
            reap(process)
        noded = self.daemons.get(host)
        if noded is not None and noded.process is not None:
            reap(noded.process)
            noded.process = None
            remove_cgroups(noded.folder / "state")

    async def close(self) -> None:
        """The hosts lose power, one after the other."""
        with contextlib.suppress(Exception):
            await self.store.close()
        for host in [*self.daemons, STORE]:
            if self.hosts[host].pids():
                self.hosts.power_off(host)
            self._reap(host)


@asynccontextmanager
async def hosted(folder: Path, *names: str, gateway: str = "") -> AsyncIterator[HostedCluster]:
    """Hosts of these names with a daemon each, `store` with etcd, and a gateway on the host that is named."""
    with hosts(*names, STORE) as made:
        cluster = HostedCluster(folder, made, names)
        try:
            await cluster.start_etcd()
            for noded in cluster.daemons.values():
                noded.start(stop_groups=False)
            if gateway:
                await cluster.start_gateway(gateway)
            for name in names:
                await cluster.registered(name)
            yield cluster
        finally:
            await cluster.close()
