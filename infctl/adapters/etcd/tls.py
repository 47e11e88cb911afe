"""The files of mutual TLS, and what can be said of them when a server refuses them.

A server tells only "bad certificate", whether ours has expired, is signed by a CA it does not know, or is missing. Its
dates we can read ourselves, so that the operator is sent to the right file.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from infctl.domain.errors import ConfigError
from infctl.ports.tls import TlsFiles

_SEQUENCE, _EXPLICIT_0, _INTEGER, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x02, 0x17, 0x18


def credentials(files: TlsFiles) -> Any:
    """Read anew for each channel, so that renewed files are picked up by the next one. Raises ConfigError."""
    try:
        ca, key, cert = (p.read_bytes() if p else None for p in (files.ca, files.key, files.cert))
    except OSError as error:
        raise ConfigError(f"cannot read a TLS file for etcd: {error}") from error
    return grpc.ssl_channel_credentials(ca, key, cert)


def stamp(files: TlsFiles) -> tuple[tuple[int, int, int], ...]:
    """Changes whenever one of the files is replaced or written; files that are away count as zeros."""
    return tuple(_stamp(path) for path in files.paths)


def own_fault(files: TlsFiles, now: datetime) -> str:
    """What is wrong with our own certificate as far as can be seen from here; "" where nothing is."""
    if files.cert is None:
        return "we have no client certificate, and the server asks for one"
    try:
        begins, ends = validity(files.cert.read_text())
    except (OSError, ValueError):
        return ""
    if now >= ends:
        return f"our certificate {files.cert} expired at {ends:%Y-%m-%d %H:%M} UTC"
    if now < begins:
        return f"our certificate {files.cert} is not valid before {begins:%Y-%m-%d %H:%M} UTC"
    return ""


def validity(pem: str) -> tuple[datetime, datetime]:
    """From when to when the (first) certificate is valid. Raises ValueError."""
    begin, end = pem.find("-----BEGIN CERTIFICATE"), pem.find("-----END CERTIFICATE-----")
    der = ssl.PEM_cert_to_DER_cert(pem[begin : end + 25].strip() if begin >= 0 else pem)
    certificate = _value(der, 0, _SEQUENCE)
    at, _ = _value(der, certificate[0], _SEQUENCE)  # TBSCertificate
    if der[at] == _EXPLICIT_0:
        at = _value(der, at, _EXPLICIT_0)[1]
    for kind in (_INTEGER, _SEQUENCE, _SEQUENCE):  # serial, signature algorithm, issuer
        at = _value(der, at, kind)[1]
    at, _ = _value(der, at, _SEQUENCE)
    begins, at = _time(der, at)
    return begins, _time(der, at)[0]


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


def _value(der: bytes, at: int, kind: int) -> tuple[int, int]:
    """Where the value of the element at `at` begins and ends."""
    try:
        if der[at] != kind:
            raise ValueError(f"not a certificate: {der[at]:#x} instead of {kind:#x}")
        length, begins = der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, begins = int.from_bytes(der[begins : begins + size], "big"), begins + size
        return begins, begins + length
    except IndexError:
        raise ValueError("a certificate that ends early") from None


def _time(der: bytes, at: int) -> tuple[datetime, int]:
    kind = der[at] if at < len(der) else 0
    begins, ends = _value(der, at, kind if kind in (_UTC_TIME, _GENERALIZED_TIME) else _UTC_TIME)
    text = der[begins:ends].decode("ascii")
    if kind == _UTC_TIME:  # two digits of the year: from 50 on the last century (RFC 5280)
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC), ends
