"""check-config of both daemons: every problem at once, and for every value in use where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infctl.config.store_tls import VARIABLES
from infctl_daemon.gateway.main import main as gateway
from infctl_daemon.node.main import main as noded
from tests.support.certs import HAVE_OPENSSL, Authority

Main = Callable[[list[str]], int]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INFCTL_ENDPOINTS", *VARIABLES):
        monkeypatch.delenv(name, raising=False)


def write(folder: Path, text: str) -> str:
    path = folder / "x.yaml"
    path.write_text(text)
    return str(path)


def rows(text: str) -> dict[str, tuple[str, str]]:
    return {key: (value, origin) for key, value, origin in (line.split(None, 2) for line in text.splitlines())}


def test_every_value_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "endpoints: ['f:1']\ncluster: blue\nnode: n1\nlimits:\n  stallSeconds: 3\n")
    monkeypatch.setenv("INFCTL_ENDPOINTS", "e:1,e:2")
    assert noded(["check-config", file, "--node", "n2", "--log-level", "debug"]) == 0
    found = rows(capsys.readouterr().out)
    assert found["cluster"] == ("blue", f"{file}:2")
    assert found["node"] == ("n2", "--node")
    assert found["endpoints"] == ("e:1,e:2", "INFCTL_ENDPOINTS")
    assert found["limits.stallSeconds"] == ("3", f"{file}:5")
    assert found["limits.leaseTtlSeconds"] == ("10", "default")
    assert found["logLevel"] == ("debug", "--log-level")
    assert found["etcdTls.ca"] == ("-", "default")
    assert "kind" not in found and "apiVersion" not in found


@pytest.mark.skipif(not HAVE_OPENSSL, reason="openssl is not installed")
def test_certificates_come_whole_from_one_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "endpoints: ['f:1']\netcdTls: {ca: /nowhere/ca.pem, serverName: etcd}\n")
    assert noded(["check-config", file]) == 2
    assert "TLS for etcd" in (said := capsys.readouterr().err) and "/nowhere/ca.pem" in said
    ca = str(Authority(tmp_path / "ca").folder / "ca.pem")
    assert noded(["check-config", file, "--etcd-ca", ca]) == 0
    found = rows(capsys.readouterr().out)
    assert found["etcdTls.ca"] == (ca, "--etcd-*")
    assert found["etcdTls.serverName"] == ("-", "--etcd-*")


def test_every_problem_of_file_flags_and_certificates_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "endpoints: ['f:1']\nstatedir: /x\nlimits: {stallSeconds: 20, probeSeconds: x}\n")
    assert noded(["check-config", file, "--cluster", "B d", "--etcd-key", "/k"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line.strip() for line in captured.err.splitlines()]
    assert lines[0] == "error: 5 problems in the configuration"
    assert lines[1] == f"{file}:2: statedir: unknown key (did you mean stateDir?)"
    assert any("probeSeconds" in line for line in lines)
    assert any("stallSeconds (20 s) must be shorter than leaseTtlSeconds" in line for line in lines)
    assert any("cluster 'B d' is not a legal name" in line for line in lines)
    assert any("a key needs its certificate" in line for line in lines)
    assert not any("endpoint" in line for line in lines)


@pytest.mark.parametrize("main", [noded, gateway])
def test_no_file_is_one_problem_and_no_endpoint_another(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: no such file" in (said := capsys.readouterr().err) and "endpoint" not in said
    assert main(["check-config", write(tmp_path, "cluster: c\n")]) == 2
    assert "1 problem in" in (said := capsys.readouterr().err) and "no etcd endpoint is known" in said
    assert main(["check-config", write(tmp_path, "a: [\n")]) == 2
    assert "not valid YAML" in capsys.readouterr().err


def test_the_gateways_flags_are_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "endpoints: ['f:1']\nlisten: '0.0.0.0:9000'\n")
    words = ["check-config", "--config", file]
    assert gateway([*words, "--admin", "nowhere", "--snapshot-max-age", "-1"]) == 2
    said = capsys.readouterr().err
    assert "--admin: 'nowhere' is not HOST:PORT" in said and "--snapshot-max-age: -1" in said
    assert gateway([*words, "--admin", ":0"]) == 0
    found = rows(capsys.readouterr().out)
    assert found["listen"] == ("0.0.0.0:9000", f"{file}:2")
    assert found["admin"] == (":0", "--admin")
