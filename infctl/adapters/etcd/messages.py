"""The wire messages of etcd's v3 API that we use, built at import time in a descriptor pool of our own.

Keeps true: importing this file registers nothing in protobuf's global pool, so it lives next to any other etcd
client and under any protobuf runtime. There is no generated code, hence no generator version to match.

Field numbers are etcd's public protocol. Fields that we never read are left out; protobuf skips them. Enums are plain
int32, which is their wire form. A zero or empty field must not be sent: etcd takes an empty `range_end` that *is* on
the wire for "every key from here on" (measured on 3.4.23 with a read-only transaction). proto3 drops them; only the
operands of a comparison are marked `?`, since a member of etcd's `oneof` counts even where it is zero.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PACKAGE = "infctl.etcd"

_SCALARS = {
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}

# "name=number type"; the type is a scalar or another message of the table, with * where it is
# repeated and ? where its presence matters
_SCHEMA: dict[str, str] = {
    "KeyValue": "key=1 bytes, create_revision=2 int64, mod_revision=3 int64, version=4 int64, value=5 bytes, "
    "lease=6 int64",
    "Event": "type=1 int32, kv=2 KeyValue, prev_kv=3 KeyValue",
    "Header": "cluster_id=1 uint64, member_id=2 uint64, revision=3 int64, raft_term=4 uint64",
    "RangeRequest": "key=1 bytes, range_end=2 bytes, limit=3 int64, revision=4 int64, serializable=7 bool, "
    "keys_only=8 bool, count_only=9 bool",
    "RangeResponse": "header=1 Header, kvs=2 KeyValue*, more=3 bool, count=4 int64",
    "PutRequest": "key=1 bytes, value=2 bytes, lease=3 int64, prev_kv=4 bool, ignore_value=5 bool, ignore_lease=6 bool",
    "PutResponse": "header=1 Header, prev_kv=2 KeyValue",
    "DeleteRangeRequest": "key=1 bytes, range_end=2 bytes, prev_kv=3 bool",
    "DeleteRangeResponse": "header=1 Header, deleted=2 int64, prev_kvs=3 KeyValue*",
    "RequestOp": "range=1 RangeRequest, put=2 PutRequest, delete=3 DeleteRangeRequest",
    "ResponseOp": "range=1 RangeResponse, put=2 PutResponse, delete=3 DeleteRangeResponse",
    "Compare": "result=1 int32, target=2 int32, key=3 bytes, version=4 int64?, create_revision=5 int64?, "
    "mod_revision=6 int64?, value=7 bytes?, lease=8 int64?, range_end=64 bytes",
    "TxnRequest": "compare=1 Compare*, success=2 RequestOp*, failure=3 RequestOp*",
    "TxnResponse": "header=1 Header, succeeded=2 bool, responses=3 ResponseOp*",
    "CompactionRequest": "revision=1 int64, physical=2 bool",
    "CompactionResponse": "header=1 Header",
    "WatchCreate": "key=1 bytes, range_end=2 bytes, start_revision=3 int64, progress_notify=4 bool, prev_kv=6 bool",
    "WatchCancel": "watch_id=1 int64",
    "WatchProgress": "",
    "WatchRequest": "create=1 WatchCreate, cancel=2 WatchCancel, progress=3 WatchProgress",
    "WatchResponse": "header=1 Header, watch_id=2 int64, created=3 bool, canceled=4 bool, compact_revision=5 int64, "
    "cancel_reason=6 string, events=11 Event*",
    "LeaseGrantRequest": "ttl=1 int64, id=2 int64",
    "LeaseGrantResponse": "header=1 Header, id=2 int64, ttl=3 int64, error=4 string",
    "LeaseRevokeRequest": "id=1 int64",
    "LeaseRevokeResponse": "header=1 Header",
    "LeaseKeepAliveRequest": "id=1 int64",
    "LeaseKeepAliveResponse": "header=1 Header, id=2 int64, ttl=3 int64",
    "LeaseTimeToLiveRequest": "id=1 int64, keys=2 bool",
    "LeaseTimeToLiveResponse": "header=1 Header, id=2 int64, ttl=3 int64, granted_ttl=4 int64, keys=5 bytes*",
    "StatusRequest": "",
    "StatusResponse": "header=1 Header, version=2 string, db_size=3 int64, leader=4 uint64, raft_index=5 uint64, "
    "raft_term=6 uint64, errors=8 string*, db_size_in_use=9 int64, is_learner=10 bool",
    "AlarmRequest": "action=1 int32, member_id=2 uint64, alarm=3 int32",
    "AlarmMember": "member_id=1 uint64, alarm=2 int32",
    "AlarmResponse": "header=1 Header, alarms=2 AlarmMember*",
    "Member": "id=1 uint64, name=2 string, peer_urls=3 string*, client_urls=4 string*, is_learner=5 bool",
    "MemberListRequest": "",
    "MemberListResponse": "header=1 Header, members=2 Member*",
    "DefragmentRequest": "",
    "DefragmentResponse": "header=1 Header",
}


def _build() -> dict[str, Any]:
    file = FileDescriptorProto(name="infctl/etcd.proto", package=_PACKAGE, syntax="proto3")
    for message_name, fields in _SCHEMA.items():
        message = file.message_type.add(name=message_name)
        for field in filter(None, fields.split(", ")):
            name, rest = field.split("=")
            number, kind = rest.split(" ")
            repeated, present, kind = kind.endswith("*"), kind.endswith("?"), kind.rstrip("*?")
            label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            added = message.field.add(name=name, number=int(number), label=label)
            if present:
                added.proto3_optional = True
                added.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")
            if kind in _SCALARS:
                added.type = _SCALARS[kind]
            else:
                added.type = FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = f".{_PACKAGE}.{kind}"
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _SCHEMA}


_CLASSES = _build()


def message(name: str) -> Any:
    """The class of one message. Dynamic by nature, so its fields are not typed."""
    return _CLASSES[name]


# name -> (method path, request, response)
RPCS: dict[str, tuple[str, str, str]] = {
    "Range": ("/etcdserverpb.KV/Range", "RangeRequest", "RangeResponse"),
    "Put": ("/etcdserverpb.KV/Put", "PutRequest", "PutResponse"),
    "DeleteRange": ("/etcdserverpb.KV/DeleteRange", "DeleteRangeRequest", "DeleteRangeResponse"),
    "Txn": ("/etcdserverpb.KV/Txn", "TxnRequest", "TxnResponse"),
    "Compact": ("/etcdserverpb.KV/Compact", "CompactionRequest", "CompactionResponse"),
    "Watch": ("/etcdserverpb.Watch/Watch", "WatchRequest", "WatchResponse"),
    "LeaseGrant": ("/etcdserverpb.Lease/LeaseGrant", "LeaseGrantRequest", "LeaseGrantResponse"),
    "LeaseRevoke": ("/etcdserverpb.Lease/LeaseRevoke", "LeaseRevokeRequest", "LeaseRevokeResponse"),
    "LeaseKeepAlive": ("/etcdserverpb.Lease/LeaseKeepAlive", "LeaseKeepAliveRequest", "LeaseKeepAliveResponse"),
    "LeaseTimeToLive": ("/etcdserverpb.Lease/LeaseTimeToLive", "LeaseTimeToLiveRequest", "LeaseTimeToLiveResponse"),
    "Status": ("/etcdserverpb.Maintenance/Status", "StatusRequest", "StatusResponse"),
    "Alarm": ("/etcdserverpb.Maintenance/Alarm", "AlarmRequest", "AlarmResponse"),
    "Defragment": ("/etcdserverpb.Maintenance/Defragment", "DefragmentRequest", "DefragmentResponse"),
    "MemberList": ("/etcdserverpb.Cluster/MemberList", "MemberListRequest", "MemberListResponse"),
}
