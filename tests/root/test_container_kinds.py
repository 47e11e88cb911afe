"""Launches held by a cgroup of our own and by a transient systemd unit pass the same cases as those of a session."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infctl.domain.errors import ConfigError
from infctl_daemon.proc import cgroupfs, choose
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
    async with asyncio.timeout(50):
        await case(await cases.driver("cgroup", tmp_path), tmp_path)


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
