"""Asks the daemon of a launch whether it still serves: the second opinion on a worker that the store is silent about.

Kept true: only a clear answer of the right daemon about the right launch is evidence; whatever else comes, or nothing,
says nothing at all. Over is for good: a launch that was ended is never the one that serves again (R1).
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from enum import Enum
from urllib.parse import urlsplit

import aiohttp
import msgspec

from infctl.ports.tls import TlsFiles
from infctl.store.records import EndpointRecord

MOST_BYTES = 16 * 1024


class Word(Enum):
    """What a daemon says of a launch."""

    SERVES = "serves"
    CUT_OFF = "cut-off"  # it serves, but its daemon does not hear the store: another owner may be there by now
    OVER = "over"
    NONE = "none"  # no evidence


class _Serving(msgspec.Struct):
    node: str
    launch: str
    over: bool
    lease: str = ""


_decoder = msgspec.json.Decoder(_Serving)


class Daemons:
    """`tls` are our certificates, shown to daemons that ask for them."""

    def __init__(self, http: aiohttp.ClientSession, tls: TlsFiles | None = None) -> None:
        self._http = http
        self._tls = tls or TlsFiles()
        self._mark: tuple[float, ...] = ()
        self._context: ssl.SSLContext | None = None

    async def ask(self, record: EndpointRecord, api_key: str, timeout: float) -> Word:
        """`timeout` (seconds) is for the whole answer. Never raises."""
        if not api_key or not _reachable(record):
            return Word.NONE
        url = f"{record.read_api}/v1/groups/{record.group}/launches/{record.launch}/serving"
        headers = {"authorization": f"Bearer {api_key}"}
        try:
            encrypted = self._certificates() if url.startswith("https://") else True
            async with self._http.get(
                url, headers=headers, timeout=aiohttp.ClientTimeout(total=timeout), allow_redirects=False, ssl=encrypted
            ) as answer:
                if answer.status != 200 or not 0 < (answer.content_length or 0) <= MOST_BYTES:
                    return Word.NONE
                said = _decoder.decode(await answer.read())
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, msgspec.MsgspecError):
            return Word.NONE
        return _word(said, record)

    def _certificates(self) -> ssl.SSLContext:
        """Made anew when the files have changed. Raises OSError."""
        mark = tuple(os.stat(path).st_mtime for path in self._tls.paths)
        if self._context is None or mark != self._mark:
            context = ssl.create_default_context(cafile=str(self._tls.ca) if self._tls.ca else None)
            if self._tls.cert and self._tls.key:
                context.load_cert_chain(self._tls.cert, self._tls.key)
            self._context, self._mark = context, mark
        return self._context


def _word(said: _Serving, record: EndpointRecord) -> Word:
    if (said.node, said.launch) != (record.node, record.launch):
        return Word.NONE
    if said.over:
        return Word.OVER
    return Word.CUT_OFF if said.lease in ("uncertain", "none") else Word.SERVES


def _reachable(record: EndpointRecord) -> bool:
    """A loopback address is another host's, unless the engine is at one, too: our own must not get its key."""
    if not record.read_api.startswith(("http://", "https://")):
        return False
    return not _is_loopback(record.read_api) or _is_loopback(record.url)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
