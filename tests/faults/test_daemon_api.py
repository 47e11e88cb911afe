"""The daemon's read-only API over real processes: what became of each launch, what it printed, whether it serves."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from infctl.store.codec import decode
from infctl.store.records import Secret
from tests.support.noded import Cluster, node_cluster, until
from tests.support.readapi import address, ask, follow

pytestmark = [pytest.mark.faults, pytest.mark.timeout(90)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with node_cluster(tmp_path) as made:
        yield made


async def key_of(cluster: Cluster, launch: str) -> str:
    kv = await cluster.store.get(cluster.keys.secret("a"))
    assert kv is not None
    secret = decode(Secret, kv.value)
    assert secret.launch == launch
    return secret.api_key


async def launches(api: str) -> list[dict[str, Any]]:
    status, said = await ask(f"{api}/v1/groups/a/launches")
    assert status == 200
    found: list[dict[str, Any]] = said["launches"]
    return found


async def test_a_killed_ranks_signal_and_the_output_before_it_are_still_there(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    api = await address(cluster.store, cluster.keys)
    assert first.read_api == api, "gateways learn of it from the endpoint"
    os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGKILL)
    second = await cluster.ready(not_launch=first.launch)

    now, before = (await launches(api))[:2]
    assert (now["launch"], now["state"], now["ended_at"]) == (second.launch, "running", "")
    assert (before["launch"], before["state"], before["reason"]) == (first.launch, "ended", "process-exited")
    assert (before["process"], before["signal"], before["exit_code"]) == ("sim::scheduler_TP1", 9, None)
    assert before["started_at"] < before["ended_at"]
    assert before["generation"] == first.generation

    _, text = await ask(f"{api}/v1/groups/a/launches/{first.launch}/log")
    whole = Path(before["log"]).read_text()
    assert "fired up and ready to roll" in text and text == "".join(whole.splitlines(keepends=True)[-200:])
    _, two = await ask(f"{api}/v1/groups/a/launches/{first.launch}/log?lines=2")
    assert two == "".join(whole.splitlines(keepends=True)[-2:])

    status, node = await ask(f"{api}/v1/status")
    assert (status, node["node"], node["lease"], node["listed"]) == (200, "n1", "held", True)
    (group,) = node["groups"]
    assert (group["group"], group["phase"], group["launch"]) == ("a", "ready", second.launch)
    assert (group["restarts"], group["generation"], group["pool"]) == (1, second.generation, "p")
    records = list((cluster.noded.folder / "state" / "ended" / "a").iterdir())
    assert [stat.S_IMODE(r.stat().st_mode) for r in records] == [0o600]
    assert await key_of(cluster, second.launch) not in records[0].read_text()


async def test_infctl_shows_what_the_engine_printed_before_its_rank_was_killed(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGKILL)
    second = await cluster.ready(not_launch=first.launch)

    async def logs(*words: str) -> tuple[int, str, str]:
        argv = [
            sys.executable,
            "-m",
            "infctl.cli.entry",
            "logs",
            "group/a",
            "--endpoints",
            cluster.etcd.endpoint,
            *words,
        ]
        process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = await asyncio.wait_for(process.communicate(), 30)
        return process.returncode or 0, out.decode(), err.decode()

    code, out, err = await logs("--previous")
    log = cluster.noded.folder / "state" / "logs" / f"{first.launch}.log"
    assert (code, out) == (0, log.read_text())
    assert err.startswith(f"launch {first.launch}, generation {first.generation}, ended ")
    assert err.endswith(f": sim::scheduler_TP1: signal 9, process-exited; {log} on node/n1\n")
    code, _, err = await logs("-n", "0")
    assert (code, err.split(";")[0]) == (0, f"launch {second.launch}, generation {second.generation}, running")
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    code, out, err = await logs()
    assert (code, out) == (1, "") and "does not answer" in err, "its lease is still there, the daemon is not"


async def test_a_daemon_refuses_to_show_engine_output_to_everybody(tmp_path: Path) -> None:
    async with node_cluster(tmp_path, start=False) as cluster:
        cluster.noded.read_api = {"listen": "0.0.0.0:0"}
        cluster.noded.start()
        assert await cluster.noded.ended() == 2
        assert "ReadApiOpen" in cluster.noded.log.read_text()


async def test_a_planned_end_and_a_start_that_failed_are_told_too(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    ready = await cluster.ready()
    await cluster.delete("a")
    await cluster.status(phase="idle")
    api = await address(cluster.store, cluster.keys)
    (planned,) = await launches(api)
    assert (planned["launch"], planned["state"], planned["reason"]) == (ready.launch, "ended", "deleted")
    assert (planned["exit_code"], planned["signal"], planned["process"]) == (0, None, "")

    await cluster.apply(cluster.spec(model_path="/nonexistent/model"))
    await cluster.status(reason="model-missing")

    async def told() -> dict[str, Any] | None:
        newest = (await launches(api))[0]
        return newest if newest["reason"] == "model-missing" else None

    failed = await until(told, 10.0, "the failed start is told")
    assert "/nonexistent/model does not exist" in failed["message"]
    assert (failed["exit_code"], failed["signal"]) == (None, None)
    status, text = await ask(f"{api}/v1/groups/a/launches/{failed['launch']}/log")
    assert (status, text) == (200, "")


async def test_a_followed_log_goes_on_until_the_launch_has_ended(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    ready = await cluster.ready()
    api = await address(cluster.store, cluster.keys)
    lines: list[str] = []
    url = f"{api}/v1/groups/a/launches/{ready.launch}/log"
    reading = asyncio.create_task(follow(f"{url}?lines=1&follow=1", lines))
    log = cluster.noded.folder / "state" / "logs" / f"{ready.launch}.log"

    async def begun() -> bool:
        return bool(lines)

    await until(begun, 5.0, "the last line arrives")
    with open(log, "ab") as out:
        out.write(b"half a ")
        out.flush()
        await asyncio.sleep(0.6)
        out.write(b"line\nkey=k" + b"0123456789abcdef" * 3 + b".\n")

    async def arrived() -> bool:
        return "half a line\n" in lines

    await until(arrived, 5.0, "a new line arrives")
    assert not reading.done()
    os.kill(cluster.noded.pid("a", "main"), signal.SIGKILL)
    await cluster.fault(ready.launch)
    await asyncio.wait_for(reading, 15.0)
    whole = log.read_text().splitlines(keepends=True)
    start = whole.index("half a line\n") - 1
    wanted = [line.replace("k" + "0123456789abcdef" * 3, "***") for line in whole[start:]]
    assert "key=***.\n" in lines and lines == wanted


async def test_only_the_launchs_own_key_learns_whether_it_serves(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    first = await cluster.ready()
    old_key = await key_of(cluster, first.launch)
    api = await address(cluster.store, cluster.keys)
    url = f"{api}/v1/groups/a/launches/{first.launch}/serving"
    status, said = await ask(url, old_key)
    assert status == 200
    assert (said["serving"], said["over"], said["generation"]) == (True, False, first.generation)
    assert (said["lease"], said["node"], said["launch"]) == ("held", "n1", first.launch)
    for wrong in ("", "k" + "0" * 48):
        status, said = await ask(url, wrong)
        assert (status, said["error"]["type"]) == (401, "unauthorized")

    os.kill(cluster.noded.pid("a", "main"), signal.SIGKILL)
    second = await cluster.ready(not_launch=first.launch)
    status, said = await ask(url, old_key)
    assert (status, said["serving"], said["over"]) == (200, False, True)
    assert (said["current_launch"], said["generation"]) == (second.launch, second.generation)
    status, _ = await ask(f"{api}/v1/groups/a/launches/{second.launch}/serving", old_key)
    assert status == 401, "the old key says nothing of the new launch"
    status, said = await ask(f"{api}/v1/groups/a/launches/a-zzzzzzzz/serving", old_key)
    assert (status, said["error"]["code"]) == (404, "not_found")


async def test_the_next_daemon_speaks_for_the_launch_that_it_took_over(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    ready = await cluster.ready()
    key = await key_of(cluster, ready.launch)
    before = await address(cluster.store, cluster.keys)
    cluster.noded.signal(signal.SIGKILL)
    await cluster.noded.ended()
    cluster.noded.start()

    async def moved() -> str:
        found = await address(cluster.store, cluster.keys)
        return found if found != before else ""

    api = await until(moved, 20.0, "the lease key says where the new daemon answers")
    url = f"{api}/v1/groups/a/launches/{ready.launch}"

    async def serves() -> bool:
        status, said = await ask(f"{url}/serving", key)
        assert status != 200 or not said["over"], "it never calls over what it takes over"
        return status == 200 and said["serving"]

    await until(serves, 20.0, "it serves")
    (told,) = await launches(api)
    assert (told["launch"], told["state"], told["generation"]) == (ready.launch, "running", ready.generation)
    assert told["started_at"] and "fired up" in (await ask(f"{url}/log"))[1]
    os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGKILL)
    await cluster.ready(not_launch=ready.launch)
    ended = (await launches(api))[1]
    assert (ended["launch"], ended["process"], ended["signal"]) == (ready.launch, "sim::scheduler_TP1", 9)


async def test_a_lease_that_is_uncertain_is_said_while_the_launch_goes_on_serving(cluster: Cluster) -> None:
    await cluster.apply(cluster.spec())
    ready = await cluster.ready()
    key = await key_of(cluster, ready.launch)
    api = await address(cluster.store, cluster.keys)
    cluster.etcd.freeze()
    try:

        async def uncertain() -> dict[str, Any] | None:
            _, said = await ask(f"{api}/v1/groups/a/launches/{ready.launch}/serving", key)
            return said if said["lease"] == "uncertain" else None

        said = await until(uncertain, 10.0, "the lease is uncertain")
        assert said["serving"] is True and said["over"] is False
        assert (await ask(f"{api}/ready"))[0] == 200, "a store that goes away makes no daemon unready"
    finally:
        cluster.etcd.thaw()


async def test_alive_and_ready_are_separate_answers(tmp_path: Path) -> None:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    async with node_cluster(tmp_path, start=False) as cluster:
        cluster.noded.read_api = {"listen": f"127.0.0.1:{port}"}
        cluster.etcd.freeze()
        cluster.noded.start()

        async def alive() -> bool:
            try:
                return await ask(f"http://127.0.0.1:{port}/health") == (200, {"status": "ok"})
            except aiohttp.ClientError:
                return False

        await until(alive, 15.0, "alive")
        status, said = await ask(f"http://127.0.0.1:{port}/ready")
        assert (status, said["status"]) == (503, "waiting")
        cluster.etcd.thaw()

        async def ready() -> bool:
            return (await ask(f"http://127.0.0.1:{port}/ready"))[0] == 200

        await until(ready, 15.0, "ready")


async def test_a_taken_port_costs_the_api_and_not_the_supervision(tmp_path: Path) -> None:
    async with node_cluster(tmp_path, start=False) as cluster:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen(1)
            port = taken.getsockname()[1]
            cluster.noded.read_api = {"listen": f"127.0.0.1:{port}"}
            cluster.noded.start()
            await cluster.apply(cluster.spec(tp=1))
            ready = await cluster.ready()
            assert ready.read_api == ""
            assert "PortTaken" in cluster.noded.log.read_text()
        assert await address(cluster.store, cluster.keys) == f"http://127.0.0.1:{port}", "it is tried again"
        assert (await ask(f"http://127.0.0.1:{port}/v1/status"))[1]["groups"][0]["launch"] == ready.launch
