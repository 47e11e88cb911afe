"""`infctl dev`: up, again up, a daemon killed, down; it stops what it started, whatever became of it meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Run

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


def living(folder: Path) -> list[str]:
    """Processes that were started with the folder in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                if str(folder) in (entry / "environ").read_text(errors="replace"):
                    found.append((entry / "cmdline").read_text(errors="replace").replace("\0", " "))
            except OSError:
                continue
    return found


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Run]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("INFCTL_")}
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "s"), "XDG_CONFIG_HOME": str(tmp_path / "c")}

    def run(*words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "infctl.cli.entry", *words]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=120, env={**clean, **home, **env}, input=stdin
        )

    yield run
    run("dev", "down")
    assert living(tmp_path) == []


def pids(dev: Run) -> dict[str, int]:
    found = {}
    for line in dev("dev", "status").stdout.splitlines():
        words = line.split()
        if words[1] == "pid":
            found[words[0]] = int(words[2])
    return found


def test_a_cluster_that_stays(dev: Run, tmp_path: Path) -> None:
    assert dev("dev", "status").returncode == 1
    up = dev("dev", "up")
    assert up.returncode == 0, up.stderr
    assert "simulated" in up.stderr
    gateway = up.stdout.split()[1]
    body = json.dumps({"model": "demo", "prompt": "The", "max_tokens": 3}).encode()
    with urllib.request.urlopen(f"{gateway}/v1/completions", body, timeout=30) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 3
    # the context that it wrote is enough for every other command
    groups = json.loads(dev("get", "groups", "-o", "json").stdout)["items"]
    assert [(g["metadata"]["name"], g["status"]["phase"]) for g in groups] == [("a", "Ready"), ("b", "Ready")]
    before = pids(dev)
    assert set(before) == {"etcd", "noded", "gateway"}
    again = dev("dev", "up")
    assert again.returncode == 0, again.stderr
    assert pids(dev) == before
    other = dev("dev", "up", "--engine", "sglang", XDG_CACHE_HOME=str(tmp_path / "empty"))
    assert other.returncode in (2, 6)
    # a daemon that was killed leaves its engines alone; down finds them all the same
    states = (tmp_path / "s" / "infctl" / "dev" / "node" / "groups").glob("*.json")
    held = [json.loads(state.read_text())["container"].partition(":")[2] for state in states]
    os.kill(before["noded"], signal.SIGKILL)
    down = dev("dev", "down")
    assert down.returncode == 0, down.stderr
    assert "gateway, etcd, 8 engine processes" in down.stdout
    assert living(tmp_path) == []
    assert len(held) == 2 and not any(Path(place).exists() for place in held if place.startswith("/"))
    assert dev("dev", "down").stdout == "nothing was running\n"
    assert dev("get", "groups").returncode == 2  # the context is gone


def test_a_pid_of_somebody_else_is_left_alone(dev: Run, tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        folder = tmp_path / "s" / "infctl" / "dev"
        folder.mkdir(parents=True)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        entries = [{"name": n, "pid": bystander.pid, "start": 1, "boot": boot} for n in ("noded", "gateway")]
        (folder / "processes.json").write_text(json.dumps(entries))
        state = {"group": "a", "boot_id": boot, "processes": [{"pid": bystander.pid, "start": 1, "title": ""}]}
        (folder / "node").mkdir()
        (folder / "node" / "a.json").write_text(json.dumps(state))
        assert dev("dev", "down").stdout == "nothing was running\n"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait(10)
