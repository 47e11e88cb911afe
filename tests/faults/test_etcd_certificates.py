"""Daemon and gateway against an etcd with certificates and roles: they serve; renewed files need no restart."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.certs import HAVE_OPENSSL, Authority, answering, etcdctl, tls_etcd
from tests.support.cluster import BIN, Cluster
from tests.support.etcd import BINARIES
from tests.support.witness import body, until, watch

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not BINARIES, reason="no etcd on this machine"),
    pytest.mark.skipif(not HAVE_OPENSSL, reason="no openssl to make certificates with"),
]


class Renewed:
    """The certificate files that daemon and gateway are given, and their exchange."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self.folder = authority.folder / "mine"
        self.folder.mkdir()
        words = {"ca": str(authority.folder / "ca.pem")} | {k: str(self.folder / f"me.{k}") for k in ("cert", "key")}
        for kind in ("NodeConfig", "GatewayConfig"):
            config = {"apiVersion": "infctl/v1", "kind": kind, "etcdTls": words}
            (self.folder / f"{kind}.yaml").write_text(json.dumps(config))

    def give(self, name: str) -> None:
        """Others take the place of those that are there, each at once."""
        for end, made in (("cert", "pem"), ("key", "key")):
            shutil.copy(self._authority.folder / f"{name}.{made}", self.folder / "fresh")
            os.replace(self.folder / "fresh", self.folder / f"me.{end}")

    def take(self) -> None:
        for end in ("cert", "key"):
            (self.folder / f"me.{end}").unlink()


def _enable_roles(endpoint: str, authority: Authority) -> None:
    """The roles of docs/etcd.md: the CN of a certificate is the user."""
    words = ["user add root --no-password", "user grant-role root root", "role add infctl"]
    words += ["role grant-permission infctl --prefix=true readwrite /infctl/v1/default/"]
    for cn in ("operator", "worker"):
        words += [f"user add {cn} --no-password", f"user grant-role {cn} infctl"]
    for line in (*words, "auth enable"):
        etcdctl(endpoint, authority.files("root"), *line.split())


@asynccontextmanager
async def secured(folder: Path) -> AsyncIterator[tuple[Cluster, Renewed, dict[str, str]]]:
    """An etcd that asks for certificates, and nothing else yet; the environment that makes `infctl` an operator."""
    authority = Authority(folder / "tls")
    for name in ("server", "operator", "worker", "root"):
        authority.issue(name)
    authority.issue("expired", expired=True)
    files, renewed = authority.files("operator"), Renewed(authority)
    async with tls_etcd(BINARIES[0], folder / "etcd", authority, "server") as endpoint:
        cluster = Cluster(folder, SimpleNamespace(endpoints=[endpoint]), False, files)
        cluster.daemon_flags = ["--config", str(renewed.folder / "NodeConfig.yaml")]
        cluster.gateway_flags = ["--config", str(renewed.folder / "GatewayConfig.yaml")]
        try:
            await answering(cluster.store)
            await asyncio.to_thread(_enable_roles, endpoint, authority)
            named = {"CA": files.ca, "CERT": files.cert, "KEY": files.key}
            yield cluster, renewed, {f"INFCTL_ETCD_{name}": str(path) for name, path in named.items()}
        finally:
            await cluster.close()


async def test_certificates_that_expired_are_named_and_renewed_ones_need_no_restart(tmp_path: Path) -> None:
    async with secured(tmp_path) as (cluster, renewed, operator):
        renewed.give("expired")
        cluster.start_daemon()
        await cluster.start_gateway()
        first = dict(cluster.processes)
        for name in ("noded", "gateway"):
            await until(lambda name=name: "me.cert expired at 2020-01-02" in cluster.log(name), 15, f"{name} says why")
        cluster.env |= operator
        await cluster.apply_groups(("a",), tp=2, sim=())
        renewed.take()
        await until(lambda: "cannot read a TLS file" in cluster.log("noded"), 15, "the daemon says what is missing")
        assert (await cluster.store.range(cluster.keys.nodes)).kvs == ()
        renewed.give("worker")
        await cluster.ready("a")
        seen = await watch(cluster.url, body(tokens=8))
        assert (len(seen.ids), seen.broken, seen.done) == (8, [], True)
        assert {name: p.poll() for name, p in first.items()} == {"noded": None, "gateway": None}
        assert cluster.processes == first


async def test_files_that_cannot_work_end_the_start_with_a_word(tmp_path: Path) -> None:
    async with secured(tmp_path) as (cluster, renewed, _):
        for program, kind in (("infctl-noded", "NodeConfig"), ("infctl-gateway", "GatewayConfig")):
            config = renewed.folder / f"{kind}.yaml"
            command = [str(BIN / program), "--config", str(config), "--state-dir", str(tmp_path / "state")]
            done = await asyncio.to_thread(
                subprocess.run, command, env=cluster.env, capture_output=True, text=True, timeout=20
            )
            assert done.returncode == 2
            assert f"TLS for etcd (etcdTls in {config}): {renewed.folder}/me.cert: No such file" in done.stderr
