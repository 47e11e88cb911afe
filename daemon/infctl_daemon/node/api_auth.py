"""Who may read: whoever has the token, or the key of the launch that is asked about. Compared in constant time.

The token file is looked at again when it changes, so a renewed token needs no restart; one that cannot be used
leaves the last good one in force, and is said once.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

from infctl.config.read_api import read_token
from infctl.domain.errors import ConfigError
from infctl_daemon.node.api_errors import unauthorized
from infctl_daemon.runtime.log import Logger, told


def bearer(headers: Mapping[str, str]) -> str:
    """The token of an `Authorization: Bearer` header, "" where there is none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def same(given: str, digest: str) -> bool:
    """Whether `given` has this sha256. Both sides are digests, so neither length nor content shows in the time."""
    return hmac.compare_digest(hashlib.sha256(given.encode("utf-8", "surrogateescape")).hexdigest(), digest)


class Token:
    """The token of the API, or none where the address is loopback or clients show certificates."""

    def __init__(self, path: Path | None, log: Logger) -> None:
        """Raises ConfigError."""
        self._path = path
        self._log = log
        self._mark = self._stat()
        self._digest = hashlib.sha256(read_token(path)).hexdigest() if path else ""

    def _stat(self) -> tuple[int, int, int]:
        if self._path is None:
            return (0, 0, 0)
        try:
            found = os.stat(self._path)
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_ino, found.st_mode)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises ApiError (401)."""
        if self._path is None:
            return
        if (mark := self._stat()) != self._mark:
            self._mark = mark
            try:
                self._digest = hashlib.sha256(read_token(self._path)).hexdigest()
            except ConfigError as error:
                self._log.error("the new token cannot be used: the last one counts on", **told(error))
        given = bearer(headers)
        if not given:
            raise unauthorized("this API asks for a token: Authorization: Bearer TOKEN")
        if not same(given, self._digest):
            raise unauthorized("the token is another one")
