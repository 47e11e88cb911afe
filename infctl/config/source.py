"""YAML read with the line of every key, so that each complaint can say file, line and key path.

Kept true: reading never stops at the first problem of a file's content; only text that is not YAML ends it early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from infctl.domain.errors import ConfigError

Path_ = tuple[str | int, ...]

# aliases can blow a small file up without end; nobody writes this many values by hand
_MOST_NODES = 50_000


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `line` counts from 1; 0 where the file has no place for it."""

    file: str
    line: int
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        key = f": {self.key}" if self.key else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{key}: {self.message}{hint}"


@dataclass(slots=True)
class Document:
    """One YAML document: plain data, and the line of each key path."""

    file: str
    data: Any
    line: int
    lines: dict[Path_, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, path: Path_) -> int:
        """The line of the key, or of the nearest thing around it that is in the file."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[:-1]
        return self.line

    def problem(self, path: Path_, message: str, hint: str = "") -> Problem:
        return Problem(self.file, self.line_of(path), dotted(path), message, hint)


def dotted(path: Path_) -> str:
    """`spec.engineArgs[2]` from its parts."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def fail(problems: Sequence[Problem]) -> None:
    """Raise one ConfigError that names every problem; do nothing when there is none."""
    if not problems:
        return
    ordered = sorted(problems, key=lambda p: (p.file, p.line))
    if len(ordered) == 1:
        raise ConfigError(str(ordered[0]))
    lines = "\n".join(f"  {p}" for p in ordered)
    raise ConfigError(f"{len(ordered)} problems in the configuration\n{lines}")


def read_file(path: Path) -> str:
    """The text of a file. Raises ConfigError that says what is wrong with it."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder, not a file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def parse(text: str, file: str) -> list[Document]:
    """Every non-empty document of `text`. Raises ConfigError where it is not YAML."""
    loader = yaml.SafeLoader(text)
    found: list[Document] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"):
                continue
            document = Document(file, None, node.start_mark.line + 1)
            document.data = _Reader(loader, document).read(node, ())
            found.append(document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        raise ConfigError(str(Problem(file, line, "", f"not valid YAML: {error.problem or error.context}"))) from None
    except yaml.YAMLError as error:
        raise ConfigError(str(Problem(file, 0, "", f"not valid YAML: {error}"))) from None
    finally:
        loader.dispose()
    return found


class _Reader:
    def __init__(self, loader: yaml.SafeLoader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._open: set[int] = set()
        self._count = 0

    def read(self, node: yaml.Node, path: Path_) -> Any:
        self._count += 1
        if self._count > _MOST_NODES or id(node) in self._open:
            raise ConfigError(str(self._document.problem(path, "too many values, or an alias that contains itself")))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self._item(child, (*path, i)) for i, child in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: yaml.ScalarNode, path: Path_) -> Any:
        try:
            value = self._loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError) as error:
            self._document.problems.append(self._document.problem(path, f"unreadable value {node.value!r}: {error}"))
            return None
        if isinstance(value, (str, int, float, bool)) or value is None:
            return value
        return node.value  # dates and the like: we want what was written

    def _item(self, node: yaml.Node, path: Path_) -> Any:
        self._document.lines[path] = node.start_mark.line + 1
        return self.read(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            here = (*path, key)
            if key in data:
                problem = Problem(
                    self._document.file,
                    key_node.start_mark.line + 1,
                    dotted(here),
                    f"given twice (first on line {self._document.lines[here]})",
                )
                self._document.problems.append(problem)
                continue
            self._document.lines[here] = key_node.start_mark.line + 1
            data[key] = self.read(value_node, here)
        return data
