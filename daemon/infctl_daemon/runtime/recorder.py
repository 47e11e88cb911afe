"""A recorder of decisions: each event that went into `domain.step` and the effects that came out and were executed.

Off unless `INFCTL_RECORD` names a folder. One JSON line per step; `tests` replay them through `step` and must get the
same effects (R10), so an executor that acts on anything else is found out. Frames of tokens are recorded like
every other event: recording is for drills and tests, not for service.
"""

from __future__ import annotations

import dataclasses
import os
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec


class _Data(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=_Data)


def to_wire(value: _Data) -> dict[str, Any]:
    """A frozen dataclass as plain data with its type's name."""
    return {"type": type(value).__name__, **dataclasses.asdict(value)}


def from_wire(kinds: tuple[type[T], ...], data: dict[str, Any]) -> T:
    """The other way round. Raises KeyError for a name that is not among `kinds`."""
    by_name = {k.__name__: k for k in kinds}
    fields = {k: v for k, v in data.items() if k != "type"}
    return msgspec.convert(fields, by_name[data["type"]])


class Recorder:
    """Appends to `<folder>/<process>-<pid>.jsonl`; does nothing without a folder."""

    def __init__(self, process: str, folder: str | None = None) -> None:
        folder = folder if folder is not None else os.environ.get("INFCTL_RECORD", "")
        self._file: FileIO | None = None
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = open(Path(folder) / f"{process}-{os.getpid()}.jsonl", "ab", buffering=0)  # noqa: SIM115

    @property
    def on(self) -> bool:
        return self._file is not None

    def initial(self, machine: str, key: str, state: _Data) -> None:
        if self._file is not None:
            self._write(self._file, {"machine": machine, "key": key, "initial": to_wire(state)})

    def step(self, machine: str, key: str, now: float, event: _Data, effects: tuple[Any, ...]) -> None:
        if self._file is None:
            return  # in service: not even the words are made
        self._write(
            self._file,
            {
                "machine": machine,
                "key": key,
                "now": now,
                "event": to_wire(event),
                "effects": [to_wire(e) for e in effects],
            },
        )

    @staticmethod
    def _write(file: FileIO, line: dict[str, Any]) -> None:
        file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
