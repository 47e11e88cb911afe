"""The output of a launch is read from its end and never fills the disk; how it ended is kept for the last ten."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infctl_daemon.proc import ended, output
from infctl_daemon.proc.ended import Ended


def test_the_last_lines_are_read_whatever_the_size(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert output.tail(log) == []
    log.write_bytes(b"")
    assert output.tail(log) == []
    log.write_bytes(b"only\n\npart")
    assert output.tail(log) == ["only", "", "part"]
    log.write_text("".join(f"line {i}\n" for i in range(100_000)))
    assert output.tail(log) == [f"line {i}" for i in range(99_800, 100_000)]
    assert output.tail(log, 3) == ["line 99997", "line 99998", "line 99999"]
    assert output.tail(log, 0) == []


def test_a_line_without_end_is_cut_and_what_is_no_text_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"x" * 5_000_000)
    assert [len(line) for line in output.tail(log)] == [output.TAIL_BYTES]
    log.write_bytes(b"\xff\xfe broken\nfine\n")
    assert output.tail(log) == ["\ufffd\ufffd broken", "fine"]


@pytest.mark.parametrize("holes", [True, False])
def test_an_engine_that_prints_without_end_is_kept_within_bounds_and_goes_on(
    holes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not holes:
        monkeypatch.setattr(output, "_punch", lambda fd, size: False)
    log = tmp_path / "x.log"
    code = "i = 0\nwhile True:\n print(f'line {i:06}' + 'x' * 4000, flush=i % 50 == 0)\n i += 1"
    keep, slack = 2 << 20, 1 << 20
    with open(log, "ab") as out:
        engine = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=out, stderr=out)
    try:
        freed, highest = 0, 0
        end = time.monotonic() + 30
        while freed < 20 << 20:
            assert time.monotonic() < end
            freed += output.bound(log, keep, slack)
            highest = max(highest, output.on_disk(log))
            time.sleep(0.005)
        assert engine.poll() is None, "nothing stops it from printing"
    finally:
        engine.kill()
        engine.wait()
    output.bound(log, keep, 0)
    assert output.on_disk(log) <= keep + (2 << 20)
    numbers = [int(line[5:11]) for line in output.tail(log)[:-1] if line.startswith("line")]
    assert len(numbers) > 100
    # punching a hole loses nothing of the rest
    assert not holes or numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_small_file_is_left_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert output.bound(log) == 0
    log.write_text("a\n" * 1000)
    assert output.bound(log, 1000, 1000) == 0
    assert output.bound(log, 10_000, 0) == 0
    assert log.read_text() == "a\n" * 1000


async def test_a_look_now_and_then_is_enough(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    looking = asyncio.create_task(output.keep_bounded(log, 0.01, 1 << 20, 1 << 20))
    await asyncio.sleep(0.05)
    log.write_bytes(b"x" * (10 << 20))
    for _ in range(500):
        if output.on_disk(log) <= 2 << 20:
            break
        await asyncio.sleep(0.01)
    assert output.on_disk(log) <= 2 << 20
    assert not looking.done()
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


def _record(group: str, number: int) -> Ended:
    launch = f"{group}-aaaaaa{chr(97 + number // 26)}{chr(97 + number % 26)}"
    return Ended(group=group, launch=launch, exit_code=number, ended_at=f"2026-01-01T00:00:{number:02}Z")


def test_the_newest_ten_records_of_a_group_are_kept_with_their_output(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    foreign = [tmp_path / "logs" / name for name in ("g-x-aaaaaaaa.log", "g.log", "other-aaaaaaaa.log")]
    for path in foreign:
        path.write_text("theirs")
        os.utime(path, (1, 1))
    for number in range(25):
        record = _record("g", number)
        log = ended.log_path(tmp_path, record.launch)
        log.write_text("ours")
        os.utime(log, (1000 + number, 1000 + number))
        ended.write(tmp_path, record)
    running = ended.log_path(tmp_path, "g-runnings")
    running.write_text("now")
    ended.write(tmp_path, _record("g", 25))
    assert [e.exit_code for e in ended.read(tmp_path, "g")] == list(range(25, 15, -1))
    assert all(path.exists() for path in [*foreign, running])
    assert len(list((tmp_path / "logs").glob("g-aaaaaa*.log"))) <= 2 * ended.KEPT
    assert ended.log_path(tmp_path, _record("g", 24).launch).exists()
    assert ended.read(tmp_path, "g-x") == []


def test_a_broken_record_hides_no_other(tmp_path: Path) -> None:
    ended.write(tmp_path, _record("g", 1))
    (tmp_path / "ended" / "g" / "g-zzzzzzzz.json").write_text("{")
    assert [e.exit_code for e in ended.read(tmp_path, "g")] == [1]
    assert list((tmp_path / "ended" / "g").glob(".*")) == []
    assert (tmp_path / "ended" / "g" / f"{_record('g', 1).launch}.json").stat().st_mode & 0o077 == 0
