"""Certificates made with openssl, good ones and every kind of bad one, and an etcd that asks for them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from infctl.adapters.etcd import EtcdStore, TlsFiles
from infctl.adapters.etcd_binary import EtcdBinary, packaged_etcd
from infctl.domain.errors import StoreUnavailable
from tests.support.net import free_ports

HAVE_OPENSSL = shutil.which("openssl") is not None
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_CA = """[ca]
default_ca = it
[it]
database = index
new_certs_dir = .
serial = serial
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
"""


class Authority:
    """A CA in a folder: `ca.pem`, and a pair for every name that was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._openssl("req", "-x509", *_CURVE, "-days", "2", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=CA")
        (folder / "index").write_text("")
        (folder / "serial").write_text("1000\n")
        (folder / "ca.conf").write_text(_CA)

    def issue(self, name: str, *, cn: str = "", host: str = "IP:127.0.0.1", expired: bool = False) -> Path:
        """`NAME.pem` and `NAME.key`; returns the certificate."""
        self._openssl("req", *_CURVE, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={cn or name}")
        (self.folder / "ext").write_text(f"subjectAltName={host}")
        dates = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"] if expired else ["-days", "2"]
        signing = ["-batch", "-config", "ca.conf", "-cert", "ca.pem", "-keyfile", "ca.key", "-notext", *dates]
        self._openssl("ca", *signing, "-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", "ext")
        return self.folder / f"{name}.pem"

    def files(self, name: str = "", *, ca: Path | None = None, server_name: str = "") -> TlsFiles:
        cert, key = (self.folder / f"{name}.pem", self.folder / f"{name}.key") if name else (None, None)
        return TlsFiles(ca or self.folder / "ca.pem", cert, key, server_name)

    def lock(self, name: str, password: str, to: str) -> None:
        """The key of `name` under a password."""
        self._openssl("ec", "-in", f"{name}.key", "-aes256", "-passout", f"pass:{password}", "-out", to)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True, timeout=30)


@contextlib.asynccontextmanager
async def tls_etcd(binary: EtcdBinary, folder: Path, authority: Authority, server: str) -> AsyncIterator[str]:
    """An etcd with the certificate `server` that takes only clients of the authority; yields host:port."""
    client, peer = free_ports(2)
    folder.mkdir(parents=True, exist_ok=True)
    argv = [str(binary.path), "--data-dir", str(folder / "data"), "--heartbeat-interval", "10"]
    argv += ["--election-timeout", "100", "--client-cert-auth"]
    argv += ["--trusted-ca-file", str(authority.folder / "ca.pem")]
    argv += ["--cert-file", str(authority.folder / f"{server}.pem")]
    argv += ["--key-file", str(authority.folder / f"{server}.key")]
    for flag in ("--listen-client-urls", "--advertise-client-urls"):
        argv += [flag, f"https://127.0.0.1:{client}"]
    for flag in ("--listen-peer-urls", "--initial-advertise-peer-urls"):
        argv += [flag, f"http://127.0.0.1:{peer}"]
    argv += ["--initial-cluster", f"default=http://127.0.0.1:{peer}"]
    with open(folder / "log", "wb") as log:
        process = await asyncio.create_subprocess_exec(*argv, stdout=log, stderr=log, cwd=folder)
        try:
            for _ in range(500):
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", client)
                    writer.close()
                    break
                await asyncio.sleep(0.02)
            yield f"127.0.0.1:{client}"
        finally:
            process.kill()
            await process.wait()


async def answering(store: EtcdStore) -> EtcdStore:
    """The store, once etcd answers it."""
    for _ in range(20):
        try:
            await store.status(timeout=1)
            return store
        except StoreUnavailable:
            await asyncio.sleep(0.05)
    raise AssertionError("etcd with TLS did not start")


def etcdctl(endpoint: str, files: TlsFiles, *arguments: str) -> None:
    packaged = packaged_etcd()
    program = str(packaged.with_name("etcdctl")) if packaged else "etcdctl"
    tls = ["--cacert", str(files.ca), "--cert", str(files.cert), "--key", str(files.key)]
    command = [program, "--endpoints", f"https://{endpoint}", *tls, *arguments]
    subprocess.run(command, env={"ETCDCTL_API": "3"}, check=True, capture_output=True, timeout=30)
