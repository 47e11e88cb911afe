"""Options that several commands share, spelled the same everywhere."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


Endpoints = Annotated[
    str, typer.Option("--endpoints", metavar="HOST:PORT,...", help="etcd members; wins over INFCTL_ENDPOINTS.")
]
ContextName = Annotated[str, typer.Option("--context", metavar="NAME", help="A context of config.toml.")]
Cluster = Annotated[str, typer.Option("--cluster", metavar="NAME", help="Name of the cluster in etcd.")]
"""All three go to `client.connect.find_cluster`."""
