"""Mutual TLS against a real etcd: the files work, and without them nothing does."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from infctl.adapters.etcd import EtcdStore, TlsFiles
from infctl.domain.errors import ConfigError, StoreUnavailable
from infctl.ports.store import Alive
from tests.support.etcd import BINARIES, Reader
from tests.support.net import free_ports

pytestmark = [
    pytest.mark.skipif(not BINARIES, reason="no etcd on this machine"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with"),
]


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem`, and a pair for `server` (127.0.0.1) and `client`."""
    folder = tmp_path_factory.mktemp("tls")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    _openssl(folder, "req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test CA")
    for name in ("server", "client"):
        subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        _openssl(folder, "req", *curve[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", *subject)
        signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        (folder / "san").write_text("subjectAltName=IP:127.0.0.1")
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem", "-extfile", "san")
    return folder


@pytest.fixture(scope="module")
def endpoint(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    client, peer = free_ports(2)
    folder = tmp_path_factory.mktemp("etcd-tls")
    argv = [str(BINARIES[-1].path), "--data-dir", str(folder / "data"), "--heartbeat-interval", "10"]
    argv += ["--election-timeout", "100", "--client-cert-auth", "--trusted-ca-file", str(certificates / "ca.pem")]
    argv += ["--cert-file", str(certificates / "server.pem"), "--key-file", str(certificates / "server.key")]
    for flag in ("--listen-client-urls", "--advertise-client-urls"):
        argv += [flag, f"https://127.0.0.1:{client}"]
    for flag in ("--listen-peer-urls", "--initial-advertise-peer-urls"):
        argv += [flag, f"http://127.0.0.1:{peer}"]
    argv += ["--initial-cluster", f"default=http://127.0.0.1:{peer}"]
    with open(folder / "log", "wb") as log, subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder) as process:
        try:
            yield f"127.0.0.1:{client}"
        finally:
            process.kill()


@pytest.fixture
async def stores() -> AsyncIterator[list[EtcdStore]]:
    made: list[EtcdStore] = []
    yield made
    for store in made:
        await store.close()


def _files(folder: Path, **changed: Path | None) -> TlsFiles:
    files = {"ca": folder / "ca.pem", "cert": folder / "client.pem", "key": folder / "client.key"}
    return TlsFiles(**{**files, **changed})


async def _ready(store: EtcdStore) -> None:
    for _ in range(20):
        try:
            await store.get("k", timeout=1)
            return
        except StoreUnavailable:
            continue
    raise AssertionError("etcd with TLS did not start")


async def test_calls_and_watches_work_over_mutual_tls(
    certificates: Path, endpoint: str, stores: list[EtcdStore]
) -> None:
    stores.append(store := EtcdStore([f"https://{endpoint}"], tls=_files(certificates)))
    await _ready(store)
    revision = await store.put("k", b"v")
    reader = Reader(store.watch("k", start_revision=revision))
    await reader.until_keys("k")
    await reader.until(lambda r: r.count(Alive))
    lease = await store.grant(5)
    assert await store.keep_alive(lease.id) == lease.ttl_s
    await reader.close()


async def test_the_server_name_may_differ_from_the_address(
    certificates: Path, endpoint: str, stores: list[EtcdStore]
) -> None:
    files = TlsFiles(certificates / "ca.pem", certificates / "client.pem", certificates / "client.key", "127.0.0.1")
    stores.append(store := EtcdStore([f"localhost:{endpoint.rpartition(':')[2]}"], tls=files))
    await _ready(store)


async def test_without_a_certificate_or_with_another_ca_nothing_is_answered(
    certificates: Path, endpoint: str, stores: list[EtcdStore]
) -> None:
    for files in (
        _files(certificates, cert=None, key=None),
        _files(certificates, ca=certificates / "client.pem"),
        None,
    ):
        stores.append(store := EtcdStore([endpoint], tls=files))
        with pytest.raises(StoreUnavailable):
            await store.get("k", timeout=1.5)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.pem"):
        TlsFiles(ca=tmp_path / "nothing.pem").credentials()
