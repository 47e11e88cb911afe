"""The files of `apply` and `diff`: read and checked as a whole; what is right and may surprise goes to stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from infctl.domain.errors import UsageError

if TYPE_CHECKING:
    from infctl.client.specs import Spec


def read_specs(files: list[str]) -> list[Spec]:
    """Specs of every document meant, pools first. Raises ConfigError with all that is wrong, and UsageError."""
    from infctl.cli import io
    from infctl.client.specs import to_specs
    from infctl.config.load import read_documents

    documents, notes = read_documents(read_sources(files))
    specs = to_specs(documents)
    if not specs:
        raise UsageError("the files hold no document")
    for note in notes:
        io.err(f"note: {io.printable(str(note))}")
    return specs


def read_sources(files: list[str]) -> list[tuple[str, str]]:
    """(name, text) of every file meant; folders give their *.yaml and *.yml. Raises ConfigError and UsageError."""
    from infctl.config.source import read_file

    sources: list[tuple[str, str]] = []
    for name in files:
        if name == "-":
            sources.append(("<stdin>", sys.stdin.read()))
            continue
        path = Path(name)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix in (".yaml", ".yml"))
            if not inside:
                raise UsageError(f"{path} holds no *.yaml file")
            sources.extend((str(p), read_file(p)) for p in inside)
        else:
            sources.append((name, read_file(path)))
    return sources
