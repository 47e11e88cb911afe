"""Where the read-only API listens: the flag over the file, and nothing that others could read unasked."""

from __future__ import annotations

import argparse

from infctl.config.node import NodeConfig
from infctl.config.read_api import ReadApi, check_read_api, host_port
from infctl.domain.errors import ConfigError


def read_api(args: argparse.Namespace, config: NodeConfig) -> ReadApi:
    """Raises ConfigError."""
    if args.read_api:
        try:
            host_port(args.read_api)
        except ValueError as error:
            raise ConfigError(f"--read-api: {error}") from None
    origin = "--read-api" if args.read_api else f"readApi in {args.config}" if args.config else "readApi"
    return check_read_api(config.read_api.read_api(args.read_api or ""), origin)
