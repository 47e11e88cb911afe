"""Launches held by a cgroup of our own and by a transient systemd unit pass the same cases as those of a session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infctl.domain.errors import ConfigError, StartFailed
from infctl_daemon.proc import cgroupfs, choose, procfs
from infctl_daemon.proc.container import Limits
from tests.support import container_cases as cases
from tests.support.needs import need
from tests.support.real_systemd import RealSystemd

pytestmark = [pytest.mark.root]
NAMES = [case.__name__ for case in cases.CASES]


@pytest.fixture
def cgroups() -> Iterator[Path]:
    """Where cgroups of our own are made; none is left afterwards."""
    parent = choose.cgroup_parent()
    need(parent if isinstance(parent, str) else "")
    assert isinstance(parent, Path)
    before = set(parent.glob("infctl-*"))
    yield parent
    assert set(parent.glob("infctl-*")) == before


@pytest.mark.parametrize("case", cases.CASES, ids=NAMES)
async def test_a_cgroup(case: cases.Case, cgroups: Path, tmp_path: Path) -> None:
    await cases.held(case, "cgroup", tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_systemd_unit(name: str, systemd: RealSystemd) -> None:
    done = systemd.run(
        sys.executable, "-m", "tests.support.container_cases", "systemd", "/run/cases", name, check=False, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    left = systemd.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "infctl-*").stdout
    assert left == ""


def test_systemd_is_chosen_where_it_is(systemd: RealSystemd) -> None:
    script = (
        "import asyncio, pathlib; from infctl_daemon.proc import choose;"
        "at = pathlib.Path('/run/choice'); print(asyncio.run(choose.choose(at / 'state', at / 'run')).text)"
    )
    assert systemd.run(sys.executable, "-c", script).stdout == "systemd\n"


async def test_without_systemd_a_cgroup_is_chosen_and_the_reason_is_told(cgroups: Path, tmp_path: Path) -> None:
    need("PID 1 is systemd here" if not choose.systemd_here() else "")
    chosen = await choose.choose(tmp_path / "state", tmp_path / "run")
    assert chosen.text == "cgroup (no systemd: PID 1 is not systemd)"
    assert list(tmp_path.rglob("*.log")) == list(tmp_path.rglob("*.order")) == []


async def test_what_does_not_work_when_tried_is_not_taken(
    cgroups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroupfs, "pids", lambda group: frozenset())
    chosen = await choose.choose(tmp_path / "state", tmp_path / "run", ["cgroup", "session"])
    assert chosen.text == "session (no cgroup: tried: a started process is not listed)"
    with pytest.raises(ConfigError, match="a started process is not listed"):
        await choose.choose(tmp_path / "state", tmp_path / "run", ["cgroup"])


async def test_a_limit_holds_or_the_launch_is_refused(cgroups: Path, tmp_path: Path) -> None:
    driver = await cases.driver("cgroup", tmp_path)
    order = cases.order(tmp_path, [sys.executable, "-S", "-c", "x = b'x' * 500_000_000; import time; time.sleep(60)"])
    limited = replace(order, limits=Limits(memory_bytes=64 << 20))
    if "memory" not in cgroupfs.controllers(cgroups):
        with pytest.raises(StartFailed, match="no cgroup controller for memory"):
            await driver.start(limited)
        assert await driver.names() == []
        return
    container = await driver.start(limited)
    assert await cases.ended(container) == "signal 9"
    assert container.oom_kills() > 0
    await cases.nothing_left(driver, container)


async def test_only_empty_containers_that_are_not_on_record_are_swept(cgroups: Path, tmp_path: Path) -> None:
    driver = await cases.driver("cgroup", tmp_path)
    ended, recorded, running = [await driver.start(cases.order(tmp_path, ["/bin/sleep", "600"])) for _ in range(3)]
    for container in (ended, recorded):
        assert container.kill()
        assert await cases.ended(container) == "signal 9"
    await cases.until(lambda: not (ended.pids() or recorded.pids()), "they are empty")
    assert await choose.sweep(driver, {recorded.name}) == [ended.name]
    assert set(await driver.names()) == {recorded.name, running.name}
    assert procfs.is_alive(running.main)
    running.kill()
    assert await cases.ended(running) == "signal 9"
    for container in (recorded, running):
        await cases.nothing_left(driver, container)
