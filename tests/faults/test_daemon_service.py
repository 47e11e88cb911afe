"""What the service manager and an operator hear of a daemon: its notify socket, SIGHUP, and --once beside it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import BIN, running
from tests.support.etcd import BINARIES, live_etcd
from tests.support.noded import Cluster, node_cluster, until

pytestmark = [pytest.mark.faults]


class Manager:
    """A notify socket, and the daemon that talks to it."""

    def __init__(self, folder: Path, endpoint: str, watchdog: float = 0.6) -> None:
        self.config = folder / "daemon.yaml"
        self.log = folder / "daemon.log"
        self.endpoint = endpoint
        self.heard: list[str] = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify"))
        self.socket.setblocking(False)
        usec = str(int(watchdog * 1e6))
        self.env = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": usec}
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, **values: object) -> None:
        self.config.write_text(json.dumps({"endpoints": [self.endpoint], **values}))

    def start(self, program: str, *flags: str) -> None:
        with open(self.log, "ab") as log:
            argv = [str(BIN / program), "--config", str(self.config), *flags]
            self.process = subprocess.Popen(argv, env=self.env, stderr=log, stdout=log)
        self.reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        while True:
            text = (await asyncio.get_running_loop().sock_recv(self.socket, 4096)).decode()
            self.heard += [line for line in text.split("\n") if not line.startswith("MONOTONIC_USEC=")]

    async def hears(self, *lines: str, seconds: float = 20.0) -> None:
        """Wait until these came in this order, after what an earlier call waited for."""

        async def all_of_them() -> int:
            at = 0
            for line in lines:
                at = next((i for i in range(at, len(self.heard)) if self.heard[i].startswith(line)), -1) + 1
                if not at:
                    return 0
            return at

        end = await until(all_of_them, seconds, f"{lines} in {self.heard}\n{self.log.read_text()[-2000:]}")
        del self.heard[:end]

    def lines(self, event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    async def hup(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)
        await self.hears("RELOADING=1", "READY=1", "STATUS=")

    async def close(self) -> None:
        assert self.process is not None
        self.reader.cancel()
        if self.process.poll() is None:
            self.process.kill()
        await asyncio.to_thread(self.process.wait, 10)
        self.socket.close()


@asynccontextmanager
async def managed(folder: Path) -> AsyncIterator[Manager]:
    async with live_etcd(BINARIES[0], folder / "etcd") as etcd:
        manager = Manager(folder, etcd.endpoint)
        try:
            yield manager
        finally:
            await manager.close()


async def test_the_manager_hears_ready_life_reload_and_stop_of_the_daemon(tmp_path: Path) -> None:
    async with managed(tmp_path) as manager:
        manager.write()
        manager.start("infctl-noded", "--state-dir", str(tmp_path / "s"), "--run-dir", str(tmp_path / "r"))
        await manager.hears("READY=1", "STATUS=supervising", "WATCHDOG=1", "WATCHDOG=1")
        await manager.hup()
        assert manager.process is not None
        environ = Path(f"/proc/{manager.process.pid}/environ").read_bytes()
        assert b"NOTIFY_SOCKET" in environ  # it was told; what it starts is not, its environment is chosen
        manager.process.terminate()
        await manager.hears("STOPPING=1", "EXTEND_TIMEOUT_USEC=")
        assert await asyncio.to_thread(manager.process.wait, 20) == 0


async def test_a_frozen_daemon_gives_no_sign_of_life(tmp_path: Path) -> None:
    async with managed(tmp_path) as manager:
        manager.write()
        manager.start("infctl-noded", "--state-dir", str(tmp_path / "s"), "--run-dir", str(tmp_path / "r"))
        await manager.hears("READY=1", "WATCHDOG=1")
        assert manager.process is not None
        manager.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.3)
        manager.heard.clear()
        await asyncio.sleep(1.0)
        assert manager.heard == []
        manager.process.send_signal(signal.SIGCONT)
        await manager.hears("WATCHDOG=1")


async def test_sighup_takes_over_what_can_change_and_names_the_rest(tmp_path: Path) -> None:
    async with managed(tmp_path) as manager:
        folders = {"stateDir": str(tmp_path / "s"), "runDir": str(tmp_path / "r")}
        manager.write(**folders)
        manager.start("infctl-noded")
        await manager.hears("READY=1")
        limits = {"stallSeconds": 3, "leaseTtlSeconds": 20}
        manager.write(**folders, logLevel="debug", limits=limits, cluster="other", stopGroupsOnExit=True)
        await manager.hup()
        told = manager.lines("reloaded")[-1]
        assert told["applied"] == {"logLevel": "debug", "limits.stallSeconds": 3.0, "stopGroupsOnExit": True}
        assert told["needs_restart"] == ["cluster", "limits.leaseTtlSeconds"]

        manager.config.write_text("endpoints: [\nlogLevel: error\n")
        await manager.hup()
        assert "not valid YAML" in manager.lines("reload refused: nothing was changed")[-1]["problems"][0]
        assert len(manager.lines("reloaded")) == 1
        manager.write(**folders)
        await manager.hup()
        assert manager.lines("reloaded")[-1]["applied"] == {
            "logLevel": "info", "limits.stallSeconds": 2.0, "stopGroupsOnExit": False
        }  # fmt: skip
        assert manager.process is not None
        manager.write(**folders, stopGroupsOnExit=True)
        await manager.hup()
        manager.process.terminate()
        await asyncio.to_thread(manager.process.wait, 20)
        assert manager.lines("told to stop")[-1]["groups"] == "stopped"


async def test_a_timer_that_does_not_fit_the_lease_needs_a_restart(tmp_path: Path) -> None:
    """The file is right in itself, but the lease keeps the length that it was granted with."""
    async with managed(tmp_path) as manager:
        folders = {"stateDir": str(tmp_path / "s"), "runDir": str(tmp_path / "r")}
        manager.write(**folders)
        manager.start("infctl-noded")
        await manager.hears("READY=1")
        manager.write(**folders, limits={"stallSeconds": 15, "leaseTtlSeconds": 30})
        await manager.hup()
        told = manager.lines("reloaded")[-1]
        assert (told["applied"], told["needs_restart"]) == ({}, ["limits.leaseTtlSeconds", "limits.stallSeconds"])


async def test_the_gateway_reloads_too(tmp_path: Path) -> None:
    async with managed(tmp_path) as manager:
        fixed = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "stateDir": str(tmp_path / "s")}
        manager.write(**fixed)
        manager.start("infctl-gateway")
        await manager.hears("READY=1", "STATUS=", "WATCHDOG=1", "WATCHDOG=1")
        manager.write(**fixed, limits={"migrations": 7}, keepAliveSeconds=3)
        await manager.hup()
        told = manager.lines("reloaded")[-1]
        assert (told["applied"], told["needs_restart"]) == ({"limits.migrations": 7}, ["keepAliveSeconds"])
        assert manager.process is not None
        manager.process.terminate()
        await manager.hears("STOPPING=1")
        assert await asyncio.to_thread(manager.process.wait, 20) == 0


async def test_lines_about_a_fault_say_pool_group_launch_generation_reason_and_fault(tmp_path: Path) -> None:
    """In the daemon's log and in the gateway's: one search finds all that was said of a fault."""
    async with running(tmp_path, ("a",), tp=1) as cluster:
        launch = (await cluster.ready("a"))[0].launch
        os.kill((await cluster.status("a")).pid, signal.SIGKILL)

        async def noticed() -> list[Any]:
            return [notice for notice in await cluster.faults() if notice.launch == launch]

        notice = (await until(noticed))[0]
        words = {"pool": "tiny", "group": "a", "launch": launch, "generation": 1}
        words |= {"reason": notice.reason, "fault_id": notice.fault_id}
        for name, event in (("noded", "fault written"), ("noded", "launch.failed"), ("gateway", "fault.seen")):

            async def said(name: str = name, event: str = event) -> list[Any]:
                lines = [json.loads(line) for line in cluster.log(name).splitlines() if line.startswith("{")]
                return [line for line in lines if line["event"] == event and line.get("launch") == launch]

            line = (await until(said, 10, f"{name} says {event!r}"))[0]
            assert {word: line.get(word) for word in words} == words, (name, line)


async def once(cluster: Cluster) -> tuple[int, str]:
    """`infctl-noded --once` over the same folders as the cluster's daemon."""
    argv = [str(BIN / "infctl-noded"), "--once", "--node", "n1", "--endpoints", cluster.etcd.endpoint]
    argv += ["--state-dir", str(cluster.noded.folder / "state"), "--run-dir", str(cluster.noded.folder / "run")]
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode or 0, out.decode()


