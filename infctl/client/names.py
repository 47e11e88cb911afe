"""Names for completion, quickly: the keys of one prefix from etcd's JSON gateway, else what was known a while ago.

Kept true: no more than a quarter of a second goes by, no value leaves the store, nothing is raised but OSError and
InfctlError, and only legal names come out, whatever was written there. grpc would take longer to load than all of it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from binascii import a2b_base64, b2a_base64, crc32

from infctl.client.connect import find_cluster
from infctl.config.context import cache_home
from infctl.ports.tls import TlsFiles

DEADLINE = 0.25
FRESH, STALE = 5.0, 600.0
MOST = 1000
_MOST_BYTES = 1 << 20
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.")
_PREFIXES = {
    "node": "nodes",
    "pool": "pools",
    "group": "groups",
    "endpoint": "endpoints",
    "stream": "streams",
    "gateway": "gateways",
}


def known_names(kind: str, endpoints: str = "", context: str = "", cluster: str = "") -> list[str]:
    """The names of a kind, sorted; old ones where the store does not answer in time. Raises InfctlError."""
    if kind not in _PREFIXES:
        return []
    place = find_cluster(endpoints, context, cluster)
    until = time.monotonic() + DEADLINE
    where = f"{place.cluster}@{','.join(place.endpoints)}"
    path = os.path.join(cache_home(), "complete", f"{crc32(where.encode()):08x}.{kind}")
    cached, age = _cached(path, where)
    if age < FRESH:
        return cached
    for endpoint in place.endpoints:
        try:
            found = read_names(endpoint, f"/infctl/v1/{place.cluster}/{_PREFIXES[kind]}/", until, place.tls)
        except (OSError, ValueError):
            continue
        _keep(path, where, found)
        return found
    return cached if age < STALE else []


def read_names(endpoint: str, prefix: str, until: float, tls: TlsFiles | None = None) -> list[str]:
    """The legal names right under a prefix. Raises OSError (late ones too), and ValueError for what is no answer."""
    start = prefix.encode()
    end = start[:-1] + bytes([start[-1] + 1])
    request = {"key": _base64(start), "range_end": _base64(end), "keys_only": True, "limit": MOST}
    answer = json.loads(_post(endpoint, tls, "/v3/kv/range", json.dumps(request).encode(), until))
    keys = [a2b_base64(kv["key"])[len(start) :].decode(errors="replace") for kv in answer.get("kvs", [])]
    names = {key.partition("/")[0] for key in keys}
    return sorted(name for name in names if name and _LETTERS.issuperset(name))


def _post(endpoint: str, tls: TlsFiles | None, path: str, body: bytes, until: float) -> bytes:
    """One exchange over HTTP/1.0: the server closes at the end, so nothing has to be framed."""
    with _connect(endpoint, tls, until) as connection:
        connection.sendall(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
        answer = b""
        while len(answer) < _MOST_BYTES:
            connection.settimeout(_left(until))
            part = connection.recv(65536)
            if not part:
                break
            answer += part
    head, _, content = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0] + b" ":
        raise ValueError("not answered with 200")
    return content


def _connect(endpoint: str, tls: TlsFiles | None, until: float) -> socket.socket:
    if endpoint.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_left(until))
        connection.connect(endpoint.removeprefix("unix:").removeprefix("//"))
        return connection
    scheme, separator, address = endpoint.rpartition("://")
    host, _, port = address.rstrip("/").rpartition(":")
    host = host.strip("[]")
    connection = socket.create_connection((host, int(port)), timeout=_left(until))
    if scheme == "https" or (not separator and tls is not None):
        return _encrypted(connection, tls or TlsFiles(), host, until)
    return connection


def _encrypted(connection: socket.socket, files: TlsFiles, host: str, until: float) -> socket.socket:
    import ssl

    try:
        context = ssl.create_default_context(cafile=str(files.ca) if files.ca else None)
        if files.cert and files.key:
            context.load_cert_chain(files.cert, files.key, password=_no_password)
        connection.settimeout(_left(until))
        return context.wrap_socket(connection, server_hostname=files.server_name or host)
    except BaseException:
        connection.close()
        raise


def _no_password() -> str:
    raise ValueError("a TAB press asks for no password")


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def _cached(path: str, where: str) -> tuple[list[str], float]:
    """What was known, and how many seconds ago (a lot where nothing was)."""
    try:
        age = time.time() - os.stat(path).st_mtime
        with open(path, encoding="utf-8") as file:
            first, *names = file.read().splitlines()
    except (OSError, ValueError):
        return [], STALE
    return (names, age if age >= 0 else STALE) if first == where else ([], STALE)


def _keep(path: str, where: str, names: list[str]) -> None:
    """Best effort: a full disk must not spoil a TAB press."""
    fresh = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(fresh, "w", encoding="utf-8") as file:
            file.write("\n".join([where, *names]))
        os.replace(fresh, path)
    except OSError:
        return
