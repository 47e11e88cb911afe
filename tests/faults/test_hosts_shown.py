"""What people are shown of a group over two hosts, each with a real daemon: output, status, what a daemon would do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.hosted import Hosts, hosts_cluster
from tests.support.noded import until
from tests.support.readapi import address, ask

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Hosts]:
    async with hosts_cluster(tmp_path, ("a", "b")) as found:
        yield found


async def run(*argv: str, **env: str) -> tuple[int, str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("INFCTL_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *argv, env={**clean, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def infctl(cluster: Hosts, *words: str) -> tuple[int, str, str]:
    return await run("infctl.cli.entry", *words, INFCTL_ENDPOINTS=cluster.etcd.endpoint)


async def once(cluster: Hosts, node: str) -> tuple[int, list[str]]:
    folder = cluster.daemons[node].folder
    argv = ["--once", "--node", node, "--endpoints", cluster.etcd.endpoint]
    argv += ["--state-dir", str(folder / "state"), "--run-dir", str(folder / "run")]
    code, out, _ = await run("infctl_daemon.node.main", *argv)
    return code, out.splitlines()


async def test_each_host_tells_what_its_own_ranks_printed(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread(over=("a", "b")))
    found = await cluster.ready("g", seconds=60)
    for words, node, which in ((("--host", "b"), "b", "node-rank 1"), ((), "a", f"generation {found.generation}")):
        log = cluster.daemons[node].folder / "state" / "logs" / f"{found.launch}.log"
        code, out, err = await infctl(cluster, "logs", "group/g", *words)
        assert (code, err) == (0, f"launch {found.launch}, {which}, running; {log} on node/{node}\n")
        assert out and out == "".join(log.read_text().splitlines(keepends=True)[-200:])

    code, _, err = await infctl(cluster, "logs", "group/g", "--host", "x")
    assert code == 5 and "group/g has no part on node/x" in err and "its hosts are a, b" in err

    code, page, _ = await infctl(cluster, "describe", "group/g")
    assert code == 0
    assert [line.split()[:4] for line in page.splitlines() if line.startswith(("  a ", "  b "))] == [
        ["a", "0", "loaded", "1/1"], ["b", "1", "loaded", "1/1"],
    ]  # fmt: skip

    os.kill(cluster.daemons["b"].rank("g"), signal.SIGKILL)
    second = await cluster.ready("g", not_launch=found.launch, seconds=60)
    code, out, err = await infctl(cluster, "logs", "group/g", "--host", "b", "--previous")
    assert code == 0 and err.startswith(f"launch {found.launch}, node-rank 1, ended ")
    assert "sim::scheduler" in err and "signal 9" in err and out
    assert second.launch not in err


async def test_a_members_api_tells_of_its_part_and_never_says_that_it_serves(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread(over=("a", "b")))
    found = await cluster.ready("g", seconds=60)
    daemon = cluster.daemons["b"]
    api = await address(cluster.store, cluster.keys, "b")
    _, said = await ask(f"{api}/v1/status")
    assert said["groups"] == []
    (part,) = said["parts"]
    told = {key: part[key] for key in ("group", "owner", "node_rank", "phase", "launch", "pid")}
    main = daemon.part("g")[0].pid
    assert told == {
        "group": "g", "owner": "a", "node_rank": 1, "phase": "serving", "launch": found.launch, "pid": main,
    }  # fmt: skip
    key = (daemon.folder / "run" / "keys" / f"{found.launch}.yaml").read_text().split()[-1].strip("'\"")
    for launch in (found.launch, "g-zzzzzzzz"):
        assert (await ask(f"{api}/v1/groups/g/launches/{launch}/serving", key))[0] == 404

    await cluster.delete("g")
    await cluster.gone("g")

    async def ended() -> bool:
        _, answer = await ask(f"{api}/v1/groups/g/launches")
        return [(r["launch"], r["state"], r["node_rank"]) for r in answer["launches"]] == [(found.launch, "ended", 1)]

    await until(ended, 20, "the member keeps how its part ended")
    assert (await ask(f"{api}/v1/groups/g/launches/{found.launch}/serving", key))[0] == 404


async def test_once_says_what_a_daemon_would_do_about_its_parts(cluster: Hosts) -> None:
    await cluster.apply(cluster.spread(over=("a", "b")))
    found = await cluster.ready("g", seconds=60)
    daemon = cluster.daemons["b"]
    daemon.part("g")
    code, (head, line) = await once(cluster, "b")
    assert code == 0 and head.endswith("0 groups and 1 parts of others', a daemon supervises them"), head
    assert f"part of launch {found.launch}, node-rank 1" in line and "nothing to do" in line

    daemon.signal(signal.SIGKILL)
    await daemon.ended()
    code, (_, line) = await once(cluster, "b")
    assert code == 1 and line.endswith(f"take over its part of {found.launch}")

    os.kill(daemon.rank("g"), signal.SIGKILL)
    code, (_, line) = await once(cluster, "b")
    assert code == 1 and f"end its part of {found.launch}, write its fault notice" in line
