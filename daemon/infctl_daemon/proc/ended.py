"""How each launch of a group ended: one small file for each, beside its output; the newest ten are kept.

Written durably and whole, so that a reader sees a record or none. Sorted by when the launch ended, not by name.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import msgspec

from infctl.domain.ids import check_name
from infctl_daemon.proc.state_file import write_durably

KEPT = 10


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """`exit_code` and `signal` are the main process's, both None when nobody can know them any more.

    Where another process ended first, and the launch with it, they are of that one, and `process` is its title.
    `node_rank` is above 0 for a part of a launch that another host owns, whose generation only that one knows.
    `key_digest` (sha256) lets whoever has the launch's key ask about it; the key itself is kept nowhere.
    """

    v: int = 1
    group: str
    launch: str
    generation: int = 0
    node_rank: int = 0
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    message: str = ""
    oom_kills: int = 0
    container: str = ""
    started_at: str = ""
    ended_at: str
    log: str = ""
    process: str = ""
    key_digest: str = ""


def log_path(folder: Path, launch: str) -> Path:
    """Where the output of a launch goes; `folder` is the daemon's state folder."""
    return folder / "logs" / f"{launch}.log"


def _records(folder: Path, group: str) -> Path:
    return folder / "ended" / check_name(group, "group")


def read(folder: Path, group: str) -> list[Ended]:
    """The records of a group, newest first; one that does not decode is left out."""
    found = []
    for path in _records(folder, group).glob("*.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found.append(msgspec.json.decode(path.read_bytes(), type=Ended))
    return sorted(found, key=lambda e: (e.ended_at, e.launch), reverse=True)


def write(folder: Path, record: Ended) -> None:
    """Keep the record and drop those beyond the newest ten, with their output. The first word on a launch stays.

    Raises OSError.
    """
    records = _records(folder, record.group)
    if (records / f"{record.launch}.json").exists():
        return
    write_durably(records / f"{record.launch}.json", msgspec.json.encode(record))
    known = read(folder, record.group)
    for old in known[KEPT:]:
        (records / f"{old.launch}.json").unlink(missing_ok=True)
    _drop_logs(folder, record.group, {e.launch for e in known[:KEPT]})


def _drop_logs(folder: Path, group: str, keep: set[str]) -> None:
    """Remove the output of launches without a record, but for the newest ten: one may run, or be about to."""
    ours = re.compile(re.escape(group) + r"-[a-z2-7]{8}")
    with contextlib.suppress(OSError):
        paths = [p for p in (folder / "logs").glob("*.log") if ours.fullmatch(p.stem) and p.stem not in keep]
        paths.sort(key=lambda p: p.stat().st_mtime, reverse=True)
        for path in paths[KEPT:]:
            path.unlink(missing_ok=True)
