"""Contexts: which cluster the command line speaks to. Read on every command, so nothing here imports more than tomllib.

current = "dev"
[contexts.dev]
endpoints = ["127.0.0.1:2379"]
cluster = "default"
ca = "etcd-ca.pem"          # with cert, key and server_name: TLS; relative paths start at the file's folder
read_token_file = "token"   # what the read-only APIs of daemons ask for, where they ask for a token
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from infctl.config import context_edit as edit
from infctl.config.store_tls import from_words, missing_half
from infctl.domain.errors import ConfigError, UsageError
from infctl.ports.tls import TlsFiles

_TLS = ("ca", "cert", "key", "server_name")


@dataclass(frozen=True, slots=True)
class Context:
    name: str
    endpoints: tuple[str, ...] = ()
    cluster: str = "default"
    tls: TlsFiles | None = None
    read_token_file: Path | None = None

    @property
    def words(self) -> dict[str, str | list[str]]:
        """Its table in the file, in order."""
        words: dict[str, str | list[str]] = {"endpoints": list(self.endpoints), "cluster": self.cluster}
        files = ((key, str(getattr(self.tls, key) or "")) for key in _TLS) if self.tls else ()
        words |= {key: word for key, word in files if word}
        return words | ({"read_token_file": str(self.read_token_file)} if self.read_token_file else {})


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
        return _parse(path.read_text(encoding="utf-8"), path)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts(path)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _parse(text: str, path: Path) -> Contexts:
    """The contexts in a text. Raises ConfigError with every problem."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
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
    for key in sorted(set(entry) - {"endpoints", "cluster", "read_token_file", *_TLS}):
        problems.append(f"{path}: contexts.{name}.{key}: unknown key")
    endpoints = entry.get("endpoints", [])
    cluster = entry.get("cluster", "default")
    if not isinstance(endpoints, list) or not all(isinstance(e, str) and e for e in endpoints):
        problems.append(f"{path}: contexts.{name}.endpoints: expected a list of host:port")
        return None
    if not isinstance(cluster, str):
        problems.append(f"{path}: contexts.{name}.cluster: expected a name")
        return None
    *words, token = named = [entry.get(key, "") for key in (*_TLS, "read_token_file")]
    if wrong := [k for k, word in zip((*_TLS, "read_token_file"), named, strict=True) if not isinstance(word, str)]:
        problems.extend(f"{path}: contexts.{name}.{key}: expected a text" for key in wrong)
        return None
    if problem := missing_half(entry.get("cert"), entry.get("key")):
        problems.append(f"{path}: contexts.{name}: {problem}")
        return None
    token_file = Path(os.path.abspath(path.parent / os.path.expanduser(token))) if token else None
    return Context(name, tuple(endpoints), cluster, from_words(words, folder=path.parent), token_file)


def save_context(context: Context, *, make_current: bool, path: Path | None = None) -> Path:
    """Add or replace one context."""
    have = load_contexts(path)
    current = context.name if make_current or not have.current else have.current

    def change(text: str) -> str:
        text = edit.set_context(text, context.name, context.words)
        return edit.set_current(text, current)

    _write(replace(have, current=current, contexts={**have.contexts, context.name: context}), change)
    return have.path


def use_context(name: str, path: Path | None = None) -> bool:
    """Make one context the current one; False when it is already. Raises UsageError when there is no such context."""
    have = load_contexts(path)
    if name not in have.contexts:
        raise unknown_context(name, have)
    if name == have.current:
        return False
    _write(replace(have, current=name), lambda text: edit.set_current(text, name))
    return True


def unknown_context(name: str, have: Contexts) -> UsageError:
    """The error of a name that is not in the file; its hint lists those that are."""
    known = ", ".join(sorted(have.contexts)) or "none"
    return UsageError(f"no context {name!r} in {have.path}", reason="NoContext", hint=f"known contexts: {known}")


def remove_context(name: str, path: Path | None = None) -> bool:
    """Forget one context; False when it is not there."""
    have = load_contexts(path)
    if name not in have.contexts:
        return False
    contexts = {k: v for k, v in have.contexts.items() if k != name}
    current = "" if have.current == name else have.current
    _write(
        replace(have, current=current, contexts=contexts),
        lambda text: edit.set_current(edit.drop_context(text, name), current),
    )
    return True


def text_of(contexts: Contexts) -> str:
    """The whole file, made anew."""
    text = edit.set_current("", contexts.current)
    for name, context in sorted(contexts.contexts.items()):
        text = edit.set_context(text, name, context.words)
    return text


def _write(wanted: Contexts, change: Callable[[str], str]) -> None:
    """Change the text that is there; where that does not give what is wanted, write the whole file anew."""
    path = Path(os.path.realpath(wanted.path))
    try:
        text = change(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        text = change("")
    _replace(path, text if _same(text, wanted) else text_of(wanted))


def _same(text: str, wanted: Contexts) -> bool:
    try:
        return _parse(text, wanted.path) == wanted
    except ConfigError:
        return False


def _replace(path: Path, text: str) -> None:
    """The file is the old one or the new one, also after a power cut. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(fresh, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                os.chmod(fresh, path.stat().st_mode & 0o777)
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
