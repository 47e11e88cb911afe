"""Under systemd every launch is a transient unit: it outlives its daemon, keeps its exit status, and leaves nothing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infctl_daemon.proc.state_file import StateFile
from tests.support.etcd import BINARIES, live_etcd, store_on
from tests.support.noded import Cluster, Noded, model, until
from tests.support.real_systemd import PROJECT, RealSystemd

pytestmark = [pytest.mark.root]
DAEMON = "infctl-noded.service"
INSIDE = "/srv/shared/noded"


class InsideNoded(Noded):
    """The daemon runs inside; its files are seen from both sides, pids are those inside."""

    def __init__(self, systemd: RealSystemd, endpoint: str) -> None:
        super().__init__(systemd.shared / "noded", endpoint)
        self.systemd = systemd

    def start(self, *, stop_groups: bool = False, crash_at: str = "") -> None:
        self.folder.mkdir(exist_ok=True)
        config = {"apiVersion": "infctl/v1", "kind": "NodeConfig", "limits": self.limits}
        (self.folder / "node.yaml").write_text(json.dumps(config))
        argv = [sys.executable, "-m", "infctl_daemon.node.main", "--config", f"{INSIDE}/node.yaml", "--node", self.node]
        argv += ["--endpoints", self.endpoint, "--state-dir", f"{INSIDE}/state", "--run-dir", "/run/infctl/node"]
        properties = ["Type=notify", "NotifyAccess=main", f"StandardError=append:{INSIDE}/noded.log"]
        told = [f"--property={p}" for p in properties]
        self.systemd.run("systemd-run", "--quiet", "--collect", f"--unit={DAEMON}", *told, "--", *argv)

    async def close(self) -> None:
        self.systemd.run("systemctl", "kill", "--signal=KILL", DAEMON, check=False)
        for unit in engines(self.systemd):
            self.systemd.run("systemctl", "stop", unit, check=False)
            self.systemd.run("systemctl", "reset-failed", unit, check=False)


def engines(systemd: RealSystemd) -> list[str]:
    """The transient units of launches that systemd knows, failed ones too."""
    out = systemd.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "infctl-a-*").stdout
    return [line.split()[0] for line in out.splitlines()]


@pytest.fixture
async def cluster(systemd: RealSystemd, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with live_etcd(BINARIES[0], tmp_path / "etcd") as etcd, store_on(etcd.endpoint) as store:
        model(systemd.shared / "model")
        noded = InsideNoded(systemd, etcd.endpoint)
        try:
            noded.start()
            yield Cluster(etcd, store, noded, Path("/srv/shared/model"))
        finally:
            await noded.close()


async def test_an_engine_is_a_unit_that_outlives_its_daemon_and_whose_end_is_known(
    systemd: RealSystemd, cluster: Cluster
) -> None:
    await cluster.apply(cluster.spec(env={"PYTHONPATH": f"{PROJECT}:{PROJECT / 'daemon'}"}))
    first = await cluster.ready()
    (unit,) = engines(systemd)
    assert re.fullmatch(rf"infctl-{first.launch}\.[0-9a-f]{{8}}\.service", unit)
    state = StateFile(systemd.shared / "noded" / "state").read("a")
    assert state.container == f"systemd:{unit}"
    shown = systemd.show(unit)
    assert (shown["Slice"], shown["MainPID"]) == ("infctl.slice", str(state.processes[0].pid))
    members = systemd.pids(unit)
    assert len(members) >= 4

    # the daemon is stopped, then killed: its engine does not notice
    for how in (("systemctl", "stop", DAEMON), ("systemctl", "kill", "--signal=KILL", DAEMON)):
        systemd.run(*how)
        systemd.until(DAEMON, lambda s: s["ActiveState"] in ("inactive", "failed"), "the daemon is gone")
        assert systemd.pids(unit) == members
        systemd.run("systemctl", "reset-failed", DAEMON, check=False)
        cluster.noded.start()
        await until(lambda: _launch_again(cluster, first.launch), 30.0, "the launch is taken over")
        assert systemd.show(unit)["MainPID"] == shown["MainPID"]

    # it ends while no daemon is there: what systemd keeps of it is removed by the next one
    systemd.run("systemctl", "kill", "--signal=KILL", DAEMON)
    systemd.until(DAEMON, lambda s: s["ActiveState"] in ("inactive", "failed"), "the daemon is gone")
    systemd.run("sh", "-c", f"kill -SEGV {shown['MainPID']}")
    ended = systemd.until(unit, lambda s: s["ActiveState"] == "failed", "the engine has ended")
    assert (ended["Result"], ended["ExecMainStatus"]) == (
        "core-dump" if ended["ExecMainCode"] == "3" else "signal",
        "11",
    )
    systemd.run("systemctl", "reset-failed", DAEMON, check=False)
    cluster.noded.start()
    fault = await cluster.fault(first.launch)
    assert "ended while no daemon was here: signal 11" in fault.evidence
    second = await cluster.ready(not_launch=first.launch, seconds=40.0)
    assert engines(systemd) == [unit.replace(first.launch, second.launch)]

    # and while one is
    pid = systemd.show(engines(systemd)[0])["MainPID"]
    systemd.run("sh", "-c", f"kill -KILL {pid}")
    fault = await cluster.fault(second.launch)
    assert "signal 9" in fault.evidence
    third = await cluster.ready(not_launch=second.launch, seconds=40.0)
    assert engines(systemd) == [unit.replace(first.launch, third.launch)]


async def _launch_again(cluster: Cluster, launch: str) -> bool | None:
    status = await cluster.status(phase="ready")
    endpoint = await cluster.endpoint()
    return (status.launch == launch and endpoint is not None and endpoint.launch == launch) or None
