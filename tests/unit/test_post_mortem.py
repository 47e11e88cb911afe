"""What is read when a process has ended: kills for memory of its cgroup, and the engine's last words."""

from __future__ import annotations

from pathlib import Path

import pytest

from infctl.domain.causes import Cause, classify
from infctl_daemon.node.post_mortem import evidence, last_words
from infctl_daemon.proc.oom import OomKills


def machine(folder: Path, cgroup: str, file: str, text: str) -> tuple[Path, Path, Path]:
    """A /proc and a /sys/fs/cgroup with one process and one counter."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text(cgroup)
    counter = cgroups / file
    counter.parent.mkdir(parents=True)
    counter.write_text(text)
    return proc, cgroups, counter


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/infctl/a-1\n", "infctl/a-1/memory.events", "low 0\nmax 4\noom 2\noom_kill {}\noom_group_kill 0\n"),
        ("0::/x\n", "unified/x/memory.events", "oom_kill {}\n"),
        ("9:pids:/y\n4:memory:/y\n0::/\n", "memory/y/memory.oom_control", "under_oom 0\noom_kill {}\n"),
        ("4:cpu,memory:/y:z\n", "memory/y:z/memory.oom_control", "oom_kill {}\n"),
    ],
)  # fmt: skip
def test_kills_for_memory_are_counted_from_the_start_of_the_launch(
    tmp_path: Path, cgroup: str, file: str, text: str
) -> None:
    proc, cgroups, counter = machine(tmp_path, cgroup, file, text.format(3))
    kills = OomKills.of(7, proc, cgroups)
    assert kills is not None and kills.since == 0
    assert classify(evidence(-9, tmp_path / "none", kills.since)) is Cause.CRASH
    counter.write_text(text.format(4))
    assert kills.since == 1
    assert classify(evidence(-9, tmp_path / "none", kills.since)) is Cause.OUT_OF_MEMORY
    assert classify(evidence(1, tmp_path / "none", kills.since)) is Cause.CRASH, "killed are not all in it"


@pytest.mark.parametrize("text", ["", "oom_kill many\n", "something else\n"])
def test_what_cannot_be_read_is_no_evidence(tmp_path: Path, text: str) -> None:
    proc, cgroups, counter = machine(tmp_path, "0::/a\nbroken\n", "a/memory.events", text)
    assert OomKills.of(7, proc, cgroups) is None
    assert OomKills.of(8, proc, cgroups) is None
    counter.write_text("oom_kill 2\n")
    kills = OomKills.of(7, proc, cgroups)
    assert kills is not None
    counter.unlink()
    assert kills.since == 0


def test_the_last_words_are_the_end_of_the_file_and_bounded(tmp_path: Path) -> None:
    log = tmp_path / "a-1.log"
    log.write_bytes(b"CUDA out of memory, long ago\n" + b"x" * 20_000 + b"\xff the end\n")
    assert last_words(log).endswith("the end\n") and len(last_words(log)) <= 16 * 1024
    assert classify(evidence(-9, log, 0)) is Cause.CRASH
    with open(log, "ab") as file:
        file.write(b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert classify(evidence(-9, log, 0)) is Cause.DEVICE_OUT_OF_MEMORY
    assert last_words(tmp_path / "none") == ""
