"""`infctl config`: it shows and chooses contexts, says when something else counts, and never asks a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.command import Run

FILE = """\
current = "dev"

[contexts.big]
endpoints = ["h1:2379", "h2:2379"]
cluster = "east"

[contexts.dev]
endpoints = ["127.0.0.1:1"]
cluster = "default"
"""


@pytest.fixture
def config(tmp_path: Path) -> Run:
    """`infctl config ...` with two contexts, whose clusters do not exist."""
    home = tmp_path / "c" / "infctl"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(FILE)

    def run(*words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("INFCTL_")}
        full = {**clean, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "c"), **env}
        argv = [sys.executable, "-m", "infctl.cli.entry", "config", *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, env=full, input=stdin)

    return run


def test_contexts_are_listed(config: Run) -> None:
    assert config("get-contexts").stdout == (
        "CURRENT   NAME   CLUSTER   ENDPOINTS\n"
        "          big    east      h1:2379,h2:2379\n"
        "*         dev    default   127.0.0.1:1\n"
    )
    assert config("get-contexts", "-o", "name").stdout == "big\ndev\n"
    document = json.loads(config("get-contexts", "-o", "json").stdout)
    assert [(c["metadata"]["name"], c["status"]["current"]) for c in document["items"]] == [
        ("big", False),
        ("dev", True),
    ]
    assert yaml.safe_load(config("get-contexts", "-o", "yaml").stdout) == document


def test_a_context_is_chosen(config: Run, tmp_path: Path) -> None:
    assert config("current-context").stdout == "dev\n"
    done = config("use-context", "big")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "context big is now the current one (cluster east at h1:2379,h2:2379)\n"
    assert config("current-context").stdout == "big\n"
    assert (tmp_path / "c" / "infctl" / "config.toml").read_text() == FILE.replace('"dev"', '"big"', 1)
    assert "was the current one already" in config("use-context", "big").stdout


def test_an_unknown_context_names_the_known_ones(config: Run) -> None:
    done = config("use-context", "bog")
    assert (done.returncode, done.stdout) == (2, "")
    assert "  reason: NoContext\n  hint: known contexts: big, dev\n" in done.stderr
    assert config("current-context", INFCTL_CONTEXT="bog").returncode == 2


def test_what_wins_over_the_file_is_said(config: Run) -> None:
    assert config("current-context", INFCTL_CONTEXT="big").stdout == "big\n"
    assert config("use-context", "dev", INFCTL_CONTEXT="big").stderr == "note: INFCTL_CONTEXT=big wins over the file\n"
    assert config("get-contexts", INFCTL_ENDPOINTS="e:1").stderr == "note: INFCTL_ENDPOINTS=e:1 wins over the file\n"
    assert config("view").stdout.endswith("\n\n# commands speak to cluster default at 127.0.0.1:1 (context dev)\n")
    told = config("view", INFCTL_ENDPOINTS="e:1", INFCTL_CLUSTER="west").stdout
    assert told.endswith("# commands speak to cluster west at e:1 (INFCTL_ENDPOINTS)\n")
    assert json.loads(config("view", "-o", "json").stdout)["effective"] == {
        "endpoints": ["127.0.0.1:1"],
        "cluster": "default",
        "origin": "context dev",
        "etcdTls": None,
        "readTokenFile": None,
    }


def test_the_view_is_the_file(config: Run, tmp_path: Path) -> None:
    place = tmp_path / "c" / "infctl" / "config.toml"
    assert config("view").stdout.startswith(f"# {place}\n{FILE}\n")


def test_no_file_at_all(config: Run, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "nowhere")
    done = config("get-contexts", XDG_CONFIG_HOME=elsewhere)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"no contexts in {elsewhere}/infctl/config.toml; infctl dev up makes one\n"
    assert config("current-context", XDG_CONFIG_HOME=elsewhere).returncode == 5
    assert "commands speak to no cluster" in config("view", XDG_CONFIG_HOME=elsewhere).stdout
    assert json.loads(config("view", "-o", "json", XDG_CONFIG_HOME=elsewhere).stdout)["effective"] is None


def test_a_broken_file_is_said_with_its_place(config: Run, tmp_path: Path) -> None:
    (tmp_path / "c" / "infctl" / "config.toml").write_text('current = "x"\n[contexts.a]\nendpoint = []\n')
    done = config("use-context", "a")
    assert (done.returncode, done.stdout) == (2, "")
    assert "contexts.a.endpoint: unknown key" in done.stderr
    assert "current: no context 'x' (known: a)" in done.stderr


def test_versions_in_every_form(infctl: Run) -> None:
    from infctl import __version__

    assert infctl("version").stdout == infctl("--version").stdout == f"infctl {__version__}\n"
    assert infctl("version", "--short").stdout == f"{__version__}\n"
    assert json.loads(infctl("version", "-o", "json").stdout)["version"] == __version__
    assert yaml.safe_load(infctl("version", "-o", "yaml").stdout)["kind"] == "Version"
    done = infctl("version", "-o", "xml")
    assert (done.returncode, done.stdout) == (2, "")
