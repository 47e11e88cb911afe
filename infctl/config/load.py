"""Reading configuration files: what comes back is whole and checked, or one ConfigError lists all that is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from infctl.config.check import check, nearest
from infctl.config.documents import DOCUMENTS, RULES, GroupDocument, PoolDocument, Read, notes, problems_between
from infctl.config.gateway import GatewayConfig
from infctl.config.limits import LimitsPart, timer_problems
from infctl.config.node import NodeConfig
from infctl.config.source import Document, Problem, fail, parse, read_file
from infctl.domain.errors import ConfigError

C = TypeVar("C", NodeConfig, GatewayConfig)


@dataclass(frozen=True, slots=True)
class Located:
    """A checked document and where it stands."""

    document: PoolDocument | GroupDocument
    file: str
    line: int


def load_node_config(path: str | Path) -> NodeConfig:
    return _load(NodeConfig, Path(path))


def load_gateway_config(path: str | Path) -> GatewayConfig:
    return _load(GatewayConfig, Path(path))


def _load(kind: type[C], path: Path) -> C:
    made, _, problems = examine(kind, path)
    fail(problems)
    assert made is not None
    return made


def examine(kind: type[C], path: Path) -> tuple[C | None, Document | None, list[Problem]]:
    """The settings of a daemon's file, the file, and all that is wrong with it. Raises ConfigError where it is no YAML.

    With problems there are no settings; an empty file has no document, and sets nothing.
    """
    documents = parse(read_file(path), str(path))
    if not documents:
        return kind(), None, []
    document = documents[0]
    if len(documents) > 1:
        return None, document, [documents[1].problem((), "a second document; this file holds one")]
    made: C | None
    problems: list[Problem]
    made, problems = check(kind, document)
    problems += _timers(document)
    return (None if problems else made), document, problems


def _timers(document: Document) -> list[Problem]:
    """Timers are checked against each other even where other keys are wrong."""
    data = document.data.get("limits", {}) if isinstance(document.data, dict) else {}
    if not isinstance(data, dict):
        return []
    known = {info.alias for info in LimitsPart.model_fields.values()}
    numbers = {k: v for k, v in data.items() if k in known and isinstance(v, (int, float)) and not isinstance(v, bool)}
    part, problems = check(LimitsPart, Document(document.file, numbers, document.line))
    return timer_problems(document, part) if part is not None and not problems else []


def load_documents(sources: Iterable[tuple[str, str]]) -> list[Located]:
    """Pools and groups from (file, text) pairs. Raises ConfigError with every problem of every file."""
    return read_documents(sources)[0]


def read_documents(sources: Iterable[tuple[str, str]]) -> tuple[list[Located], list[Problem]]:
    """The same, together with the notes on what was read."""
    found: list[Read] = []
    problems: list[Problem] = []
    seen: dict[tuple[str, str], str] = {}
    for file, text in sources:
        try:
            documents = parse(text, file)
        except ConfigError as error:
            problems.append(_whole(error, file))
            continue
        for document in documents:
            made, wrong = _document(document)
            problems.extend(wrong)
            if made is None:
                continue
            key = (made.kind, made.metadata.name)
            place = f"{file}:{document.line}"
            if key in seen:
                problems.append(
                    document.problem(("metadata", "name"), f"{key[0]} {key[1]} is given twice (first at {seen[key]})")
                )
                continue
            seen[key] = place
            found.append(Read(made, document))
    fail([*problems, *problems_between(found)])
    return [Located(one.document, one.source.file, one.source.line) for one in found], notes(found)


def _document(document: Document) -> tuple[PoolDocument | GroupDocument | None, list[Problem]]:
    data = document.data
    kind = data.get("kind") if isinstance(data, dict) else None
    if isinstance(kind, str) and kind in DOCUMENTS:
        made, problems = check(DOCUMENTS[kind], document)
        problems += RULES[kind](document)
        return (None if problems else made), problems
    if not isinstance(data, dict):
        return None, [document.problem((), "expected a mapping with apiVersion, kind, metadata and spec")]
    if kind is None:
        return None, [document.problem(("kind",), "required, but missing", f"one of {', '.join(DOCUMENTS)}")]
    near = nearest(str(kind), list(DOCUMENTS))
    hint = f"did you mean {near}?" if near else f"one of {', '.join(DOCUMENTS)}"
    return None, [document.problem(("kind",), f"unknown kind {kind!r}", hint)]


def _whole(error: ConfigError, file: str) -> Problem:
    """A file that is not YAML at all is one problem among the others."""
    text = error.message.removeprefix(file)
    line = 0
    if text.startswith(":") and (head := text[1:].split(":", 1))[0].isdigit():
        line, text = int(head[0]), head[1]
    return Problem(file, line, "", text.lstrip(": "))
