"""gateway.yaml: the frontend's name, its listeners, where etcd is, what it may cost."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from infctl.config.check import Part
from infctl.config.limits import LimitsPart
from infctl.config.node import LogLevel, Name
from infctl.config.store_tls_part import EtcdTlsPart
from infctl.domain.model import Limits


def _listen(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected host:port, not {text!r}")
    return text


Listen = Annotated[str, AfterValidator(_listen)]


class GatewayConfig(Part):
    """`infctl-gateway --config`. `listen` serves clients, `admin` operators; no name means host and port.

    `state_dir` keeps the routing snapshot: a gateway that starts while etcd is away serves from it, unless it is older
    than `snapshot_max_age_seconds` (0: never).
    """

    api_version: Literal["infctl/v1"] = "infctl/v1"
    kind: Literal["GatewayConfig"] = "GatewayConfig"
    cluster: Name = "default"
    name: Name = ""
    endpoints: list[str] = Field(default_factory=list)
    etcd_tls: EtcdTlsPart = Field(default_factory=EtcdTlsPart)
    listen: Listen = "127.0.0.1:8080"
    admin: Listen = "127.0.0.1:8081"
    state_dir: str = "/var/lib/infctl/gateway"
    snapshot_max_age_seconds: float = Field(default=900.0, ge=0, allow_inf_nan=False)
    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    keep_alive_seconds: float = Field(default=15.0, gt=0)
    log_level: LogLevel = "info"
    limits_: LimitsPart = Field(default_factory=LimitsPart, alias="limits")

    @property
    def limits(self) -> Limits:
        return self.limits_.to_limits()
