"""Mutual TLS against a real etcd, every version found: the files work, each wrong one is named, and roles are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from infctl.adapters.etcd import EtcdStore, TlsFiles
from infctl.adapters.etcd.tls import credentials, own_fault, validity
from infctl.adapters.etcd_binary import EtcdBinary
from infctl.domain.errors import ConfigError, StoreUnavailable
from infctl.ports.store import Alive, Compare, Delete, Interrupted, Put
from tests.support.certs import HAVE_OPENSSL, Authority, answering, etcdctl, tls_etcd
from tests.support.etcd import BINARIES, Reader, live_etcd

pytestmark = [
    pytest.mark.skipif(not BINARIES, reason="no etcd on this machine"),
    pytest.mark.skipif(not HAVE_OPENSSL, reason="no openssl to make certificates with"),
]

every_etcd = pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: binary.version_text)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("tls") / "ours")
    for name in ("server", "client"):
        authority.issue(name)
    authority.issue("old", expired=True)
    authority.issue("named", host="DNS:etcd.example")
    return authority


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("tls") / "foreign")
    authority.issue("client")
    return authority


@asynccontextmanager
async def tls_store(endpoint: str, files: TlsFiles | None) -> AsyncIterator[EtcdStore]:
    store = EtcdStore([endpoint], tls=files)
    try:
        yield store
    finally:
        await store.close()


@every_etcd
async def test_calls_and_watches_work_over_mutual_tls(ours: Authority, binary: EtcdBinary, tmp_path: Path) -> None:
    async with (
        tls_etcd(binary, tmp_path, ours, "server") as endpoint,
        tls_store(f"https://{endpoint}", ours.files("client")) as store,
    ):
        await answering(store)
        revision = await store.put("k", b"v")
        reader = Reader(store.watch("k", start_revision=revision))
        await reader.until_keys("k")
        await reader.until(lambda r: r.count(Alive))
        lease = await store.grant(5)
        assert await store.keep_alive(lease.id) == lease.ttl_s
        await reader.close()


@every_etcd
async def test_each_way_in_which_tls_fails_is_named_with_what_to_do(
    ours: Authority, foreign: Authority, binary: EtcdBinary, tmp_path: Path
) -> None:
    client, theirs = ours.files("client"), foreign.files("client", ca=ours.folder / "ca.pem")
    cases = [
        # server's certificate, our files, what it is called, in the message, in the hint
        ("old", client, "StoreCertificateExpired", "server has expired", "renew"),
        ("server", ours.files("old"), "StoreCertificateExpired", "old.pem expired at 2020-01-02", "date"),
        ("server", ours.files("client", ca=foreign.folder / "ca.pem"), "StoreUnknownCa", "do not trust", "CA file"),
        ("server", theirs, "StoreClientCertificateRefused", "refuses our client", "--trusted-ca-file"),
        ("server", ours.files(), "StoreClientCertificateRefused", "no client certificate", "--trusted-ca-file"),
        ("named", client, "StoreHostMismatch", "another host name", "subjectAltName"),
    ]

    async def fails(number: int, server: str, files: TlsFiles, reason: str, message: str, hint: str) -> None:
        async with (
            tls_etcd(binary, tmp_path / str(number), ours, server) as endpoint,
            tls_store(endpoint, files) as store,
        ):
            for call in (store.get("k", timeout=5), store.put("k", b"", timeout=5), store.keep_alive(1)):
                with pytest.raises(StoreUnavailable) as caught:
                    await call
                assert caught.value.reason == reason, caught.value.message
                assert message in caught.value.message and hint in caught.value.hint
            watch = store.watch("k", start_revision=0)
            async with asyncio.timeout(5):
                told = await anext(watch)
            assert isinstance(told, Interrupted) and message in told.reason
            await watch.aclose()

    async def right_name() -> None:
        files = ours.files("client", server_name="etcd.example")
        async with tls_etcd(binary, tmp_path / "name", ours, "named") as endpoint, tls_store(endpoint, files) as store:
            await answering(store)

    async with asyncio.timeout(50):
        await asyncio.gather(*(fails(n, *case) for n, case in enumerate(cases)), right_name())


@every_etcd
async def test_tls_towards_a_plain_etcd_and_the_other_way_round_say_so(
    ours: Authority, binary: EtcdBinary, tmp_path: Path
) -> None:
    async with tls_etcd(binary, tmp_path, ours, "server") as endpoint:
        async with tls_store(endpoint, ours.files("client")) as store:
            await answering(store)
        async with tls_store(f"http://{endpoint}", None) as store:
            with pytest.raises(StoreUnavailable) as caught:
                await store.get("k", timeout=2)
            assert "https://" in caught.value.hint
    async with (
        live_etcd(binary, tmp_path / "plain") as etcd,
        tls_store(f"https://{etcd.endpoint}", ours.files("client")) as store,
    ):
        with pytest.raises(StoreUnavailable) as caught:
            await store.get("k", timeout=2)
        assert caught.value.reason == "StoreTlsFailed" and "http://" in caught.value.hint


@every_etcd
async def test_a_daemons_certificate_writes_only_what_its_role_allows(
    ours: Authority, binary: EtcdBinary, tmp_path: Path
) -> None:
    """The CN is the user: no password, no token that could expire."""
    ours.issue("root-user", cn="root")
    ours.issue("daemon", cn="node-n1")
    ours.issue("nobody", cn="nobody")
    root = ours.files("root-user")
    async with tls_etcd(binary, tmp_path, ours, "server") as endpoint:
        async with tls_store(endpoint, root) as store:
            await answering(store)
            start = await store.put("/c/nodes/n2/lease", b"")
        for words in (
            "user add root --no-password",
            "user grant-role root root",
            "user add node-n1 --no-password",
            "role add node-n1",
            "role grant-permission node-n1 --prefix=true readwrite /c/nodes/n1/",
            "role grant-permission node-n1 --prefix=true read /c/pools/",
            "user grant-role node-n1 node-n1",
            "auth enable",
        ):
            await asyncio.to_thread(etcdctl, endpoint, root, *words.split())
        async with tls_store(endpoint, ours.files("daemon")) as store:
            lease = await store.grant(10)
            mine = "/c/nodes/n1/lease"
            await store.put(mine, b"", lease=lease.id)
            held = Compare.held_by(mine, lease.id)
            assert (await store.txn((held,), (Put("/c/nodes/n1/status", b""),))).succeeded
            assert await store.keep_alive(lease.id) > 0 and (await store.range("/c/pools/")).kvs == ()
            reader = Reader(store.watch("/c/nodes/n1/", start_revision=start))
            await reader.until(lambda r: len(r.events) == 2)
            for call in (
                store.put("/c/nodes/n2/lease", b"stolen"),
                store.txn((held,), (Put(mine, b""), Put("/c/pools/p", b""))),
                store.txn((), (Delete("/c/nodes/", prefix=True),)),
                store.get("/c/secrets/a"),
                store.range("/c/"),
            ):
                with pytest.raises(StoreUnavailable) as caught:
                    await call
                assert caught.value.reason == "StorePermissionDenied" and "role" in caught.value.hint
            for revision in (0, start):
                refused = store.watch("/c/nodes/", start_revision=revision)
                async with asyncio.timeout(5):
                    told = await anext(refused)
                assert isinstance(told, Interrupted) and "permission denied" in told.reason
                await refused.aclose()
            assert [event.key for event in reader.events] == [mine, "/c/nodes/n1/status"]
            await reader.close()
            await store.revoke(lease.id)
        async with tls_store(endpoint, ours.files("nobody")) as store:
            with pytest.raises(StoreUnavailable) as caught:
                await store.put("/c/nodes/n1/lease", b"")
            assert caught.value.reason == "StorePermissionDenied"
        async with tls_store(endpoint, root) as store:
            kv = await store.get("/c/nodes/n2/lease")
            assert kv and kv.value == b"" and await store.get("/c/nodes/n1/lease") is None


def test_the_dates_of_a_certificate_are_read(ours: Authority) -> None:
    begins, ends = validity((ours.folder / "old.pem").read_text())
    assert (begins, ends) == (datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC))
    begins, ends = validity((ours.folder / "ca.pem").read_text())
    assert begins <= datetime.now(UTC) < ends
    assert own_fault(ours.files("client"), datetime.now(UTC)) == ""
    assert "not valid before" in own_fault(ours.files("client"), datetime(2000, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_certificate_has_no_dates(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        validity(text)
    (tmp_path / "bad.pem").write_text(text)
    assert own_fault(TlsFiles(cert=tmp_path / "bad.pem"), datetime.now(UTC)) == ""


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.pem"):
        credentials(TlsFiles(ca=tmp_path / "nothing.pem"))