async def test_once_says_what_a_daemon_would_do_and_does_nothing(tmp_path: Path) -> None:
    async with node_cluster(tmp_path, start=False) as cluster:
        code, said = await once(cluster)
        assert (code, said) == (0, "node n1, cluster default: 0 groups, no daemon runs\n")
        await cluster.apply(cluster.spec())
        before = await cluster.store.range(cluster.keys.root)
        code, said = await once(cluster)
        assert code == 1
        assert said.splitlines()[1].split(None, 1) == ["group/a", "nothing runs  claim and start a launch"]
        after = await cluster.store.range(cluster.keys.root)
        assert [kv.key for kv in after.kvs] == [kv.key for kv in before.kvs]
        assert not (cluster.noded.folder / "state").exists()

        cluster.noded.start()
        found = await cluster.ready()
        code, said = await once(cluster)
        assert code == 0, said
        assert "1 groups, a daemon supervises them" in said
        assert f"launch {found.launch}, generation {found.generation}" in said and "nothing to do" in said

        cluster.noded.signal(signal.SIGKILL)
        await cluster.noded.ended()
        alive = cluster.noded.alive()
        code, said = await once(cluster)
        assert code == 1, said
        assert "no daemon runs" in said and f"take over {found.launch}, publish {found.launch}" in said
        assert cluster.noded.alive() == alive != []

        os.kill(cluster.noded.pid("a", "scheduler_TP1"), signal.SIGKILL)
        code, said = await once(cluster)
        assert code == 1, said
        assert f"end what is left of {found.launch}, write its fault notice, claim and start a launch" in said


async def test_once_without_the_store_is_no_plan(tmp_path: Path) -> None:
    argv = [str(BIN / "infctl-noded"), "--once", "--endpoints", "127.0.0.1:9", "--state-dir", str(tmp_path / "s")]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=40)
    assert (done.returncode, done.stdout) == (3, "")
