"""Where etcd is and who we are to it: the same flags, variables and keys in every daemon."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infctl.config.store_tls import VARIABLES, check_files, from_environment, from_words
from infctl.domain.errors import ConfigError
from infctl.ports.tls import TlsFiles

if TYPE_CHECKING:
    from infctl.config.effective import Value
    from infctl.config.gateway import GatewayConfig
    from infctl.config.node import NodeConfig


@dataclass(frozen=True, slots=True)
class EtcdAt:
    """The members, and the certificates to show them; no certificates is no TLS, unless a member says https://."""

    endpoints: tuple[str, ...]
    tls: TlsFiles | None = None


def add_etcd_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--endpoints", metavar="HOST:PORT,...", help="etcd members (or INFCTL_ENDPOINTS)")
    parser.add_argument("--etcd-ca", metavar="FILE", default="", help="CA of etcd's certificates (or INFCTL_ETCD_CA)")
    parser.add_argument("--etcd-cert", metavar="FILE", default="", help="our certificate (or INFCTL_ETCD_CERT)")
    parser.add_argument("--etcd-key", metavar="FILE", default="", help="its key (or INFCTL_ETCD_KEY)")


def find_etcd(arguments: argparse.Namespace, config: NodeConfig | GatewayConfig | None) -> EtcdAt:
    """Flags over environment over file, the certificates as a whole. Raises ConfigError."""
    listed = _split(arguments.endpoints) or _split(os.environ.get("INFCTL_ENDPOINTS"))
    endpoints = listed or [e.strip() for e in (config.endpoints if config else ()) if e.strip()]
    if not endpoints:
        raise ConfigError(
            "no etcd endpoint is known", hint="give --endpoints, INFCTL_ENDPOINTS or endpoints: in the --config file"
        )
    choices = (
        (from_words((arguments.etcd_ca, arguments.etcd_cert, arguments.etcd_key, "")), "--etcd-ca, --etcd-cert"),
        (from_environment(), "INFCTL_ETCD_CA, INFCTL_ETCD_CERT"),
        (config.etcd_tls.files() if config else None, f"etcdTls in {arguments.config}"),
    )
    files, origin = next((choice for choice in choices if choice[0] is not None), (None, ""))
    return EtcdAt(tuple(endpoints), check_files(files, origin))


def etcd_values(arguments: argparse.Namespace) -> list[Value]:
    """What flags and environment say of etcd, in the place of the file's keys."""
    from infctl.config.effective import Value

    found = []
    given = ((arguments.endpoints, "--endpoints"), (os.environ.get("INFCTL_ENDPOINTS"), "INFCTL_ENDPOINTS"))
    for text, origin in given:
        if listed := _split(text):
            found.append(Value("endpoints", listed, origin))
            break
    names = ("ca", "cert", "key", "serverName")
    flags = (arguments.etcd_ca, arguments.etcd_cert, arguments.etcd_key, "")
    variables = tuple(os.environ.get(name, "") for name in VARIABLES)
    for words, origin in ((flags, "--etcd-*"), (variables, "INFCTL_ETCD_*")):
        if any(words):
            found += [Value(f"etcdTls.{name}", word, origin) for name, word in zip(names, words, strict=True)]
            break
    return found


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]
