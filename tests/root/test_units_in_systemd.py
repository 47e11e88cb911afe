"""The installed units under a real systemd: they start and notify, a stuck loop is ended, a wrong file does not loop,
and stopping the daemon stops the daemon alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infctl.ports.store import Delete
from infctl.store.codec import decode, encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, FaultNotice, GroupSpec, PoolSpec
from tests.support.etcd import BINARIES, live_etcd, store_on
from tests.support.noded import model, until
from tests.support.real_systemd import PROJECT, RealSystemd

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

NODED, GATEWAY = "infctl-noded.service", "infctl-gateway.service"
NODE_YAML, GATEWAY_YAML = "/etc/infctl/node.yaml", "/etc/infctl/gateway.yaml"


def configured(systemd: RealSystemd, path: str, endpoint: str, **more: str) -> None:
    kind = "NodeConfig" if path == NODE_YAML else "GatewayConfig"
    words = {"apiVersion": "infctl/v1", "kind": kind, "endpoints": f'["{endpoint}"]', **more}
    systemd.write(path, "".join(f"{key}: {value}\n" for key, value in words.items()))


def drop_in(systemd: RealSystemd, unit: str, *lines: str) -> None:
    systemd.write(f"/etc/systemd/system/{unit}.d/own.conf", "\n".join(("[Service]", *lines, "")))
    systemd.run("systemctl", "daemon-reload")


@pytest.fixture(scope="module", autouse=True)
def installed(systemd: RealSystemd) -> None:
    """Both units as `install` writes them."""
    systemd.run("infctl-noded", "install")
    systemd.run("infctl-noded", "install", "--gateway", "--force")
    systemd.run("systemd-sysusers")
    systemd.run("systemctl", "daemon-reload")


@pytest.fixture(autouse=True)
def stopped(systemd: RealSystemd, installed: None) -> Iterator[None]:
    """Whatever a test left of them."""
    yield
    for unit in (NODED, GATEWAY):
        systemd.run("systemctl", "stop", unit)
        systemd.run("systemctl", "kill", "--kill-whom=all", "--signal=KILL", unit, check=False)
        systemd.run("systemctl", "reset-failed", unit, check=False)
        systemd.run("rm", "-rf", f"/etc/systemd/system/{unit}.d", "/etc/infctl")


async def test_the_daemon_starts_notifies_reloads_and_stops(systemd: RealSystemd, tmp_path: Path) -> None:
    async with live_etcd(BINARIES[0], tmp_path) as etcd:
        configured(systemd, NODE_YAML, etcd.endpoint)
        systemd.run("systemctl", "start", NODED)  # returns when it has said READY=1
        shown = systemd.show(NODED)
        assert (shown["ActiveState"], shown["SubState"], shown["StatusText"]) == ("active", "running", "supervising")
        systemd.until(NODED, lambda _: '"lease held"' in systemd.journal(NODED), "it has its lease")
        assert '"level": "debug"' not in systemd.journal(NODED)

        configured(systemd, NODE_YAML, etcd.endpoint, logLevel="debug", node="other")
        systemd.run("systemctl", "reload", NODED)
        after = systemd.until(NODED, lambda s: s["StatusText"] != "supervising", "it says what needs a restart")
        assert after["StatusText"] == "supervising; needs a restart: node"
        assert (after["ActiveState"], after["MainPID"]) == ("active", shown["MainPID"])

        systemd.run("systemctl", "stop", NODED)
        stopped = systemd.show(NODED)
        assert (stopped["ActiveState"], stopped["Result"], stopped["ExecMainStatus"]) == ("inactive", "success", "0")


async def test_the_daemon_sees_processes_kernel_log_and_cgroups(systemd: RealSystemd, tmp_path: Path) -> None:
    """The hardening is what it is for: what NVML, Xids and supervision need is there, the rest is not."""
    look = "; ".join(
        [
            "import os, json",
            "said = {}",
            "said['kmsg'] = os.close(os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK)) is None",
            "said['init'] = os.path.exists('/proc/1/maps') and bool(open('/proc/1/maps').read(10))",
            "said['pidfd'] = os.close(os.pidfd_open(1)) is None",
            "said['shm'] = os.close(os.open('/dev/shm/x', os.O_CREAT | os.O_WRONLY)) is None",
            "said['cgroup'] = os.access('/sys/fs/cgroup/cgroup.procs', os.W_OK)",
            "said['etc'] = os.access('/etc', os.W_OK)",
            "said['home'] = os.access('/root', os.W_OK)",
            "said['devices'] = len(os.listdir('/dev')) > 10",
            "open('/var/lib/infctl/node/said', 'w').write(json.dumps(said, sort_keys=True))",
        ]
    )
    drop_in(systemd, NODED, "Type=oneshot", "ExecStart=", f'ExecStart={sys.executable} -c "{look}"', "Restart=no")
    systemd.run("systemctl", "start", NODED)
    expected = {"cgroup": True, "devices": True, "etc": False, "home": False, "init": True, "kmsg": True}
    expected |= {"pidfd": True, "shm": True}
    assert json.loads(systemd.read("/var/lib/infctl/node/said")) == expected


async def test_the_watchdog_restarts_a_daemon_whose_loop_stands_still(systemd: RealSystemd, tmp_path: Path) -> None:
    async with live_etcd(BINARIES[0], tmp_path) as etcd:
        configured(systemd, NODE_YAML, etcd.endpoint)
        launcher = f"{sys.executable} {PROJECT}/tests/support/stuck_noded.py --config {NODE_YAML}"
        drop_in(systemd, NODED, "WatchdogSec=4", "RestartSec=100ms", "ExecStart=", f"ExecStart={launcher}")
        systemd.run("systemctl", "start", NODED)
        first = systemd.show(NODED)
        systemd.run("sleep", "6")  # a healthy one is left alone for longer than the watchdog waits
        assert systemd.show(NODED)["MainPID"] == first["MainPID"]

        systemd.run("kill", "-USR2", first["MainPID"])
        again = systemd.until(
            NODED,
            lambda s: s["NRestarts"] == "1" and s["ActiveState"] == "active" and s["MainPID"] != first["MainPID"],
            "it runs again",
        )
        assert again["StatusText"] == "supervising"
        journal = systemd.journal(NODED)
        assert "Watchdog timeout (limit 4s)!" in journal
        assert "in block_the_loop" in journal  # where it stood


async def test_a_wrong_configuration_does_not_loop(systemd: RealSystemd) -> None:
    for unit, path in ((NODED, NODE_YAML), (GATEWAY, GATEWAY_YAML)):
        systemd.write(path, 'endpoints: ["127.0.0.1:1"]\nstatedir: /x\n')
        assert systemd.run("systemctl", "start", unit, check=False).returncode != 0
        systemd.run("sleep", "3")  # longer than RestartSec
        shown = systemd.show(unit)
        assert (shown["ActiveState"], shown["ExecMainStatus"], shown["NRestarts"]) == ("failed", "2", "0")
        assert f"{path}:2: statedir: unknown key (did you mean stateDir?)" in systemd.journal(unit)


async def test_stopping_the_daemon_leaves_what_it_started_running(systemd: RealSystemd, tmp_path: Path) -> None:
    """An engine that has no unit of its own is a process of the daemon's cgroup."""
    async with live_etcd(BINARIES[0], tmp_path) as etcd:
        configured(systemd, NODE_YAML, etcd.endpoint)
        systemd.run("systemctl", "start", NODED)
        main = systemd.show(NODED)["MainPID"]
        group = systemd.show(NODED)["ControlGroup"]
        enter = f"echo $$ >/sys/fs/cgroup{group}/cgroup.procs && exec setsid sleep 600"
        engine = f"sh -c '{enter}' </dev/null >/dev/null 2>&1 & echo $!"
        pid = systemd.run("sh", "-c", engine).stdout.strip()
        systemd.until(NODED, lambda _: len(systemd.pids(NODED)) == 2, "it is in the cgroup of the daemon")

        systemd.run("systemctl", "stop", NODED)
        assert systemd.show(NODED)["ActiveState"] == "inactive"
        assert systemd.run("kill", "-0", pid, check=False).returncode == 0
        assert systemd.run("kill", "-0", main, check=False).returncode != 0

        systemd.run("systemctl", "start", NODED)
        assert systemd.show(NODED)["ActiveState"] == "active"
        assert systemd.run("kill", "-0", pid, check=False).returncode == 0
        systemd.run("kill", "-KILL", pid)


