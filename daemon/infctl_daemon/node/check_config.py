"""`infctl-noded check-config [FILE]`: all that is wrong with a node's settings, or every value in use."""

from __future__ import annotations

import argparse

from infctl.config.host_address import host_address
from infctl.config.node import NodeConfig
from infctl.domain.errors import ConfigError
from infctl.domain.ids import check_name
from infctl_daemon.node.api_options import read_api
from infctl_daemon.runtime.etcd_options import find_etcd
from infctl_daemon.runtime.settings import Checked, check_settings

DEFAULT_FILE = "/etc/infctl/node.yaml"
# key in the file: attribute of the arguments that wins over it
FLAGS = {
    "cluster": "cluster",
    "node": "node",
    "address": "address",
    "stateDir": "state_dir",
    "runDir": "run_dir",
    "stopGroupsOnExit": "stop_groups_on_exit",
    "logLevel": "log_level",
    "readApi.listen": "read_api",
}


def check(arguments: argparse.Namespace, file: str) -> Checked[NodeConfig]:
    """The settings that a daemon started with these arguments would have."""
    return check_settings(
        NodeConfig,
        file,
        arguments,
        FLAGS,
        (
            lambda config: check_name(arguments.cluster or config.cluster, "cluster"),
            lambda config: check_name(arguments.node or config.node, "node"),
            lambda config: chosen_address(arguments, config),
            lambda config: find_etcd(arguments, config),
            lambda config: read_api(arguments, config),
        ),
    )


def chosen_address(args: argparse.Namespace, config: NodeConfig) -> str:
    """Raises ConfigError."""
    try:
        return host_address(args.address) if args.address else config.address
    except ValueError as error:
        raise ConfigError(f"--address: {error}") from None
