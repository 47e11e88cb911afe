"""`readApi:` of node.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from infctl.config.check import Part
from infctl.config.read_api import DEFAULT, ReadApi, host_port
from infctl.config.store_tls import from_words, missing_half


def _address(text: str) -> str:
    if text:
        host_port(text)
    return text


Address = Annotated[str, AfterValidator(_address)]


class ReadApiTlsPart(Part):
    """Paths of PEM files; with `client_ca` only clients with a certificate of it are served."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if problem := missing_half(self.cert, self.key):
            raise ValueError(problem)
        if self.client_ca and not self.cert:
            raise ValueError("clientCa needs a certificate of our own: cert and key are missing")
        return self


class ReadApiPart(Part):
    """`advertise` is what the node's lease key says, where that is not `listen`."""

    listen: Address = DEFAULT
    advertise: Address = ""
    token_file: str = ""
    tls: ReadApiTlsPart = Field(default_factory=ReadApiTlsPart)

    def read_api(self, listen: str = "") -> ReadApi:
        """As it is used; `listen` wins over the file."""
        host, port = host_port(listen or self.listen)
        tls = from_words((self.tls.client_ca, self.tls.cert, self.tls.key, ""))
        token = Path(self.token_file).expanduser().absolute() if self.token_file else None
        return ReadApi(host, port, self.advertise, token, tls)
