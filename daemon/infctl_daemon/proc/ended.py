"""How each launch ended: one small file for each, the newest of a group kept, so that it can still be asked afterwards.

Files are replaced whole (`state_file.write_durably`) in `<folder>/ended/<group>/`. Exit code and signal are those of
the process whose end ended the launch, else those of the main process; neither is known of processes that we did not
start. What falls out of the list takes its log with it, so a group that crashes without end fills no disk.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from infctl.domain.ids import check_name
from infctl_daemon.proc.state_file import write_durably

KEPT = 10


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """`process` is the title of what ended first, "" where nothing did before we ended it. Times are RFC 3339 UTC.

    `key_digest` (sha256) lets whoever still has the launch's key ask about it; the key itself is kept nowhere.
    """

    v: int = 1
    group: str
    launch: str
    generation: int = 0
    reason: str = ""
    evidence: str = ""
    process: str = ""
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    started_at: str = ""
    ended_at: str = ""
    key_digest: str = ""


class EndedRecords:
    """The records of all groups of one daemon. Reads and writes files in place: call it from a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "ended"
        self._logs = folder / "logs"

    def _of(self, group: str) -> Path:
        return self._folder / check_name(group, "group")

    def write(self, record: Ended) -> None:
        """Keep `record`, and only the newest of its group. The first word on a launch stays. Raises OSError."""
        path = self._of(record.group) / f"{record.launch}.json"
        if path.exists():
            return
        write_durably(path, msgspec.json.encode(record))
        for old in self.read(record.group)[KEPT:]:
            (self._logs / f"{old.launch}.log").unlink(missing_ok=True)
            (self._of(record.group) / f"{old.launch}.json").unlink(missing_ok=True)

    def read(self, group: str) -> list[Ended]:
        """Newest first; what does not decode is passed over."""
        found = []
        try:
            paths = [p for p in self._of(group).iterdir() if p.suffix == ".json" and not p.name.startswith(".")]
        except OSError:
            return []
        for path in paths:
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Ended))
            except (OSError, msgspec.MsgspecError):
                continue
        return sorted(found, key=lambda record: record.ended_at, reverse=True)

    def one(self, group: str, launch: str) -> Ended | None:
        return next((record for record in self.read(group) if record.launch == launch), None)
