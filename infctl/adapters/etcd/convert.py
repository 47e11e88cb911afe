"""Between the port's plain records and etcd's messages. Pure.

Keeps true: a prefix is turned into etcd's half-open key range in one place only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infctl.adapters.etcd.messages import message
from infctl.ports.store import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    Relation,
    Target,
    TxnResult,
    WatchEvent,
)

_RELATION = {Relation.EQUAL: 0, Relation.GREATER: 1, Relation.LESS: 2, Relation.NOT_EQUAL: 3}
_TARGET = {Target.VERSION: 0, Target.CREATE: 1, Target.MOD: 2, Target.VALUE: 3, Target.LEASE: 4}


def key_range(key: str, prefix: bool) -> tuple[bytes, bytes]:
    """`(key, range_end)`; an empty range_end means that one key, and prefix "" means every key."""
    raw = key.encode()
    if not prefix:
        return raw, b""
    end = raw.rstrip(b"\xff")
    if not end:
        return raw or b"\0", b"\0"
    return raw, end[:-1] + bytes([end[-1] + 1])


def key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key.decode(), kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def watch_event(event: Any) -> WatchEvent:
    kv = event.kv
    value = None if event.type == 1 else kv.value
    return WatchEvent(kv.key.decode(), value, kv.mod_revision, kv.create_revision, kv.lease)


def range_request(key: str, *, prefix: bool, limit: int = 0, revision: int = 0, keys_only: bool = False) -> Any:
    start, end = key_range(key, prefix)
    return message("RangeRequest")(key=start, range_end=end, limit=limit, revision=revision, keys_only=keys_only)


def put_request(put: Put) -> Any:
    request = message("PutRequest")(key=put.key.encode(), value=put.value)
    if put.keep_lease:
        request.ignore_lease = True
    elif put.lease:
        request.lease = put.lease
    return request


def delete_request(delete: Delete) -> Any:
    start, end = key_range(delete.key, delete.prefix)
    return message("DeleteRangeRequest")(key=start, range_end=end)


def _compare(compare: Compare) -> Any:
    start, end = key_range(compare.key, compare.prefix)
    pb = message("Compare")(
        result=_RELATION[compare.relation], target=_TARGET[compare.target], key=start, range_end=end
    )
    setattr(pb, compare.target.value, compare.operand)
    return pb


def _op(op: Op) -> Any:
    request_op = message("RequestOp")
    match op:
        case Put():
            return request_op(put=put_request(op))
        case Delete():
            return request_op(delete=delete_request(op))
        case Get():
            return request_op(range=range_request(op.key, prefix=op.prefix, limit=op.limit))


def txn_request(compares: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op]) -> Any:
    return message("TxnRequest")(
        compare=[_compare(c) for c in compares], success=[_op(o) for o in then], failure=[_op(o) for o in orelse]
    )


def txn_result(response: Any) -> TxnResult:
    gets = []
    deleted = 0
    for item in response.responses:
        if item.HasField("range"):
            gets.append(tuple(key_value(kv) for kv in item.range.kvs))
        elif item.HasField("delete"):
            deleted += item.delete.deleted
    return TxnResult(response.succeeded, response.header.revision, tuple(gets), deleted)
