"""What a store is told about TLS: which files, and the name to expect of the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of mutual TLS; the certificate's CN is the user, so there is no token that could expire.

    Without `ca` the machine's trusted CAs count. `server_name` is expected of the server in place of its address.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str = ""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that are named."""
        return tuple(path for path in (self.ca, self.cert, self.key) if path is not None)
