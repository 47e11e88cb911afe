"""Contexts: which cluster the command line speaks to. Read on every command, so nothing here imports more than tomllib.

current = "dev"
[contexts.dev]
endpoints = ["127.0.0.1:2379"]
cluster = "default"
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

from infctl.domain.errors import ConfigError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Context:
    name: str
    endpoints: tuple[str, ...] = ()
    cluster: str = "default"


@dataclass(frozen=True, slots=True)
class Contexts:
    """The whole file. `current` is "" where none is chosen."""

    path: Path
    current: str = ""
    contexts: dict[str, Context] = field(default_factory=dict)


def config_home() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "infctl"


def state_home() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "infctl"


def cache_home() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "infctl"


def load_contexts(path: Path | None = None) -> Contexts:
    """The contexts file; an absent one holds nothing. Raises ConfigError."""
    path = path or config_home() / "config.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return Contexts(path)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    problems: list[str] = []
    contexts: dict[str, Context] = {}
    current = data.get("current", "")
    for key in sorted(set(data) - {"current", "contexts"}):
        problems.append(f"{path}: {key}: unknown key")
    table = data.get("contexts", {})
    if not isinstance(table, dict):
        problems.append(f"{path}: contexts: expected tables [contexts.NAME]")
        table = {}
    for name, entry in table.items():
        made = _context(path, name, entry, problems)
        if made is not None:
            contexts[name] = made
    if not isinstance(current, str) or (current and current not in table):
        known = ", ".join(sorted(table)) or "none"
        problems.append(f"{path}: current: no context {current!r} (known: {known})")
    if problems:
        raise ConfigError("\n".join(problems))
    return Contexts(path, current, contexts)


def _context(path: Path, name: str, entry: object, problems: list[str]) -> Context | None:
    if not isinstance(entry, dict):
        problems.append(f"{path}: contexts.{name}: expected a table")
        return None
    for key in sorted(set(entry) - {"endpoints", "cluster"}):
        problems.append(f"{path}: contexts.{name}.{key}: unknown key")
    endpoints = entry.get("endpoints", [])
    cluster = entry.get("cluster", "default")
    if not isinstance(endpoints, list) or not all(isinstance(e, str) and e for e in endpoints):
        problems.append(f"{path}: contexts.{name}.endpoints: expected a list of host:port")
        return None
    if not isinstance(cluster, str):
        problems.append(f"{path}: contexts.{name}.cluster: expected a name")
        return None
    return Context(name, tuple(endpoints), cluster)


def save_context(context: Context, *, make_current: bool, path: Path | None = None) -> Path:
    """Add or replace one context; the file is written whole and moved into place."""
    have = load_contexts(path)
    contexts = {**have.contexts, context.name: context}
    current = context.name if make_current or not have.current else have.current
    _write(replace(have, current=current, contexts=contexts))
    return have.path


def remove_context(name: str, path: Path | None = None) -> bool:
    """Forget one context; False when it is not there."""
    have = load_contexts(path)
    if name not in have.contexts:
        return False
    contexts = {k: v for k, v in have.contexts.items() if k != name}
    current = "" if have.current == name else have.current
    _write(replace(have, current=current, contexts=contexts))
    return True


def _write(contexts: Contexts) -> None:
    lines = [f"current = {_quote(contexts.current)}"] if contexts.current else []
    for name, context in sorted(contexts.contexts.items()):
        key = name if _NAME.fullmatch(name) and "." not in name else _quote(name)
        ends = ", ".join(_quote(e) for e in context.endpoints)
        lines += ["", f"[contexts.{key}]", f"endpoints = [{ends}]", f"cluster = {_quote(context.cluster)}"]
    contexts.path.parent.mkdir(parents=True, exist_ok=True)
    fresh = contexts.path.with_name(f".{contexts.path.name}.{os.getpid()}")
    fresh.write_text("\n".join(lines).lstrip("\n") + "\n", encoding="utf-8")
    os.replace(fresh, contexts.path)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
