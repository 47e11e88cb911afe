"""The systemd that the other tests of this folder rely on is a real one, and nothing of it is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.needs import need
from tests.support.real_systemd import RealSystemd, real_systemd, why_not

pytestmark = [pytest.mark.root]


def test_a_transient_unit_keeps_its_exit_code(systemd: RealSystemd) -> None:
    done = systemd.run("systemd-run", "--unit=t1", "--wait", "--quiet", "/bin/sh", "-c", "exit 3", check=False)
    assert done.returncode == 3
    shown = systemd.show("t1.service")
    assert (shown["Result"], shown["ExecMainStatus"]) == ("exit-code", "3")


def test_a_unit_has_a_cgroup_that_kills_all_of_it(systemd: RealSystemd) -> None:
    script = "sleep 600 & sleep 600 & wait"
    systemd.run("systemd-run", "--unit=t2", "--property=KillMode=none", "/bin/sh", "-c", script)
    systemd.until("t2.service", lambda _: len(systemd.pids("t2.service")) == 3, "three processes run")
    outside = systemd.pids("t2.service")
    systemd.run("sh", "-c", f"echo 1 >/sys/fs/cgroup{systemd.show('t2.service')['ControlGroup']}/cgroup.kill")
    systemd.until("t2.service", lambda shown: shown["ActiveState"] == "failed", "the unit ends")
    assert [p for p in outside if os.path.exists(f"/proc/{p}/exe")] == []


def test_the_code_under_test_runs_inside(systemd: RealSystemd) -> None:
    assert "usage: infctl-noded" in systemd.run("infctl-noded", "--help").stdout
    (systemd.shared / "note").write_text("from outside")
    assert systemd.read("/srv/shared/note") == "from outside"


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    need(why_not())
    with real_systemd(tmp_path / "own") as booted:
        booted.run("systemd-run", "--unit=t3", "--property=KillMode=none", "/bin/sleep", "600")
        alive = [*booted.pids("t3.service"), *booted.pids("systemd-journald.service")]
        assert len(alive) >= 2
    assert [p for p in alive if os.path.exists(f"/proc/{p}/exe")] == []
    assert booted.cgroup != Path() and not booted.cgroup.exists()
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
