"""`infctl-noded install`: units of this installation that systemd accepts; nothing of an operator's is overwritten."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infctl.config.load import load_gateway_config, load_node_config
from infctl_daemon.node import install

UNIT = "etc/systemd/system/infctl-noded.service"
BIN = Path(sys.executable).parent

needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def run(*words: str) -> int:
    return install.main(list(words))


def test_print_shows_unit_and_configuration_with_our_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--print") == 0
    out = capsys.readouterr().out
    assert f"ExecStart={BIN}/infctl-noded --config /etc/infctl/node.yaml\n" in out
    assert re.findall(r"^# (/\S+)$", out, re.MULTILINE) == [f"/{UNIT}", "/etc/infctl/node.yaml"]
    assert "@" not in re.sub(r"@(clock|cpu|debug|mount|obsolete|raw|reboot|swap)", "", out)


def test_what_is_printed_is_what_is_written_and_the_daemons_can_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, name in (([], "noded"), (["--gateway", "--force"], "gateway")):
        words = [*more, "--root", str(tmp_path), "--endpoints", "a:1, b:2", "--cluster", "blue"]
        assert run("--print", *words) == 0
        printed = capsys.readouterr().out
        assert run(*words) == 0
        for path in re.findall(r"^# (/etc/\S+)$", printed, re.MULTILINE):
            assert (tmp_path / path.lstrip("/")).read_text() in printed
        assert f"systemctl enable --now infctl-{name}" in capsys.readouterr().out
    node, gateway = load_node_config(tmp_path / "etc/infctl/node.yaml"), tmp_path / "etc/infctl/gateway.yaml"
    assert (node.endpoints, node.cluster) == (["a:1", "b:2"], "blue")
    assert load_gateway_config(gateway).endpoints == ["a:1", "b:2"]


def test_a_unit_changed_by_hand_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ("--root", str(tmp_path))
    assert run(*root) == 0
    unit = tmp_path / UNIT
    ours = unit.read_text()
    unit.write_text(ours.replace("RestartSec=2", "RestartSec=9"))
    capsys.readouterr()
    assert run(*root) == 6
    assert "was changed by hand" in (said := capsys.readouterr().err) and "systemctl edit" in said
    assert "RestartSec=9" in unit.read_text()
    assert run(*root, "--force") == 0
    assert unit.read_text() == ours


def test_a_unit_of_an_earlier_version_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = tmp_path / UNIT
    unit.parent.mkdir(parents=True)
    unit.write_text(install.signed("[Unit]\nDescription=what an earlier version wrote\n"))
    assert run("--root", str(tmp_path)) == 0
    assert f"replaced  /{UNIT}" in capsys.readouterr().out
    assert "Type=notify" in unit.read_text()
    assert run("--root", str(tmp_path)) == 0
    assert f"unchanged /{UNIT}" in capsys.readouterr().out


def test_the_configuration_that_is_there_is_kept_and_its_folders_may_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "etc/infctl/node.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("stateDir: '/data/my state'\nendpoints: ['a:1']\n")
    assert run("--root", str(tmp_path), "--force") == 0
    assert config.read_text().startswith("stateDir: '/data/my state'")
    assert 'ReadWritePaths=/tmp /var/tmp "/data/my state"\n' in (tmp_path / UNIT).read_text()
    config.write_text("statedir: /x\n")
    capsys.readouterr()
    assert run("--root", str(tmp_path)) == 2
    assert "did you mean stateDir?" in capsys.readouterr().err


def test_others_than_root_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run() == 77
    assert "only root may write /etc/systemd/system" in capsys.readouterr().err
    assert run("--print") == 0


def test_a_gateway_that_its_user_cannot_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = tmp_path / "hidden"
    (hidden / "bin").mkdir(parents=True)
    hidden.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(hidden / "bin" / "python"))
    assert run("--gateway", "--root", str(tmp_path)) == 2
    assert "error: the gateway " in (said := capsys.readouterr().err) and "install infctl where every user" in said
    assert not (tmp_path / "etc").exists()


def test_paths_with_blanks_and_percents_stay_one_word() -> None:
    assert install.quoted(Path("/a b/50%")) == '"/a b/50%%"'


@needs_analyze
@pytest.mark.parametrize(("words", "most"), [(["--force"], 5.8), (["--gateway", "--force"], 2.0)])
def test_systemd_accepts_the_unit_and_calls_it_no_more_exposed_than_it_must_be(
    words: list[str], most: float, tmp_path: Path
) -> None:
    assert run("--root", str(tmp_path), *words) == 0
    unit = str(next((tmp_path / "etc/systemd/system").iterdir()))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert (verified.returncode, verified.stderr) == (0, "")
    argv = ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    score = float(re.search(r"exposure level for .*: ([\d.]+)", told.stdout)[1])  # type: ignore[index]
    assert score <= most, told.stdout
