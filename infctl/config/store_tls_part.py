"""`etcdTls:` of node.yaml and gateway.yaml."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from infctl.config.check import Part
from infctl.config.store_tls import from_words, missing_half
from infctl.ports.tls import TlsFiles


class EtcdTlsPart(Part):
    """Paths of PEM files; `server_name` is expected of etcd instead of its address."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if problem := missing_half(self.cert, self.key):
            raise ValueError(problem)
        return self

    def files(self) -> TlsFiles | None:
        return from_words((self.ca, self.cert, self.key, self.server_name))
