"""The files of a cgroup are read as they are, and one that is not there reads as empty."""

from __future__ import annotations

from pathlib import Path

from infctl_daemon.proc import cgroupfs, stuck
from infctl_daemon.proc.procfs import Ident
from infctl_daemon.proc.systemd_unit import status_of

HYBRID = """\
30 24 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/uni\\040fied ro,relatime shared:9 - cgroup2 cgroup2 rw
34 30 0:29 /docker/1 /elsewhere rw - cgroup2 cgroup2 rw
"""


def test_hierarchies_are_found_the_unified_one_first(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(HYBRID)
    assert cgroupfs.mounts(table) == [
        cgroupfs.Mount(Path("/sys/fs/cgroup/uni fied"), True, False),
        cgroupfs.Mount(Path("/sys/fs/cgroup/systemd"), False, True),
    ]
    assert cgroupfs.mounts(tmp_path / "none") == []


def test_members_and_deaths_for_memory_are_read(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("12\n0\n7\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 31\noom 2\noom_kill 3\noom_group_kill 1\n")
    assert cgroupfs.pids(tmp_path) == {7, 12}, "0 is a process of another namespace"
    assert cgroupfs.oom_kills(tmp_path) == 3
    gone = tmp_path / "gone"
    assert (cgroupfs.pids(gone), cgroupfs.oom_kills(gone), cgroupfs.kill(gone)) == (frozenset(), 0, False)
    assert cgroupfs.remove(gone)
    assert cgroupfs.own_path("9:name=systemd:/\n0::/system.slice/x.service\n") == "/system.slice/x.service"
    assert cgroupfs.own_path("9:name=systemd:/\n") == ""


def test_what_systemd_keeps_of_an_end_is_understood() -> None:
    def text(code: str, status: str) -> str:
        return status_of({"ExecMainCode": code, "ExecMainStatus": status}).text

    assert [text("1", "0"), text("1", "3"), text("2", "9"), text("3", "11")] == [
        "exit code 0",
        "exit code 3",
        "signal 9",
        "signal 11",
    ]
    assert [text("0", "0"), text("", ""), status_of({}).text] == ["", "", ""]


def test_where_a_process_waits_is_told() -> None:
    assert stuck.examine(Ident(2**22 + 1, 1)) is None, "a process that is not there is not stuck"
    one = stuck.Stuck(Ident(7, 1), "sglang::scheduler_TP0", "D", "nv_wait", ("nv_wait", "nv_ioctl"))
    other = stuck.Stuck(Ident(6, 1), "", "R", "", ())
    assert stuck.text([other, one]) == (
        "sglang::scheduler_TP0 (pid 7) in state D in nv_wait (nv_wait < nv_ioctl); process (pid 6) in state R"
    )
