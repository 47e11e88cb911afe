"""`infctl logs` against the real API of a daemon and a real etcd: golden files of what is said, and where."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infctl.adapters.etcd import EtcdStore
from infctl.cli.entry import run
from infctl.ports.store import Delete
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import Generation, GroupSpec, LaunchRecord, NodeLease
from infctl_daemon.proc.ended import Ended, write
from tests.support.net import free_ports
from tests.support.readapi import KEY, LAUNCH, OLD, Daemon, serving

GOLDEN = Path(__file__).parent / "golden" / "logs"
AT = "2026-01-02T03:04:05.678Z"
K = Keys("logs")
OLDER = "a-cdefgh23"


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """One launch that runs, one that a rank's death ended, one that could not be started."""
    async with serving(tmp_path) as made:
        write(tmp_path, Ended(group="a", launch=OLDER, generation=2, reason="spawn-failed", ended_at=AT,
                            message="model path /m does not exist"))  # fmt: skip
        write(tmp_path, Ended(group="a", launch=OLD, generation=3, reason="process-exited",
                            process="sim::scheduler_TP1",
                            message="sim::scheduler_TP1 (pid 4321) ended: signal 9", signal=9,
                            ended_at="2026-01-02T04:04:05.678Z"))  # fmt: skip
        made.log.write_text(f"args: api_key={KEY}\n\x1b[31mred\x1b[0m\n" + "".join(f"line {n}\n" for n in range(5)))
        (tmp_path / "logs" / f"{OLD}.log").write_text("Traceback\nout of luck\n")
        yield made


class Logs:
    """The command, run against a cluster in which node n1 has the lease that a test wrote."""

    def __init__(self, endpoint: str, folder: Path, store: EtcdStore) -> None:
        self.folder = folder
        self.store = store
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("INFCTL_")}
        self.env |= {"INFCTL_ENDPOINTS": endpoint, "INFCTL_CLUSTER": "logs", "HOME": str(folder)}

    async def written(self, address: str | None) -> None:
        spec = GroupSpec(name="a", pool="p", node="n1", model_path="/m", max_running=1, max_queued=1)
        ended = LaunchRecord(launch=LAUNCH, group="a", node="n1", ended_at=AT, ended_by="node/n1", ended_why="hang")
        await self.store.put(K.group_spec("a"), encode(spec))
        await self.store.put(K.group_generation("a"), encode(Generation(generation=4, launch=LAUNCH, owner="n1")))
        await self.store.put(K.group_launch("a", LAUNCH), encode(ended))
        if address is None:
            await self.store.txn([], [Delete(K.node_lease("n1"))])
        else:
            lease = NodeLease(node="n1", boot_id="b", incarnation="i", address=address)
            await self.store.put(K.node_lease("n1"), encode(lease))

    async def start(self, *words: str, **env: str) -> asyncio.subprocess.Process:
        argv = [sys.executable, "-m", "infctl.cli.entry", "logs", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return await asyncio.create_subprocess_exec(*argv, env={**self.env, **env}, **pipes)

    async def __call__(self, *words: str, **env: str) -> tuple[int, str, str]:
        process = await self.start(*words, **env)
        async with asyncio.timeout(30):
            out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def golden(self, name: str, *words: str, hide: str = "", **env: str) -> None:
        code, out, err = await self(*words, **env)
        text = f"$ infctl logs {' '.join(words)}\n{out}-- stderr\n{err}-- exit code {code}\n"
        text = text.replace(str(self.folder), "STATE")
        text = text.replace(hide, "PORT") if hide else text
        path = GOLDEN / f"{name}.txt"
        if os.environ.get("INFCTL_UPDATE_GOLDEN"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text()


@pytest.fixture
async def logs(endpoint: str, tmp_path: Path) -> AsyncIterator[Logs]:
    store = EtcdStore([endpoint])
    try:
        yield Logs(endpoint, tmp_path, store)
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("current", ["group/a"]),
        ("lines", ["group/a", "-n", "2"]),
        ("previous", ["group/a", "--previous"]),
        ("launch", ["group/a", "--launch", OLDER]),
        ("unknown-launch", ["group/a", "--launch", "a-zzzzzzzz"]),
        ("unknown-group", ["group/b"]),
    ],
)
async def test_what_is_said(logs: Logs, daemon: Daemon, name: str, words: list[str]) -> None:
    await logs.written(daemon.url)
    await logs.golden(name, *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "hint: infctl logs group/a"),
        (["node/n1"], "node/n1 has no engine output"),
        (["group/a", "--previous", "--launch", OLD], "--previous and --launch name two launches"),
        (["group/a", "--host", "N 1"], "host 'N 1' is not a legal name"),
        (["group/a", "-n", "10001"], "10001 is not in the range 0<=x<=10000"),
    ],
)
def test_what_names_no_launch_is_a_fault_of_the_command_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["logs", *words]) == 2
    assert said in capsys.readouterr().err


