"""`infctl dev up --etcd 3`: three real members, each of them may die, and `down` leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from infctl.adapters.etcd_server import start_ticks
from tests.support.command import Run

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Run]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("INFCTL_")}
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "s"), "XDG_CONFIG_HOME": str(tmp_path / "c")}

    def run(*words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "infctl.cli.entry", *words]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=90, env={**clean, **home, **env}, input=stdin
        )

    yield run
    run("dev", "down")


def parts(dev: Run) -> dict[str, list[str]]:
    """The words of each line of `dev status`, by name."""
    return {line.split()[0]: line.split()[1:] for line in dev("dev", "status").stdout.splitlines()}


def arguments(pid: str) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def test_a_dev_cluster_on_three_members_outlives_one_and_up_brings_it_back(dev: Run, tmp_path: Path) -> None:
    up = dev("dev", "up", "--etcd", "3")
    assert up.returncode == 0, up.stderr
    found = parts(dev)
    names = [f"etcd-{n}" for n in (1, 2, 3)]
    assert list(found) == [*names, "noded", "gateway"]
    endpoints = [found[name][2] for name in names]
    context = tomllib.loads((tmp_path / "c" / "infctl" / "config.toml").read_text())["contexts"]["dev"]
    assert context["endpoints"] == endpoints
    for name in ("noded", "gateway"):
        given = arguments(found[name][1])
        assert given[given.index("--endpoints") + 1] == ",".join(endpoints)

    os.kill(int(found["etcd-1"][1]), signal.SIGKILL)
    assert dev("get", "groups").returncode == 0, "the command line asks the next member"
    status = dev("dev", "status")
    assert status.returncode == 1 and "etcd-1   not running" in status.stdout
    again = dev("dev", "up")  # without saying how many
    assert again.returncode == 0, again.stderr
    now = parts(dev)
    assert [now[name][2] for name in names] == endpoints and now["etcd-1"][1] != found["etcd-1"][1]
    assert all(now[name] == found[name] for name in (*names[1:], "noded", "gateway"))

    other = dev("dev", "up", "--etcd", "1")
    assert other.returncode == 6 and "OtherEtcd" in other.stderr
    assert dev("dev", "up", "--etcd", "2").returncode == 2
    down = dev("dev", "down")
    assert down.returncode == 0 and "etcd-1, etcd-2, etcd-3, 8 engine processes" in down.stdout, down.stderr
    assert [start_ticks(int(words[1])) for words in now.values()] == [None] * 5
    assert [words[0] for words in parts(dev).values()] == ["not"] * 5
