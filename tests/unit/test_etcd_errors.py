"""What an answer of etcd is taken for. The texts are those that real servers sent (3.4.23, 3.5.1, grpc)."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.adapters.etcd.errors import certainly_not_sent, classify, ended_watch
from infctl.domain.errors import Compacted, LeaseLost, StoreError, StoreFull, StoreUnavailable

CODES = [code.name for code in grpc.StatusCode]

ANSWERS = [
    ("NOT_FOUND", "etcdserver: requested lease not found", LeaseLost),
    ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", Compacted),
    ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", StoreFull),
    ("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision", StoreUnavailable),
    ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", StoreUnavailable),
    ("UNKNOWN", "context deadline exceeded", StoreUnavailable),
    ("UNKNOWN", "not a primary lessor", StoreUnavailable),
    ("UNKNOWN", "etcdserver: mvcc: database space exceeded", StoreUnavailable),
    ("UNAVAILABLE", "etcdserver: no leader", StoreUnavailable),
    ("UNAVAILABLE", "etcdserver: request timed out, possibly due to previous leader failure", StoreUnavailable),
    ("UNAVAILABLE", "Stream removed (Socket closed)", StoreUnavailable),
    ("DEADLINE_EXCEEDED", "Deadline Exceeded", StoreUnavailable),
    ("CANCELLED", "", StoreUnavailable),
    ("NOT_FOUND", "etcdserver: member not found", StoreUnavailable),
    ("PERMISSION_DENIED", "etcdserver: permission denied", StoreUnavailable),
    ("UNAUTHENTICATED", "etcdserver: invalid auth token", StoreUnavailable),
    ("DATA_LOSS", "etcdserver: corrupt cluster", StoreUnavailable),
    ("UNIMPLEMENTED", "unknown service etcdserverpb.KV", StoreUnavailable),
]


@pytest.mark.parametrize(("code", "text", "expected"), ANSWERS, ids=lambda value: getattr(value, "__name__", value))
def test_an_answer_means_what_it_says_and_no_more(code: str, text: str, expected: type[StoreError]) -> None:
    assert type(classify(code, text)) is expected


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("INVALID_ARGUMENT", "etcdserver: too many operations in txn request"),
        ("INVALID_ARGUMENT", "etcdserver: request is too large"),
        ("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request"),
        ("INVALID_ARGUMENT", "etcdserver: key not found"),
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (4000008 vs. 2097152)"),
    ],
)
def test_a_refused_request_is_a_bug_and_not_an_outage(code: str, text: str) -> None:
    error = classify(code, text)
    assert type(error) is StoreError and error.reason == "InvalidRequest" and not error.recoverable


@given(st.sampled_from(CODES), st.text(max_size=60))
def test_whatever_is_not_recognised_is_unavailable(code: str, text: str) -> None:
    known = ("lease not found", "compacted", "space exceeded", "invalid", "too", "key", "provided", "message larger")
    if not any(part in text.lower() for part in known):
        assert isinstance(classify(code, text), StoreUnavailable)


@given(st.sampled_from(CODES), st.sampled_from([text for _, text, _ in ANSWERS]))
def test_a_definite_text_with_another_code_is_not_definite(code: str, text: str) -> None:
    definite = {(c, t): kind for c, t, kind in ANSWERS if kind is not StoreUnavailable}
    assert type(classify(code, text)) is definite.get((code, text), StoreUnavailable)


_VERIFY = "Tls handshake failed: SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{_VERIFY}: certificate has expired: OK", "StoreCertificateExpired"),
        (f"{_VERIFY}: certificate is not yet valid: OK", "StoreCertificateExpired"),
        (f"{_VERIFY}: unable to get local issuer certificate: OK", "StoreUnknownCa"),
        (f"{_VERIFY}: self-signed certificate in certificate chain: OK", "StoreUnknownCa"),
        (
            "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.",
            "StoreHostMismatch",
        ),
        ("Tls handshake failed: OPENSSL_internal:SSLV3_ALERT_BAD_CERTIFICATE: OK", "StoreClientCertificateRefused"),
        ("Tls handshake failed: OPENSSL_internal:TLSV1_ALERT_UNKNOWN_CA: OK", "StoreClientCertificateRefused"),
        ("Unwrap failed (TSI_DATA_CORRUPTED)", "StoreClientCertificateRefused"),
        ("Tls handshake failed: OPENSSL_internal:WRONG_VERSION_NUMBER: OK", "StoreTlsFailed"),
        ("Ssl handshake failed: something new", "StoreTlsFailed"),
    ],
)
def test_the_way_in_which_tls_fails_has_a_name_and_a_hint(text: str, reason: str) -> None:
    error = classify(
        "UNAVAILABLE", f"failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: {text}"
    )
    assert isinstance(error, StoreUnavailable) and error.reason == reason and error.hint != StoreUnavailable.hint
    assert text in error.message


def test_a_watch_that_a_role_forbids_says_so() -> None:
    denied = ended_watch("rpc error: code = PermissionDenied desc = etcdserver: permission denied")
    assert denied.reason == "StorePermissionDenied"
    assert ended_watch("etcdserver: no leader").reason == "StoreUnavailable"


def test_the_reason_tells_permission_from_an_outage() -> None:
    assert classify("PERMISSION_DENIED", "etcdserver: permission denied").reason == "StorePermissionDenied"
    assert classify("UNAVAILABLE", "etcdserver: no leader").reason == "StoreUnavailable"


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: Connection refused", True),
        ("UNAVAILABLE", "Stream removed (Socket closed)", False),
        ("UNAVAILABLE", "recvmsg:Connection reset by peer", False),
        ("UNAVAILABLE", "etcdserver: no leader", False),
        ("UNAVAILABLE", "GOAWAY received", False),
        ("DEADLINE_EXCEEDED", "failed to connect to all addresses", False),
        ("UNKNOWN", "connection refused", False),
    ],
)
def test_only_a_connection_that_was_never_made_counts_as_not_sent(code: str, text: str, expected: bool) -> None:
    assert certainly_not_sent(code, text) is expected
