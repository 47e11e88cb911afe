"""The command line against an etcd that asks for certificates: it works, and every wrong file is named."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infctl.adapters.etcd import EtcdStore
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import PoolSpec
from tests.support.certs import HAVE_OPENSSL, Authority, answering, tls_etcd
from tests.support.etcd import BINARIES

pytestmark = [
    pytest.mark.skipif(not BINARIES, reason="no etcd on this machine"),
    pytest.mark.skipif(not HAVE_OPENSSL, reason="no openssl to make certificates with"),
]

Infctl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("tls") / "ours")
    for name in ("server", "client", "other"):
        authority.issue(name)
    authority.issue("old", expired=True)
    (authority.folder / "text.pem").write_text("no certificate\n")
    authority.lock("client", "secret", "locked.key")
    Authority(authority.folder / "foreign").issue("client")
    return authority


@pytest.fixture(scope="module")
def etcd(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port; the server lives in a loop of its own, in a thread."""
    folder = tmp_path_factory.mktemp("etcd")
    found: list[str] = []
    up, down = threading.Event(), threading.Event()

    async def serve() -> None:
        async with tls_etcd(BINARIES[0], folder, ours, "server") as endpoint:
            store = EtcdStore([endpoint], tls=ours.files("client"))
            await answering(store)
            await store.put(Keys("default").pool_spec("p"), encode(PoolSpec(name="p", model="llama")))
            await store.close()
            found.append(endpoint)
            up.set()
            await asyncio.to_thread(down.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert up.wait(20)
        yield found[0]
    finally:
        down.set()
        thread.join(20)


@pytest.fixture
def infctl(etcd: str, tmp_path: Path) -> Infctl:
    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("INFCTL_")}
        full = {**clean, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "c"), **env}
        argv = [sys.executable, "-m", "infctl.cli.entry", *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, env=full)

    return run


def given(folder: Path, ca: str, cert: str, key: str) -> dict[str, str]:
    words = {"INFCTL_ETCD_CA": ca, "INFCTL_ETCD_CERT": cert, "INFCTL_ETCD_KEY": key}
    return {name: str(folder / word) for name, word in words.items() if word}


def test_certificates_of_the_environment_go_with_endpoints_of_a_flag(
    infctl: Infctl, etcd: str, ours: Authority
) -> None:
    files = given(ours.folder, "ca.pem", "client.pem", "client.key")
    done = infctl("get", "pools", "-o", "name", "--endpoints", etcd, **files)
    assert (done.returncode, done.stdout, done.stderr) == (0, "pool/p\n", "")
    again = infctl("get", "pools", "-o", "name", INFCTL_ENDPOINTS=f"https://{etcd}", **files)
    assert (again.returncode, again.stdout) == (0, "pool/p\n")


def test_a_context_has_its_own_relative_to_its_file(infctl: Infctl, etcd: str, ours: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "c" / "infctl"
    folder.mkdir(parents=True)
    for name in ("ca.pem", "client.pem", "client.key"):
        (folder / name).write_bytes((ours.folder / name).read_bytes())
    text = f'current = "prod"\n[contexts.prod]\nendpoints = ["{etcd}"]\ncluster = "default"\nca = "ca.pem"\n'
    (folder / "config.toml").write_text(text + 'cert = "client.pem"\nkey = "client.key"\n')
    wrong = given(ours.folder / "foreign", "ca.pem", "client.pem", "client.key")
    done = infctl("get", "pools", "-o", "name", **wrong)
    assert (done.returncode, done.stdout) == (0, "pool/p\n"), done.stderr
    view = json.loads(infctl("config", "view", "-o", "json").stdout)
    told = {"ca": str(folder / "ca.pem"), "cert": str(folder / "client.pem"), "key": str(folder / "client.key")}
    assert view["effective"]["etcdTls"] == view["contexts"][0]["spec"]["etcdTls"] == {**told, "serverName": None}
    assert f"as {folder}/client.pem (context prod)" in infctl("config", "view").stdout


def test_a_tab_press_gets_names_over_tls(infctl: Infctl, etcd: str, ours: Authority, tmp_path: Path) -> None:
    files = given(ours.folder, "ca.pem", "client.pem", "client.key")
    script = (
        "from infctl.client import names; names.DEADLINE = 10.0; "
        f"print(names.known_names('pool', {etcd!r}), names.known_names('pool', 'https://{etcd}'))"
    )
    env = {**os.environ, **files, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, env=env)
    assert done.stdout == "['p'] ['p']\n", done.stderr


@pytest.mark.parametrize(
    ("ca", "cert", "key", "reason", "message", "hint"),
    [
        ("ca.pem", "old.pem", "old.key", "StoreCertificateExpired", "old.pem expired at 2020-01-02", "in date"),
        ("foreign/ca.pem", "client.pem", "client.key", "StoreUnknownCa", "signed by a CA that we do not trust", "CA"),
        ("ca.pem", "foreign/client.pem", "foreign/client.key", "StoreClientCertificateRefused", "refuses", "CA"),
        ("ca.pem", "", "", "StoreClientCertificateRefused", "we have no client certificate", "--trusted-ca-file"),
    ],
)
def test_what_etcd_refuses_is_named_as_such(
    infctl: Infctl, etcd: str, ours: Authority, ca: str, cert: str, key: str, reason: str, message: str, hint: str
) -> None:
    done = infctl("get", "pools", "--endpoints", etcd, **given(ours.folder, ca, cert, key))
    assert (done.returncode, done.stdout) == (3, "")
    assert f"  reason: {reason}\n" in done.stderr
    assert message in done.stderr and hint in done.stderr.partition("hint: ")[2]


@pytest.mark.parametrize(
    ("ca", "cert", "key", "message"),
    [
        ("nowhere.pem", "client.pem", "client.key", "nowhere.pem: No such file or directory"),
        ("text.pem", "client.pem", "client.key", "text.pem holds no PEM certificates"),
        ("ca.pem", "client.pem", "", "a certificate needs its key: key is missing"),
        ("ca.pem", "", "client.key", "a key needs its certificate: cert is missing"),
        ("ca.pem", "client.pem", "other.key", "client.pem cannot be used with"),
        ("ca.pem", "client.pem", "locked.key", "without a password (it has a password)"),
        ("ca.pem", "text.pem", "client.key", "text.pem cannot be used with"),
    ],
)
def test_files_that_cannot_work_are_a_matter_of_configuration(
    infctl: Infctl, etcd: str, ours: Authority, ca: str, cert: str, key: str, message: str
) -> None:
    done = infctl("get", "pools", "--endpoints", etcd, **given(ours.folder, ca, cert, key))
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: TLS for etcd (--endpoints): " in done.stderr and message in done.stderr
    assert "PRIVATE" not in done.stderr
