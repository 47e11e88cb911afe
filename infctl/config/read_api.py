"""The daemon's read-only API as it is configured: where it listens, and who may read there.

Kept true: nobody but this host reads without a token or a client certificate; anything else is refused before the
daemon starts.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from infctl.config.host_address import is_loopback
from infctl.config.store_tls import check_files
from infctl.domain.errors import ConfigError
from infctl.ports.tls import TlsFiles

DEFAULT = "127.0.0.1:8070"
SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class ReadApi:
    """`tls.cert` and `tls.key` are the server's, `tls.ca` that of its clients. `advertise` is host:port for others."""

    host: str = "127.0.0.1"
    port: int = 8070
    advertise: str = ""
    token_file: Path | None = None
    tls: TlsFiles | None = None

    @property
    def loopback(self) -> bool:
        return self.host == "localhost" or is_loopback(self.host)

    @property
    def wildcard(self) -> bool:
        return not self.host or (_is_ip(self.host) and ipaddress.ip_address(self.host).is_unspecified)


def host_port(text: str) -> tuple[str, int]:
    """`HOST:PORT`, an IPv6 address in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError(f"expected host:port, not {text!r}")
    return host.strip("[]"), int(port)


def check_read_api(api: ReadApi, origin: str) -> ReadApi:
    """The same, once it is safe to listen there. Raises ConfigError that names `origin`."""
    if not api.loopback and api.token_file is None and (api.tls is None or api.tls.ca is None):
        raise ConfigError(
            f"{origin}: the read API would listen on {api.host} for everybody",
            reason="ReadApiOpen",
            hint="give readApi.tokenFile, or readApi.tls with clientCa; or listen on 127.0.0.1",
        )
    if api.wildcard and not api.advertise:
        raise ConfigError(
            f"{origin}: {api.host} is no address that others can reach",
            hint="give readApi.advertise: the host:port by which this node is known",
        )
    if api.tls is not None and api.tls.cert is None:
        raise ConfigError(f"{origin}: TLS needs a certificate of our own", hint="give readApi.tls.cert and .key")
    check_files(api.tls, origin, "TLS of the read API")
    if api.token_file is not None:
        read_token(api.token_file)
    return api


def read_token(path: Path) -> bytes:
    """The token in a file that only its owner can read. Raises ConfigError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            token = os.read(fd, 4096).strip()
        finally:
            os.close(fd)
    except OSError as error:
        raise ConfigError(f"token file {path}: {error.strerror or error}") from None
    if mode & 0o077:
        raise ConfigError(
            f"token file {path} can be read by others (mode {mode:04o})", reason="TokenExposed", hint="chmod 600 it"
        )
    if len(token) < SHORTEST_TOKEN or len(token.split()) != 1 or not token.isascii():
        raise ConfigError(
            f"token file {path}: expected one word of at least {SHORTEST_TOKEN} characters",
            hint="for example: openssl rand -hex 32",
        )
    return token


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
