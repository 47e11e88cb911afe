"""One list of columns for each kind. It drives the table and `-o wide`; a cell is text made from the document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from infctl.view.documents import Doc
from infctl.view.hosts import NOT_HEARD, NOT_THERE
from infctl.view.humanize import age, clock, reason_and_message, short, size
from infctl.view.kinds import Kind

Cell = Callable[[Doc, datetime], str]


@dataclass(frozen=True, slots=True)
class Column:
    """`wide` columns are shown only with `-o wide`; the text of a `flex` column may be broken between words."""

    title: str
    cell: Cell
    wide: bool = False
    right: bool = False
    flex: bool = False


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _name(title: str = "NAME") -> Column:
    return Column(title, lambda d, _: str(d["metadata"]["name"]))


def _status(title: str, key: str, *, wide: bool = False, right: bool = False) -> Column:
    return Column(title, lambda d, _: _text(d["status"].get(key)), wide, right)


def _spec(title: str, key: str, *, wide: bool = False, right: bool = False) -> Column:
    return Column(title, lambda d, _: _text((d["spec"] or {}).get(key)), wide, right)


def _message(title: str, key: str, most: int, *, wide: bool = False) -> Column:
    return Column(title, lambda d, _: short(d["status"].get(key), most), wide)


def _sentence(document: Doc) -> str:
    """What an event says: its reason and its message, once."""
    reason, message = document["status"]["reason"] or "", document["status"]["message"] or ""
    return reason_and_message(reason, message) or "-"


def _is_past(status: Doc) -> bool:
    return status["ownerHeard"] is False


def _phase_of_group(status: Doc) -> str:
    """The owner's word; a `?` says that the owner is not heard any more."""
    return f"{_text(status['phase'])}{'?' if _is_past(status) else ''}"


def _hosts(parts: list[Doc]) -> str:
    """`a loaded, b loading, c not there`; the node is enough where there is one."""
    words = (f"{p['node']} {p['state'] or (NOT_THERE if p['heard'] else NOT_HEARD)}" for p in parts)
    return ", ".join(words) or "-"


AGE = Column("AGE", lambda d, now: age(d["metadata"]["createdAt"], now))

COLUMNS: dict[Kind, tuple[Column, ...]] = {
    Kind.NODE: (
        _name(),
        _status("STATUS", "phase"),
        _status("REASON", "reason"),
        Column("GROUPS", lambda d, _: str(len(d["status"]["groups"])), right=True),
        _status("CPUS", "cpus", right=True),
        Column("MEMORY", lambda d, _: size(d["status"]["memoryBytes"]), right=True),
        AGE,
        _status("VERSION", "version", wide=True),
        _status("ADDRESS", "address", wide=True),
    ),
    Kind.POOL: (
        _name(),
        _status("STATUS", "phase"),
        _spec("MODEL", "model"),
        Column("READY", lambda d, _: f"{d['status']['ready']}/{d['status']['groups']}", right=True),
        _spec("MIN", "minReady", right=True),
        Column("REVISIONS", lambda d, _: ",".join(short(r, 12) for r in d["status"]["revisions"]) or "-", wide=True),
    ),
    Kind.GROUP: (
        _name(),
        Column("STATUS", lambda d, _: _phase_of_group(d["status"])),
        Column("REASON", lambda d, _: "OwnerNotHeard" if _is_past(d["status"]) else _text(d["status"]["reason"])),
        _spec("POOL", "pool"),
        _spec("NODE", "node"),
        _spec("ENGINE", "engine"),
        _spec("TP", "tensorParallel", right=True),
        _status("GEN", "generation", right=True),
        _status("RESTARTS", "restarts", right=True),
        AGE,
        _status("LAUNCH", "launch", wide=True),
        _status("PID", "pid", wide=True, right=True),
        _status("URL", "url", wide=True),
        Column("HOSTS", lambda d, _: _hosts(d["status"]["hosts"]), wide=True),
        Column("MESSAGE", lambda d, _: _text(d["status"]["message"]), wide=True, flex=True),
    ),
    Kind.ENDPOINT: (
        _name("GROUP"),
        _status("STATUS", "phase"),
        _status("POOL", "pool"),
        _status("GEN", "generation", right=True),
        _status("LAUNCH", "launch"),
        _status("URL", "url"),
        AGE,
        _status("MODEL", "model", wide=True),
        _status("CONTEXT", "contextLength", wide=True, right=True),
        Column("CAPS", lambda d, _: f"{d['status']['maxRunning']}+{d['status']['maxQueued']}", wide=True, right=True),
        _message("REVISION", "revision", 16, wide=True),
    ),
    Kind.STREAM: (
        _name("STREAM"),
        _status("STATUS", "phase"),
        _status("MODEL", "model"),
        _status("GROUP", "group"),
        Column("EPOCH", lambda d, _: f"{d['status']['term']}.{d['status']['attempt']}", right=True),
        _status("TOKENS", "committedTokens", right=True),
        _status("MOVES", "migrations", right=True),
        _status("CONTRACT", "contract"),
        AGE,
        _status("OWNER", "owner", wide=True),
        _status("LAUNCH", "launch", wide=True),
        _status("PROMPT", "promptTokens", wide=True, right=True),
        _status("REPLAYED", "replayedTokens", wide=True, right=True),
        _status("FINISH", "finishReason", wide=True),
        Column("ERROR", lambda d, _: _text(d["status"]["error"]), wide=True, flex=True),
    ),
    Kind.GATEWAY: (
        _name(),
        _status("STATUS", "phase"),
        _status("URL", "url"),
        _status("STREAMS", "streams", right=True),
        _status("QUEUED", "queued", right=True),
        Column("DATA AGE", lambda d, _: f"{d['status']['snapshotAgeSeconds']:.1f}s", right=True),
        AGE,
        _status("VERSION", "version", wide=True),
        _status("ADMIN", "admin", wide=True),
        _status("REVISION", "snapshotRevision", wide=True, right=True),
    ),
    Kind.EVENT: (
        Column("TIME", lambda d, now: clock(d["metadata"]["createdAt"], now)),
        Column("AGE", lambda d, now: age(d["metadata"]["createdAt"], now), wide=True),
        _status("TYPE", "type"),
        _status("SUBJECT", "subject"),
        _status("ACTOR", "actor", wide=True),
        _status("FAULT", "faultId", wide=True),
        Column("ID", lambda d, _: str(d["metadata"]["name"]), wide=True),
        Column("MESSAGE", lambda d, _: _sentence(d), flex=True),
    ),
}


def rows(kind: Kind, documents: list[Doc], now: datetime, *, wide: bool) -> tuple[list[Column], list[list[str]]]:
    """The columns to show and the text of every cell."""
    columns = [c for c in COLUMNS[kind] if wide or not c.wide]
    return columns, [[c.cell(d, now) for c in columns] for d in documents]
