"""What an answer of etcd means: a pure function of the gRPC status code and its text.

Keeps true: `LeaseLost`, `Compacted` and `StoreFull` come only from an answer whose code *and* text say so. Whatever is
not recognised is `StoreUnavailable`, because nothing may be fenced on a guess (R5). Both are needed: 3.4 servers send
UNKNOWN with a text that only newer ones give a code of its own, and RESOURCE_EXHAUSTED means two different things.
"""

from __future__ import annotations

from infctl.domain.errors import Compacted, LeaseLost, StoreError, StoreFull, StoreUnavailable

# Refusals of the request itself: the same request will be refused again, so they must not look like an outage.
_REFUSED = (
    ("INVALID_ARGUMENT", "too many operations"),
    ("INVALID_ARGUMENT", "request is too large"),
    ("INVALID_ARGUMENT", "duplicate key"),
    ("INVALID_ARGUMENT", "key is not provided"),
    ("INVALID_ARGUMENT", "key not found"),
    ("INVALID_ARGUMENT", "value is provided"),
    ("INVALID_ARGUMENT", "lease is provided"),
    ("RESOURCE_EXHAUSTED", "message larger than max"),
    ("OUT_OF_RANGE", "too large lease ttl"),
)

REPLACED = "StoreReplaced"
DENIED = "StorePermissionDenied"
EXPIRED = "StoreCertificateExpired"
CLIENT_REFUSED = "StoreClientCertificateRefused"
UNKNOWN_CA = "StoreUnknownCa"
HOST_MISMATCH = "StoreHostMismatch"
TLS_FAILED = "StoreTlsFailed"
TLS_REASONS = frozenset((EXPIRED, CLIENT_REFUSED, UNKNOWN_CA, HOST_MISMATCH, TLS_FAILED))

# no outage of one member: the store as a whole has not got there (or not any more)
FUTURE_REVISION = "required revision is a future revision"

# gRPC never handed the request to a connection: the only failure after which a write may be sent again.
_NOT_SENT = ("failed to connect to all addresses", "connection refused", "name resolution", "dns resolution")


def invalid_request(text: str) -> StoreError:
    """The store refuses this request, whoever sends it and however often: a bug of the caller."""
    return StoreError(f"the store refused the request: {text}", reason="InvalidRequest", hint="this is a bug")


def replaced(known: int, now: int | None = None) -> StoreUnavailable:
    """The store went back behind a revision it had shown: hold and shout, because its content is not what we know."""
    to = "" if now is None else f" to {now}"
    return StoreUnavailable(
        f"etcd's revision fell below {known}{to}",
        reason=REPLACED,
        hint="was the database restored from a backup, or wiped? restart after checking it",
    )


def another_history(key: str, revision: int) -> StoreUnavailable:
    """The revision is there, but what happened at it is not what we were told."""
    return StoreUnavailable(
        f"etcd's history is another one: {key} did not change at revision {revision}, as it had",
        reason=REPLACED,
        hint="was the database restored from a backup? restart after checking it",
    )


def another_cluster(known: int, now: int, target: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{target} serves cluster {now:x}, not {known:x}",
        reason=REPLACED,
        hint="another database answers at this address; restart after checking it",
    )


# How TLS fails: what gRPC says of it (lower case), and what it is called. The first that fits counts.
_TLS = (
    (
        ("certificate has expired",),
        EXPIRED,
        "the certificate of the etcd server has expired",
        "renew the server's certificate; is this machine's clock right?",
    ),
    (
        ("certificate is not yet valid",),
        EXPIRED,
        "the certificate of the etcd server is not valid yet",
        "is this machine's clock right?",
    ),
    (
        ("unable to get local issuer", "self-signed certificate", "self signed certificate", "unable to verify"),
        UNKNOWN_CA,
        "the certificate of the etcd server is signed by a CA that we do not trust",
        "give the CA file of this etcd cluster",
    ),
    (
        ("hostname verification check failed",),
        HOST_MISMATCH,
        "the certificate of the etcd server is for another host name",
        "use a name or address that is in its subjectAltName, or set the server name",
    ),
    (
        # 3.4 servers close the connection after the handshake: gRPC then finds an alert where it expects data
        ("alert_bad_certificate", "alert_certificate", "alert_unknown_ca", "alert_handshake_failure", "unwrap failed"),
        CLIENT_REFUSED,
        "the etcd server refuses our client certificate",
        "it must be signed by the CA that etcd trusts for clients (--trusted-ca-file), be for client use and in date",
    ),
    (
        ("wrong_version_number", "http_request", "handshake read failed"),
        TLS_FAILED,
        "the server at this address does not seem to speak TLS",
        "write http:// for it, or let etcd listen on https://",
    ),
    (
        ("handshake", "certificate", "custom verification"),
        TLS_FAILED,
        "TLS with etcd failed",
        "check CA, certificate, key and host name",
    ),
)


def _tls_failure(text: str) -> StoreUnavailable | None:
    low = text.lower()
    for signs, reason, message, hint in _TLS:
        if any(sign in low for sign in signs):
            return StoreUnavailable(f"{message} ({text})", reason=reason, hint=hint)
    return None


def classify(code: str, text: str) -> StoreError:
    """The error to raise for a failed call; `code` is the name of the gRPC status."""
    low = text.lower()
    if code == "NOT_FOUND" and "requested lease not found" in low:
        return LeaseLost("the lease no longer exists")
    if code == "OUT_OF_RANGE" and "has been compacted" in low:
        return Compacted("the revision was compacted away")
    if code == "RESOURCE_EXHAUSTED" and "space exceeded" in low:
        return StoreFull("etcd refuses writes: its database is full")
    if any(code == known and part in low for known, part in _REFUSED):
        return invalid_request(text)
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        # not an outage, but a daemon must treat it as one: it says nothing about any lease or key
        return StoreUnavailable(
            f"etcd refused us: {text}",
            reason=DENIED,
            hint="the user is the CN of the client certificate: check its role (etcdctl user get, role get)",
        )
    if code == "UNAVAILABLE" and (failure := _tls_failure(text)) is not None:
        return failure
    hint = None
    if "failed to connect" in low and "socket closed" in low:
        hint = "something listens there and closes at once: does this etcd want TLS (https://)?"
    return StoreUnavailable(f"etcd gave no definite answer ({code}: {text})", hint=hint)


def ended_watch(why: str) -> StoreError:
    """A watch that the server ended; `why` is a Go error, the only place where its code is part of the text."""
    denied = "permission denied" in why.lower()
    return classify("PERMISSION_DENIED" if denied else "UNAVAILABLE", f"etcd ended the watch: {why}")


def certainly_not_sent(code: str, text: str) -> bool:
    """True only where no member can have seen the request."""
    low = text.lower()
    return code == "UNAVAILABLE" and any(part in low for part in _NOT_SENT)
