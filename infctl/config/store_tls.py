"""Certificates for etcd: from where they are taken, and what can be wrong with them before anything connects.

They come whole from one place, never a certificate from here and its key from there: the flags, else the environment
(INFCTL_ETCD_CA, INFCTL_ETCD_CERT, INFCTL_ETCD_KEY, INFCTL_ETCD_SERVER_NAME), else the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infctl.domain.errors import ConfigError
from infctl.ports.tls import TlsFiles

VARIABLES = ("INFCTL_ETCD_CA", "INFCTL_ETCD_CERT", "INFCTL_ETCD_KEY", "INFCTL_ETCD_SERVER_NAME")


def from_words(words: Sequence[str], folder: Path | None = None) -> TlsFiles | None:
    """CA, certificate, key and server name; relative paths start at `folder` (or where we are).

    None where all are empty.
    """
    ca, cert, key, server_name = words
    if not (ca or cert or key or server_name):
        return None

    def path(word: str) -> Path | None:
        found = Path(word).expanduser() if word else None
        return Path(os.path.abspath((folder or Path.cwd()) / found)) if found else None

    return TlsFiles(path(ca), path(cert), path(key), server_name)


def from_environment(environ: Mapping[str, str] = os.environ) -> TlsFiles | None:
    return from_words([environ.get(name, "") for name in VARIABLES])


def missing_half(cert: object, key: object) -> str:
    """What is said of a certificate without its key, and of a key without its certificate; "" where both or none."""
    if cert and not key:
        return "a certificate needs its key: key is missing"
    return "a key needs its certificate: cert is missing" if key and not cert else ""


def check_files(files: TlsFiles | None, origin: str, what: str = "TLS for etcd") -> TlsFiles | None:
    """The same files, once they can be read and fit together. Raises ConfigError that names the file and `origin`."""
    if files is None:
        return None
    if problem := missing_half(files.cert, files.key):
        raise ConfigError(f"{what} ({origin}): {problem}")
    for path in files.paths:
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{what} ({origin}): {path}: {error.strerror or error}") from None
    import ssl  # a CLI without TLS has no use for it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    where = f"{what} ({origin})"
    if files.ca:
        ca = files.ca
        _try(lambda: context.load_verify_locations(ca), ca, where, "holds no PEM certificates")
    if files.cert and files.key:
        cert, key = files.cert, files.key
        _try(
            lambda: context.load_cert_chain(cert, key, password=_refuse),
            cert,
            where,
            f"cannot be used with {key}: both in PEM, the key that of the certificate and without a password",
        )
    return files


def _try(load: Callable[[], None], path: Path, where: str, wrong: str) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        text = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(f"{where}: {path} {wrong} ({text})") from None


def _refuse() -> str:
    raise ValueError("it has a password")  # else OpenSSL asks for it on the terminal, and a daemon would hang
