"""node.yaml: who this host is, where etcd is, where state lives. It never holds a group: those are in etcd."""

from __future__ import annotations

import socket
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from infctl.config.check import Part, legal_name
from infctl.config.host_address import LOOPBACK, host_address
from infctl.config.limits import LimitsPart
from infctl.config.read_api_part import ReadApiPart
from infctl.config.store_tls_part import EtcdTlsPart
from infctl.domain.model import Limits

Name = Annotated[str, AfterValidator(legal_name)]
HostAddress = Annotated[str, AfterValidator(host_address)]
LogLevel = Literal["debug", "info", "warning", "error"]


def default_node_name() -> str:
    """The first label of the host's name, made legal."""
    label = socket.gethostname().split(".")[0].lower().replace("_", "-").strip("-.")
    return label or "node"


class NodeConfig(Part):
    """`infctl-noded --config`. Engines outlive the daemon, unless `stop_groups_on_exit`.

    `address` is where engines listen and how other hosts reach them; loopback: only gateways of this host do.
    `container` is what holds the processes of a launch together; `auto` is the best of them that works here.
    """

    api_version: Literal["infctl/v1"] = "infctl/v1"
    kind: Literal["NodeConfig"] = "NodeConfig"
    cluster: Name = "default"
    node: Name = Field(default_factory=default_node_name)
    address: HostAddress = LOOPBACK
    endpoints: list[str] = Field(default_factory=list)
    etcd_tls: EtcdTlsPart = Field(default_factory=EtcdTlsPart)
    state_dir: str = "/var/lib/infctl/node"
    run_dir: str = "/run/infctl/node"
    stop_groups_on_exit: bool = False
    log_level: LogLevel = "info"
    read_api: ReadApiPart = Field(default_factory=ReadApiPart)
    container: Literal["auto", "systemd", "cgroup", "session"] = "auto"
    limits_: LimitsPart = Field(default_factory=LimitsPart, alias="limits")

    @property
    def limits(self) -> Limits:
        return self.limits_.to_limits()