async def test_a_group_is_supervised_from_within_the_unit(systemd: RealSystemd, tmp_path: Path) -> None:
    """Nothing of the hardening is in the way: from the spec to the endpoint, over a restart of the unit that no engine
    notices, and from a death to its notice."""
    path = model(systemd.shared / "model").relative_to(systemd.shared)
    async with live_etcd(BINARIES[0], tmp_path) as etcd, store_on(etcd.endpoint) as store:
        configured(systemd, NODE_YAML, etcd.endpoint, node="n1")
        systemd.run("systemctl", "start", NODED)
        keys = Keys("default")
        spec = GroupSpec(
            name="a",
            pool="p",
            node="n1",
            engine="sim",
            model_path=f"/srv/shared/{path}",
            tp=2,
            max_running=4,
            max_queued=4,
            engine_args=["--sim-load-seconds", "0.1"],
            env={"PYTHONPATH": f"{PROJECT}:{PROJECT}/daemon"},
        )
        await store.put(keys.pool_spec("p"), encode(PoolSpec(name="p", model="tiny")))
        await store.put(keys.group_spec("a"), encode(spec))

        async def endpoint() -> EndpointRecord | None:
            found = await store.get(keys.endpoint("a"))
            return decode(EndpointRecord, found.value) if found else None

        launch = (await until(endpoint, 40, f"an endpoint\n{systemd.journal(NODED)[-3000:]}")).launch
        ranks = systemd.run("pgrep", "-f", "sim::scheduler_TP").stdout.split()
        systemd.run("systemctl", "stop", NODED)
        systemd.run("systemctl", "start", NODED)
        adopted = f'"launch": "{launch}"'
        systemd.until(
            NODED,
            lambda _: any("launch.adopted" in line and adopted in line for line in systemd.journal(NODED).splitlines()),
            "the next daemon takes the launch over",
        )
        assert systemd.run("pgrep", "-f", "sim::scheduler_TP").stdout.split() == ranks
        systemd.run("kill", "-KILL", ranks[1])

        async def notice() -> FaultNotice | None:
            found = await store.get(keys.fault("a", launch))
            return decode(FaultNotice, found.value) if found else None

        assert (await until(notice, 20, "a fault notice")).reason == "process-exited"
        await store.txn([], [Delete(keys.group_spec("a"))])

        async def gone() -> bool:
            return systemd.run("pgrep", "-f", "engine.sim|sim::", check=False).returncode == 1

        await until(gone, 20, "no process of the group is left")


