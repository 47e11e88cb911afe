"""The daemon's state file: whole after any crash, private, its generation never falling."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from infctl.domain.errors import UsageError
from infctl_daemon.proc import procfs, state_file
from infctl_daemon.proc.procfs import Ident
from infctl_daemon.proc.state_file import GroupState, Process, StateFile, write_durably


def state(**other: object) -> GroupState:
    return GroupState(group="a", **other)  # type: ignore[arg-type]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    kept = state(generation=3, launch="a-22222222", port=12000, processes=[Process(10, 99, "sglang::detokenizer")])
    StateFile(tmp_path).write(kept)
    again = StateFile(tmp_path)
    assert again.read("a") == kept
    assert again.groups() == ["a"]
    assert again.read("b") == GroupState(group="b")


def test_the_generation_never_falls(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(state(generation=5, launch="new"))
    file.write(state(generation=2, launch="old"))
    assert file.read("a").generation == 5


def test_a_torn_or_foreign_file_counts_as_none(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(state(generation=5))
    (tmp_path / "groups" / "a.json").write_bytes(b'{"group": "a", "gener')
    assert file.read("a") == GroupState(group="a")


def test_a_crash_before_the_rename_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_durably(path, b"old")

    def crash(*_: object) -> None:
        raise OSError("power")

    monkeypatch.setattr(state_file.os, "replace", crash)
    with pytest.raises(OSError, match="power"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_durably(tmp_path / "keys" / "k.yaml", b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys" / "k.yaml").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_processes_of_another_boot_are_no_leftovers(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    processes = [Process(10, 99), Process(11, 100)]
    file.write(state(boot_id="another boot", processes=processes))
    assert file.leftovers("a") == ()
    file.write(state(boot_id=procfs.boot_id(), processes=processes))
    assert [p.ident for p in file.leftovers("a")] == [Ident(10, 99), Ident(11, 100)]


def test_a_name_that_would_leave_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        StateFile(tmp_path).read("../../etc/passwd")
