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
        reason="StoreReplaced",
        hint="was the database restored from a backup, or wiped? restart after checking it",
    )


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
            f"etcd refused us: {text}", reason="StorePermissionDenied", hint="check the client certificate and its role"
        )
    if "handshake" in low or "certificate" in low:
        return StoreUnavailable(
            f"TLS with etcd failed: {text}", reason="StoreTlsFailed", hint="check CA, certificate, key and host name"
        )
    return StoreUnavailable(f"etcd gave no definite answer ({code}: {text})")


def certainly_not_sent(code: str, text: str) -> bool:
    """True only where no member can have seen the request."""
    low = text.lower()
    return code == "UNAVAILABLE" and any(part in low for part in _NOT_SENT)
