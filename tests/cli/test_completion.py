"""Completion: what TAB offers, in real shells too; silent and quick when the store is away or talks nonsense."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infctl.cli.commands.completion import SCRIPTS
from infctl.cli.complete import WORDS, offers
from infctl.client import names
from tests.support.command import Run
from tests.support.keyboard import Keyboard

ROOT = Path(__file__).parents[2]
TREE = json.loads(Path(WORDS).read_text())
FILES = {"bash": "infctl.bash", "zsh": "_infctl", "fish": "infctl.fish"}


def some_names(kind: str, where: dict[str, str]) -> list[str]:
    return {"group": ["a", "new"], "node": ["n1"]}.get(kind, []) if not where else list(where.values())


def offered(*words: str, bash: bool = False) -> list[str]:
    return [word for word, _ in offers(TREE, list(words), some_names, bash=bash)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["d"], ["describe", "diff", "drain", "dev", "demo"]),
        (["dev", ""], ["up", "status", "down"]),
        (["nothing", ""], []),
        (["get", "g"], ["groups", "gateways"]),
        (["get", "nodes,g"], ["nodes,groups", "nodes,gateways"]),
        (["get", "nodes,groups,n"], []),
        (["get", "groups", ""], ["a", "new"]),
        (["get", "g", "a", ""], ["new"]),
        (["get", "-o", "wide", "groups", "n"], ["new"]),
        (["get", "--output=wide", "groups", "n"], ["new"]),
        (["get", "group/"], ["group/a", "group/new"]),
        (["get", "group/a", ""], ["node/", "pool/", "group/", "endpoint/", "stream/", "gateway/"]),
        (["describe", "group/a", "group/"], ["group/new"]),
        (["describe", "grop/"], []),
        (["get", "events", ""], []),
        (["get", "events", "--for", "group/n"], ["group/new"]),
        (["get", "events", "--for", "no"], ["node/"]),
        (["get", "-o", "j"], ["json"]),
        (["get", "--output=y"], ["--output=yaml"]),
        (["get", "--no"], ["--no-headers"]),
        (["get", "--no-headers", "no"], ["nodes"]),
        (["get", "--context", "x", "groups", ""], ["x"]),
        (["get", "--endpoints=h:1", "groups", ""], ["h:1"]),
        (["apply", "-f", ""], [":files"]),
        (["diff", "-f", ""], [":files"]),
        (["diff", "-o", ""], ["diff", "json", "yaml"]),
        (["demo", "--fault", "kill"], ["kill-rank", "kill-group"]),
        (["demo", "--tokens", ""], []),
        (["version", "-o", ""], ["text", "json", "yaml"]),
        (["config", "use"], ["use-context"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["drain", "group/"], ["group/a", "group/new"]),
        (["logs", "group/a", "--host", ""], ["n1"]),
        (["drain", ""], ["node/", "group/"]),
        (["cordon", "n"], ["node/"]),
        (["cordon", "group/"], []),
        (["restart", "--deadline", "5m", "g"], ["group/a", "group/new"]),
        (["help", "e"], ["exit-codes"]),
        (["get", "--", "-"], []),
        (["logs", ""], ["group/a", "group/new"]),
        (["logs", "group/n"], ["group/new"]),
        (["logs", "--launch", ""], []),
        (
            [],
            [
                *("get", "describe", "logs", "apply", "diff", "drain", "undrain", "restart", "cordon", "uncordon"),
                *("dev", "demo", "config", "completion", "version", "help"),
            ],
        ),
    ],
)
def test_what_is_offered(words: list[str], found: list[str]) -> None:
    assert offered(*words) == found


def test_bash_gets_the_part_behind_the_equals_sign() -> None:
    assert offered("get", "--output=y", bash=True) == ["yaml"]


def test_every_command_and_option_is_known() -> None:
    told = {word for word, _ in offers(TREE, ["get", "-"], some_names)}
    assert {"-o", "--output", "--context", "--for", "-h"} <= told
    assert all(text for _, text in offers(TREE, ["get", "-"], some_names))


# names from a store


def ask(infctl: Run, *words: str, **env: str) -> list[str]:
    done = infctl("__complete", "zsh", "--", *words, **env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_names_come_from_the_store(infctl: Run, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert ask(infctl, "get", "groups", "", **cache) == ["a", "new"]
    assert ask(infctl, "get", "nodes", "", **cache) == ["n1", "n2"]
    assert ask(infctl, "describe", "stream/", **cache) == ["stream/r2"]
    assert ask(infctl, "get", "groups", "", INFCTL_CLUSTER="empty", **cache) == []


def test_what_was_known_helps_while_the_store_is_away_for_some_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[str] = []

    def answers(endpoint: str, prefix: str, until: float, tls: object) -> list[str]:
        asked.append(prefix)
        return ["a", "new"]

    def away(endpoint: str, prefix: str, until: float, tls: object) -> list[str]:
        asked.append(prefix)
        raise OSError

    monkeypatch.setattr(names, "read_names", away)
    assert names.known_names("group", "h:1,h:2") == []
    monkeypatch.setattr(names, "read_names", answers)
    assert names.known_names("group", "h:1,h:2") == ["a", "new"]
    monkeypatch.setattr(names, "read_names", away)
    (kept,) = (tmp_path / "infctl" / "complete").iterdir()
    asked.clear()
    os.utime(kept, (time.time() - 1, time.time() - 1))
    assert (names.known_names("group", "h:1,h:2"), asked) == (["a", "new"], [])
    os.utime(kept, (time.time() - 300, time.time() - 300))
    assert names.known_names("group", "h:1,h:2") == ["a", "new"]
    assert asked == ["/infctl/v1/default/groups/"] * 2
    assert names.known_names("group", "h:1", cluster="other") == []
    assert names.known_names("pool", "h:1,h:2") == []
    os.utime(kept, (time.time() - 700, time.time() - 700))
    assert names.known_names("group", "h:1,h:2") == []


def test_nothing_is_said_when_nothing_can_be_known(infctl: Run, tmp_path: Path) -> None:
    assert ask(infctl, "get", "groups", "", INFCTL_ENDPOINTS="") == []
    assert ask(infctl, "get", "groups", "", INFCTL_ENDPOINTS="not an endpoint") == []
    assert ask(infctl, "get", "groups", "", INFCTL_ENDPOINTS="https://127.0.0.1:1") == []
    (tmp_path / "config" / "infctl").mkdir(parents=True)
    (tmp_path / "config" / "infctl" / "config.toml").write_text("[[[")
    assert ask(infctl, "get", "groups", "", INFCTL_ENDPOINTS="") == []
    assert ask(infctl, "config", "use-context", "") == []
    for words in ([], ["zsh"], ["zsh", "--"], ["csh", "--", "'"], ["bash", "get"]):
        done = infctl("__complete", *words)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def serve(listening: socket.socket, answer: bytes, pause: float = 0.0) -> str:
    """Answer one connection, byte after byte if there is a pause; returns the endpoint."""

    def run() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            try:
                for part in [answer[i : i + 1] for i in range(len(answer))] if pause else [answer]:
                    connection.sendall(part)
                    time.sleep(pause)
            except OSError:
                return

    threading.Thread(target=run, daemon=True).start()
    return f"127.0.0.1:{listening.getsockname()[1]}"


OK = b"HTTP/1.0 200 OK\r\n\r\n"


@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_a_store_that_does_not_answer_costs_a_quarter_of_a_second(server: socket.socket, pause: float) -> None:
    """Neither one that accepts and is silent, nor one that dribbles; the bound leaves room for a busy machine."""
    endpoint = serve(server, OK + b" " * 10000, pause) if pause else f"127.0.0.1:{server.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(OSError):
        names.read_names(endpoint, "/infctl/v1/default/groups/", began + names.DEADLINE)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("answer", [b"", b"garbage", OK, OK + b"[1]", b"HTTP/1.0 503 no\r\n\r\n{}", OK + b'{"kvs": 3}'])
def test_an_answer_that_is_none_is_refused(server: socket.socket, answer: bytes) -> None:
    endpoint = serve(server, answer)
    with pytest.raises((ValueError, TypeError, AttributeError)):
        names.read_names(endpoint, "/infctl/v1/default/groups/", time.monotonic() + 5)


def test_only_legal_names_are_offered(server: socket.socket) -> None:
    from binascii import b2a_base64

    prefix = "/infctl/v1/default/groups/"
    written = [
        "a/spec",
        "a/status",
        "b.c-1/spec",
        "$(reboot)/spec",
        "it's/spec",
        "x y/spec",
        "Ü/spec",
        "/spec",
        "new\n/spec",
    ]
    keys = [{"key": b2a_base64(f"{prefix}{name}".encode(), newline=False).decode()} for name in written]
    endpoint = serve(server, OK + json.dumps({"kvs": keys}).encode())
    assert names.read_names(endpoint, prefix, time.monotonic() + 5) == ["a", "b.c-1"]


def test_a_tab_press_loads_little() -> None:
    code = (
        "import sys\nfrom infctl.cli.entry import run\nrun(['__complete', 'zsh', '--', 'get', 'groups', ''])\n"
        "print(' '.join(sys.modules), file=sys.stderr)"
    )
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "INFCTL_ENDPOINTS": "127.0.0.1:1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env=env)
    loaded = set(done.stderr.split())
    assert "infctl.client.names" in loaded
    assert loaded & {"typer", "rich", "grpc", "msgspec", "pydantic", "yaml", "asyncio", "ssl", "http.client"} == set()


# the shells themselves


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_scripts_that_are_shipped_are_those_that_are_printed(infctl: Run, shell: str) -> None:
    done = infctl("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    path = ROOT / "completions" / FILES[shell]
    if os.environ.get("INFCTL_UPDATE_GOLDEN"):
        path.write_text(done.stdout)
    assert done.stdout == path.read_text()


CASES = (
    ("infctl des", "infctl describe "),
    ("infctl dev st", "infctl dev status "),
    ("infctl get gr", "infctl get groups "),
    ("infctl get groups n", "infctl get groups new "),
    ("infctl describe group/n", "infctl describe group/new "),
    ("infctl get events --for str", "infctl get events --for stream/"),
    ("infctl get -o js", "infctl get -o json "),
    ("infctl get --output=js", "infctl get --output=json "),
    ("infctl apply -f clu", "infctl apply -f cluster.yaml "),
    ("infctl get groups zzz", "infctl get groups zzz"),
    ("infctl get zzz ", "infctl get zzz "),
)


@pytest.fixture
def home(endpoint: str, tmp_path: Path) -> dict[str, str]:
    """An environment with `infctl` on the path, the golden cluster, and one file in the folder `here`."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "infctl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m infctl.cli.entry "$@"\n')
    program.chmod(0o755)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "cluster.yaml").touch()
    env = {k: v for k, v in os.environ.items() if not k.startswith("INFCTL_")}
    mine = {"PATH": f"{tmp_path / 'bin'}:{env['PATH']}", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "k"),
            "XDG_CONFIG_HOME": str(tmp_path / "c"), "TERM": "dumb", "INFCTL_ENDPOINTS": endpoint,
            "INFCTL_CLUSTER": "golden"}  # fmt: skip
    return {**env, **mine}


