"""What a gateway is started with: its flags, and the settings that come of flags, environment and file."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infctl.domain.errors import ConfigError
from infctl.domain.model import Limits
from infctl_daemon.gateway.answer import KEEP_ALIVE
from infctl_daemon.gateway.http import MAX_BODY
from infctl_daemon.gateway.snapshot import MAX_AGE, STATE_DIR
from infctl_daemon.runtime import log
from infctl_daemon.runtime.etcd_options import add_etcd_options, find_etcd

if TYPE_CHECKING:
    from infctl.config.gateway import GatewayConfig

COMMANDS = """\
commands:
  run                   serve (also without this word)
  check-config [FILE]   say what is wrong with the settings, or every value and where it comes from

The systemd unit is written by: infctl-noded install --gateway
"""


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Of `run`."""
    parser = argparse.ArgumentParser(
        prog="infctl-gateway",
        description="Keeps token streams alive across workers.",
        epilog=COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    return parser.parse_args(argv)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", help="gateway.yaml; flags win over it")
    add_etcd_options(parser)
    parser.add_argument("--cluster")
    parser.add_argument("--name", help="this gateway's name; default: host name and port")
    parser.add_argument("--listen", help="HOST:PORT for clients (default 127.0.0.1:8080)")
    parser.add_argument("--admin", help="HOST:PORT of the read-only API for operators (default 127.0.0.1:8081)")
    parser.add_argument("--state-dir", type=Path, help="kept over restarts: the routing snapshot")
    parser.add_argument(
        "--snapshot-max-age",
        type=float,
        metavar="SECONDS",
        help="older ones are not served from (default 900; 0: never)",
    )
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help="default: info")


def find_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """File, environment and flags, the later ones winning. Raises ConfigError."""
    config: GatewayConfig | None = None
    if arguments.config:
        # pydantic takes a tenth of a second to load, and a restart by flags alone does not need it
        from infctl.config.load import load_gateway_config

        config = load_gateway_config(arguments.config)
        if not arguments.log_level:
            log.set_level(config.log_level)
    listen = address(arguments.listen or (config.listen if config else "127.0.0.1:8080"), "--listen")
    admin = address(arguments.admin or (config.admin if config else "127.0.0.1:8081"), "--admin")
    return {
        "etcd": find_etcd(arguments, config),
        "cluster": arguments.cluster or (config.cluster if config else "default"),
        "name": arguments.name or (config.name if config and config.name else f"{socket.gethostname()}-{listen[1]}"),
        "listen": listen,
        "admin": admin,
        "limits": config.limits if config else Limits(),
        "max_body": config.max_body_bytes if config else MAX_BODY,
        "keep_alive": config.keep_alive_seconds if config else KEEP_ALIVE,
        "state_dir": Path(arguments.state_dir or (config.state_dir if config else STATE_DIR)).absolute(),
        "snapshot_max_age": max_age(arguments, config),
    }


def max_age(arguments: argparse.Namespace, config: GatewayConfig | None) -> float:
    """How old a snapshot may be. Raises ConfigError."""
    given: float | None = arguments.snapshot_max_age
    if given is None:
        return config.snapshot_max_age_seconds if config else MAX_AGE
    if not 0 <= given < float("inf"):
        raise ConfigError(f"--snapshot-max-age: {given:g} is not a number of seconds from 0 on")
    return given


def address(text: str, flag: str) -> tuple[str, int]:
    """Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{flag}: {text!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)
