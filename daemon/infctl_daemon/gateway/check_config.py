"""`infctl-gateway check-config [FILE]`: all that is wrong with its settings, or every value in use."""

from __future__ import annotations

import argparse

from infctl.config.gateway import GatewayConfig
from infctl.domain.ids import check_name
from infctl_daemon.gateway.options import address, max_age
from infctl_daemon.runtime.etcd_options import find_etcd
from infctl_daemon.runtime.settings import Checked, check_settings

DEFAULT_FILE = "/etc/infctl/gateway.yaml"
# key in the file: attribute of the arguments that wins over it
FLAGS = {
    "cluster": "cluster",
    "name": "name",
    "listen": "listen",
    "admin": "admin",
    "stateDir": "state_dir",
    "snapshotMaxAgeSeconds": "snapshot_max_age",
    "logLevel": "log_level",
}


def check(arguments: argparse.Namespace, file: str) -> Checked[GatewayConfig]:
    """The settings that a gateway started with these arguments would have."""
    return check_settings(
        GatewayConfig,
        file,
        arguments,
        FLAGS,
        (
            lambda config: check_name(arguments.cluster or config.cluster, "cluster"),
            lambda config: address(arguments.listen or config.listen, "--listen"),
            lambda config: address(arguments.admin or config.admin, "--admin"),
            lambda config: max_age(arguments, config),
            lambda config: find_etcd(arguments, config),
        ),
    )
