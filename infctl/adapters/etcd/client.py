"""`EtcdStore`: the store port on etcd.

Keeps true:

* a write is sent at most once, unless no member can have seen it; an unclear end raises `StoreUnavailable`;
* reads are linearizable, and may be asked again of the next member within their timeout;
* a revision that falls or another cluster id is never served: the answer is refused as unavailable (hold and shout),
  because it means that the database was replaced under us.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio

from infctl.adapters.etcd.channel import Member, Members, TlsFiles
from infctl.adapters.etcd.convert import delete_request, key_value, put_request, range_request, txn_request, txn_result
from infctl.adapters.etcd.errors import FUTURE_REVISION, certainly_not_sent, classify, replaced
from infctl.adapters.etcd.messages import message
from infctl.adapters.etcd.watch import EtcdWatch
from infctl.domain.errors import LeaseLost, StoreUnavailable
from infctl.ports.store import Compare, Delete, KeyValue, Lease, Op, Put, RangeResult, StoreStatus, TxnResult

_PAUSE_S = 0.1  # between two rounds over the members
_REFUSED_FOR_S = 1.0  # how long one call goes on where every member refuses the connection
_LINEARIZABLE = (
    "Range",
    "Put",
    "DeleteRange",
    "Txn",
)  # their answers can never be older than what we knew when we asked
_MIN_TRY_S = 1.0  # a member gets at least this long before a read turns to the next


class EtcdStore:
    """Cheap to make: it connects at the first call. Use it in one event loop, and `close()` it."""

    def __init__(self, endpoints: Sequence[str], *, tls: TlsFiles | None = None) -> None:
        self._members = Members(endpoints, tls)
        self._watches: set[EtcdWatch] = set()
        self._closed = False
        self._cluster_id = 0
        self._revision = 0

    @property
    def endpoint(self) -> str:
        """The member in use."""
        return self._members.current.target

    @property
    def revision(self) -> int:
        """The highest revision that any answer has carried."""
        return self._revision

    async def get(self, key: str, *, timeout: float = 5.0) -> KeyValue | None:
        response = await self.call("Range", range_request(key, prefix=False), timeout, read=True)
        return key_value(response.kvs[0]) if response.kvs else None

    async def range(
        self, prefix: str, *, limit: int = 0, revision: int = 0, keys_only: bool = False, timeout: float = 10.0
    ) -> RangeResult:
        """Every key under `prefix`; at an old `revision` it raises Compacted when that is no longer kept."""
        request = range_request(prefix, prefix=True, limit=limit, revision=revision, keys_only=keys_only)
        response = await self.call("Range", request, timeout, read=True)
        kvs = tuple(key_value(kv) for kv in response.kvs)
        return RangeResult(kvs, revision or response.header.revision, response.more)

    async def put(self, key: str, value: bytes, *, lease: int = 0, timeout: float = 5.0) -> int:
        response = await self.call("Put", put_request(Put(key, value, lease)), timeout)
        return int(response.header.revision)

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Op],
        orelse: Sequence[Op] = (),
        *,
        timeout: float = 5.0,
    ) -> TxnResult:
        """See the port. A single unconditional `Delete` works on a full database, too."""
        match list(then):
            case [Delete() as delete] if not compares and not orelse:
                # once the file is larger than the quota, old servers refuse every transaction, but never this call
                response = await self.call("DeleteRange", delete_request(delete), timeout)
                return TxnResult(True, response.header.revision, deleted=response.deleted)
        return txn_result(await self.call("Txn", txn_request(compares, then, orelse), timeout))

    async def grant(self, ttl_s: float, *, timeout: float = 5.0) -> Lease:
        """A new lease. An unclear end leaves at most a lease that nobody renews."""
        request = message("LeaseGrantRequest")(ttl=max(1, math.ceil(ttl_s)))
        response = await self.call("LeaseGrant", request, timeout)
        if response.error or not response.id:
            raise StoreUnavailable(f"etcd granted no lease: {response.error}")
        return Lease(response.id, float(response.ttl))

    async def keep_alive(self, lease_id: int, *, timeout: float = 1.5) -> float:
        """One renewal on a stream of its own: the deadline is the call's, so a hung member costs no more than it."""
        member = self._member()

        async def one_request() -> AsyncIterator[Any]:
            yield message("LeaseKeepAliveRequest")(id=lease_id)

        call = member.stream("LeaseKeepAlive", one_request(), timeout)
        try:
            response = await call.read()
        except grpc.aio.AioRpcError as error:
            self._members.rotate(member)
            raise classify(error.code().name, error.details() or "") from None
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise
        finally:
            call.cancel()
        if response is grpc.aio.EOF:
            self._members.rotate(member)
            raise StoreUnavailable("etcd ended the keep-alive without an answer")
        self.check_header(response.header)
        if response.ttl <= 0:
            raise LeaseLost(f"lease {lease_id:x} no longer exists")
        return float(response.ttl)

    async def time_to_live(self, lease_id: int, *, timeout: float = 5.0) -> float:
        """Seconds the store would keep the lease from now. Raises LeaseLost."""
        response = await self.call(
            "LeaseTimeToLive", message("LeaseTimeToLiveRequest")(id=lease_id), timeout, read=True
        )
        if response.ttl < 0:
            raise LeaseLost(f"lease {lease_id:x} no longer exists")
        return float(response.ttl)

    async def revoke(self, lease_id: int, *, timeout: float = 5.0) -> None:
        try:
            await self.call("LeaseRevoke", message("LeaseRevokeRequest")(id=lease_id), timeout)
        except LeaseLost:
            return

    def watch(self, prefix: str, *, start_revision: int) -> EtcdWatch:
        """See `EtcdWatch`; it is closed with the store if not before."""
        watch = EtcdWatch(self, self._members, prefix, start_revision, on_close=self._watches.discard)
        self._watches.add(watch)
        return watch

    async def compact(self, revision: int, *, timeout: float = 5.0) -> None:
        """Forget the history before `revision`. Raises Compacted when that is done already."""
        await self.call("Compact", message("CompactionRequest")(revision=revision), timeout)

    async def status(self, *, timeout: float = 5.0) -> StoreStatus:
        """What the member in use says of itself; it answers without a quorum, and its revision may lag."""
        r = await self.call("Status", message("StatusRequest")(), timeout, read=True)
        h = r.header
        return StoreStatus(r.version, h.cluster_id, h.member_id, r.leader, h.revision, r.db_size, r.db_size_in_use)

    async def close(self) -> None:
        """Close every watch and connection. Calls still running raise StoreUnavailable."""
        self._closed = True
        for watch in list(self._watches):
            await watch.aclose()
        await self._members.close()

    async def call(self, rpc: str, request: Any, timeout: float, *, read: bool = False) -> Any:
        """One answer within `timeout`; a `read` may be sent again, a write only if it was certainly not sent."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + timeout
        failures = 0
        while True:
            member = self._member()
            left = deadline - loop.time()
            share = max(_MIN_TRY_S, left / max(1, len(self._members) - failures)) if read else left
            floor = self._revision if rpc in _LINEARIZABLE else None
            try:
                response = await member.unary(rpc, request, min(left, share), require_leader=rpc != "Status")
                self.check_header(response.header, floor)
                return response
            except grpc.aio.AioRpcError as error:
                code, text = error.code().name, error.details() or ""
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
            failure = classify(code, text)
            if not isinstance(failure, StoreUnavailable):
                raise failure
            self._members.rotate(member)
            failures += 1
            again = certainly_not_sent(code, text) or (read and FUTURE_REVISION not in text)
            everyone_asked = failures % len(self._members) == 0
            now = loop.time()
            if not again or now + _PAUSE_S >= deadline or (everyone_asked and now - started > _REFUSED_FOR_S):
                raise failure
            if everyone_asked:
                await asyncio.sleep(_PAUSE_S)

    def _member(self) -> Member:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        return self._members.current

    def _raise_if_closed(self) -> None:
        """gRPC cancels calls when their channel is closed; that is not a cancellation of the calling task."""
        task = asyncio.current_task()
        if self._closed and task is not None and not task.cancelling():
            raise StoreUnavailable("the store was closed during the call") from None

    def check_header(self, header: Any, floor: int | None = None) -> None:
        """Refuse answers of another database. `floor`: the revision that this answer cannot be older than."""
        if self._cluster_id and header.cluster_id and header.cluster_id != self._cluster_id:
            raise StoreUnavailable(
                f"etcd's cluster id changed from {self._cluster_id:x} to {header.cluster_id:x}",
                reason="StoreReplaced",
                hint="another database answers at this address; restart after checking it",
            )
        self._cluster_id = self._cluster_id or header.cluster_id
        if floor is None:
            return
        if header.revision < floor:
            raise replaced(floor, header.revision)
        self._revision = max(self._revision, header.revision)