async def test_a_killed_daemon_is_back_at_once_and_its_folders_are_kept(systemd: RealSystemd, tmp_path: Path) -> None:
    async with live_etcd(BINARIES[0], tmp_path) as etcd:
        configured(systemd, NODE_YAML, etcd.endpoint)
        systemd.run("systemctl", "start", NODED)
        main = systemd.show(NODED)["MainPID"]
        systemd.write("/run/infctl/node/keys/a.yaml", "kept\n")
        systemd.run("kill", "-KILL", main)
        systemd.until(NODED, lambda s: s["ActiveState"] == "active" and s["MainPID"] not in (main, "0"), "it is back")
        systemd.run("systemctl", "stop", NODED)
        assert systemd.read("/run/infctl/node/keys/a.yaml") == "kept\n"


async def test_the_gateway_starts_without_etcd_and_says_when_it_serves(systemd: RealSystemd, tmp_path: Path) -> None:
    async with live_etcd(BINARIES[0], tmp_path) as etcd:
        etcd.freeze()
        configured(systemd, GATEWAY_YAML, etcd.endpoint, listen='"127.0.0.1:0"', admin='"127.0.0.1:0"')
        systemd.run("systemctl", "start", GATEWAY)
        shown = systemd.show(GATEWAY)
        assert (shown["ActiveState"], shown["StatusText"]) == ("active", "waits for etcd")
        etcd.thaw()
        systemd.until(GATEWAY, lambda s: s["StatusText"] == "routing table read", "it reads its table")
        user = systemd.run("stat", "-c", "%U", f"/proc/{shown['MainPID']}").stdout.strip()
        assert user == "infctl-gateway"
        systemd.run("systemctl", "stop", GATEWAY)
        assert systemd.show(GATEWAY)["Result"] == "success"