def installed(shell: str) -> str:
    return shutil.which(shell) or pytest.skip(f"{shell} is not installed")


def script(shell: str) -> Path:
    return ROOT / "completions" / FILES[shell]


@pytest.mark.timeout(120)
def test_tab_in_bash(home: dict[str, str], tmp_path: Path) -> None:
    argv = [installed("bash"), "--norc", "--noprofile", "-i"]
    setup = f"cd {tmp_path / 'here'}; PS1='> '; bind 'set enable-bracketed-paste off'; source {script('bash')}"
    with Keyboard(argv, home, setup) as keyboard:
        for typed, becomes in CASES:
            assert keyboard.complete(typed) == becomes


@pytest.mark.timeout(120)
def test_tab_in_zsh(home: dict[str, str], tmp_path: Path) -> None:
    """Zsh takes its own space back when the line goes on, so the spaces at the end do not count."""
    argv = [installed("zsh"), "-f", "-i"]
    setup = f"cd {tmp_path / 'here'}; PROMPT='> '; autoload -U compinit; compinit -u -D; source {script('zsh')}"
    with Keyboard(argv, home, setup) as keyboard:
        for typed, becomes in CASES:
            assert keyboard.complete(typed).rstrip() == becomes.rstrip()


@pytest.mark.timeout(120)
def test_completions_of_fish(home: dict[str, str], tmp_path: Path) -> None:
    """Fish says itself what it would offer for a line."""
    program = installed("fish")
    for typed, becomes in CASES:
        code = f"source {script('fish')}; complete -C '{typed}'"
        done = subprocess.run([program, "--no-config", "-c", code], capture_output=True, text=True, timeout=60,
                              env=home, cwd=tmp_path / "here")  # fmt: skip
        word = becomes.split()[-1] if becomes.strip() != typed.strip() else ""
        assert (done.stderr, [line.split("\t")[0] for line in done.stdout.splitlines()]) == ("", [word] if word else [])
