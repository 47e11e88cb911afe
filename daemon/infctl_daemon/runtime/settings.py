"""A daemon's settings as a whole: all that is wrong with them at once, and where each value was taken from.

`check-config` prints it, and SIGHUP goes by it: what is refused here changes nothing in a running daemon.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from infctl.config.effective import Value, of_part, overlaid
from infctl.config.gateway import GatewayConfig
from infctl.config.load import examine
from infctl.config.node import NodeConfig
from infctl.config.source import Document
from infctl.domain.errors import ConfigError, InfctlError
from infctl_daemon.runtime.console import columns, say, warn
from infctl_daemon.runtime.etcd_options import etcd_values

C = TypeVar("C", NodeConfig, GatewayConfig)
Config = TypeVar("Config")


@dataclass(frozen=True, slots=True)
class Checked(Generic[Config]):
    """`config` is what the file says; with problems it is not to be used."""

    file: str
    config: Config
    values: list[Value]
    problems: list[str]

    @property
    def by_key(self) -> dict[str, object]:
        return {value.key: value.value for value in self.values}


def check_settings(
    kind: type[C],
    file: str,
    arguments: argparse.Namespace,
    flags: Mapping[str, str],
    checks: Sequence[Callable[[C], object]],
) -> Checked[C]:
    """Read the file (none where `file` is empty), lay flags and environment over it, and try every check.

    `flags` names the attribute of `arguments` for a key; a check raises InfctlError.
    """
    config: C | None = kind()
    document: Document | None = None
    problems: list[str] = []
    if file:
        try:
            config, document, wrong = examine(kind, Path(file))
            problems += [str(one) for one in sorted(wrong, key=lambda p: p.line)]
        except ConfigError as error:
            config, problems = None, [error.message]
    sound = config is not None
    base = config if config is not None else _endpoints_only(kind, document)
    for check in checks:
        try:
            check(base)
        except InfctlError as error:
            said = error.message + (f" ({error.hint})" if error.hint else "")
            if said not in problems:
                problems.append(said)
    flagged: list[Value] = [
        Value(key, word, f"--{name.replace('_', '-')}")
        for key, name in flags.items()
        if (word := getattr(arguments, name)) is not None
    ]
    values = overlaid(of_part(base, document if sound else None), [*flagged, *etcd_values(arguments)])
    return Checked(file, base, values, problems)


def _endpoints_only(kind: type[C], document: Document | None) -> C:
    """Of a broken file the endpoints, where they can be read, so that nobody is told that there are none."""
    data = document.data if document is not None and isinstance(document.data, dict) else {}
    listed = data.get("endpoints")
    words = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    return kind.model_validate({"endpoints": words or (["unknown"] if document is None else [])})


def report(checked: Checked[NodeConfig] | Checked[GatewayConfig]) -> int:
    """What `check-config` prints; its exit code."""
    if checked.problems:
        count = len(checked.problems)
        warn(f"error: {count} problem{'s' if count > 1 else ''} in the configuration")
        for problem in checked.problems:
            warn("  " + problem.replace("\n", "\n  "))
        return ConfigError.exit_code
    say(columns((value.key, value.text, value.origin) for value in checked.values))
    return 0