async def test_where_the_daemon_cannot_be_asked_it_is_said_where_the_output_lies(logs: Logs, daemon: Daemon) -> None:
    await logs.written(None)
    await logs.golden("node-away", "group/a")
    await logs.written("")
    await logs.golden("no-api", "group/a")
    (port,) = free_ports(1)
    await logs.written(f"127.0.0.1:{port}")
    await logs.golden("unreachable", "group/a", hide=str(port))


async def test_the_daemon_of_another_node_at_that_address_is_not_believed(logs: Logs, daemon: Daemon) -> None:
    daemon.facts.node = "n2"
    await logs.written(daemon.url)
    await logs.golden("other-node", "group/a", hide=str(daemon.port))


async def test_a_token_comes_from_the_environment_or_the_context(logs: Logs, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    home = tmp_path / "config" / "infctl"
    home.mkdir(parents=True)
    endpoint = logs.env["INFCTL_ENDPOINTS"]
    (home / "config.toml").write_text(
        f'[contexts.x]\nendpoints = ["{endpoint}"]\ncluster = "logs"\nread_token_file = "../../token"\n'
    )
    async with serving(tmp_path, token_file=file) as daemon:
        daemon.log.write_text("line\n")
        await logs.written(daemon.url)
        await logs.golden("unauthorized", "group/a")
        assert (await logs("group/a", INFCTL_READ_TOKEN_FILE=str(file)))[:2] == (0, "line\n")
        where = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
        assert (await logs("group/a", "--context", "x", **where))[:2] == (0, "line\n")
        wrong = tmp_path / "wrong"
        wrong.write_text("0123456789abcdeX")
        wrong.chmod(0o644)
        code, _, err = await logs("group/a", INFCTL_READ_TOKEN_FILE=str(wrong))
        assert code == 2 and "can be read by others" in err
        wrong.chmod(0o600)
        code, _, err = await logs("group/a", INFCTL_READ_TOKEN_FILE=str(wrong))
        assert code == 77 and "the token is another one" in err


async def test_following_ends_with_the_launch_and_says_how(logs: Logs, daemon: Daemon) -> None:
    await logs.written(daemon.url)
    process = await logs.start("group/a", "-f", "-n", "1")
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 30) == b"line 4\n"
    with daemon.log.open("a") as out:
        out.write("last words\n")
    write(
        daemon.folder,
        Ended(group="a", launch=LAUNCH, generation=4, reason="process-exited", process="main", exit_code=1,
              ended_at="2026-01-02T05:04:05.678Z"),
    )  # fmt: skip
    daemon.loop.end()
    out_text, err = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, out_text) == (0, b"last words\n")
    first, last = err.decode().splitlines()
    assert first.startswith(f"launch {LAUNCH}, generation 4, running; ")
    assert last == f"launch {LAUNCH}, generation 4, ended 2026-01-02T05:04:05.678Z: main: exit code 1, process-exited"
