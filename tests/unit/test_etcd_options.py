"""Where a daemon finds etcd: flags beat the environment beats the file, certificates come whole from one of them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from infctl.config.load import load_node_config
from infctl.config.store_tls import VARIABLES
from infctl.domain.errors import ConfigError
from infctl_daemon.runtime import etcd_options
from infctl_daemon.runtime.etcd_options import EtcdAt, add_etcd_options, find_etcd

FILE = """\
endpoints: ["file:1"]
etcdTls: {ca: /file/ca, cert: /file/cert, key: /file/key, serverName: etcd.example}
"""


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INFCTL_ENDPOINTS", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(etcd_options, "check_files", lambda files, origin: files)


def found(tmp_path: Path, *flags: str, file: str = FILE) -> EtcdAt:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    add_etcd_options(parser)
    config = tmp_path / "node.yaml"
    config.write_text(file)
    return find_etcd(parser.parse_args([*flags, "--config", str(config)]), load_node_config(config))


def words(at: EtcdAt) -> tuple[str, ...]:
    assert at.tls is not None
    return (str(at.tls.ca), str(at.tls.cert), str(at.tls.key), at.tls.server_name)


def test_the_file_alone(tmp_path: Path) -> None:
    at = found(tmp_path)
    assert at.endpoints == ("file:1",)
    assert words(at) == ("/file/ca", "/file/cert", "/file/key", "etcd.example")


def test_the_environment_replaces_all_certificates_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFCTL_ENDPOINTS", "env:1, env:2")
    monkeypatch.setenv("INFCTL_ETCD_CA", "/env/ca")
    at = found(tmp_path)
    assert at.endpoints == ("env:1", "env:2")
    assert words(at) == ("/env/ca", "None", "None", "")


def test_a_flag_replaces_all_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFCTL_ENDPOINTS", "env:1")
    monkeypatch.setenv("INFCTL_ETCD_CA", "/env/ca")
    at = found(tmp_path, "--endpoints", "flag:1", "--etcd-cert", "/flag/cert", "--etcd-key", "/flag/key")
    assert at.endpoints == ("flag:1",)
    assert words(at) == ("None", "/flag/cert", "/flag/key", "")


def test_no_certificates_is_no_tls_and_no_endpoint_is_an_error(tmp_path: Path) -> None:
    assert found(tmp_path, file="endpoints: ['a:1']\n") == EtcdAt(("a:1",))
    with pytest.raises(ConfigError, match="no etcd endpoint") as caught:
        found(tmp_path, file="")
    assert "--endpoints, INFCTL_ENDPOINTS" in caught.value.hint


def test_half_a_pair_is_said_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"node\.yaml:2: etcdTls: a certificate needs its key: key is missing"):
        found(tmp_path, file="endpoints: ['a:1']\netcdTls: {cert: /c}\n")
    with pytest.raises(ConfigError, match=r"did you mean serverName"):
        found(tmp_path, file="etcdTls: {servername: x}\n")
