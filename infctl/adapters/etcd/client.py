"""`EtcdStore`: the store port on etcd.

Keeps true:

* a write is sent at most once, unless no member can have seen it; an unclear end raises `StoreUnavailable`;
* reads are linearizable, and may be asked again of the next member within their timeout;
* a database that was replaced under us is never served again until this process restarts (hold and shout): a member
  of another cluster is left for ever, and after a revision that fell every call raises `StoreReplaced`, also when the
  new database has overtaken the old one. Nor is its word taken for the end of a lease.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio

from infctl.adapters.etcd.channel import Member, Members
from infctl.adapters.etcd.convert import delete_request, key_value, put_request, range_request, txn_request, txn_result
from infctl.adapters.etcd.errors import (
    DENIED,
    FUTURE_REVISION,
    another_cluster,
    certainly_not_sent,
    classify,
    replaced,
)
from infctl.adapters.etcd.messages import message
from infctl.adapters.etcd.watch import EtcdWatch
from infctl.domain.errors import LeaseLost, StoreUnavailable
from infctl.ports.store import Compare, Delete, Get, KeyValue, Lease, Op, Put, RangeResult, StoreStatus, TxnResult
from infctl.ports.tls import TlsFiles

_PAUSE_S = 0.1  # between two rounds over the members
_REFUSED_FOR_S = 1.0  # how long one call goes on where every member refuses the connection
# their answers can never be older than what we knew when we asked
_LINEARIZABLE = frozenset(("Range", "Put", "DeleteRange", "Txn", "LeaseGrant"))
_MIN_TRY_S = 1.0  # a member gets at least this long before a read turns to the next
_VOUCH_S = 1.0

_log = logging.getLogger(__name__)


class EtcdStore:
    """Cheap to make: it connects at the first call. Use it in one event loop, and `close()` it."""

    def __init__(self, endpoints: Sequence[str], *, tls: TlsFiles | None = None) -> None:
        self._members = Members(endpoints, tls)
        self._watches: set[EtcdWatch] = set()
        self._closed = False
        self._cluster_id = 0
        self._revision = 0
        self._replaced: StoreUnavailable | None = None

    @property
    def endpoint(self) -> str:
        """The member in use."""
        return self._members.current.target

    @property
    def revision(self) -> int:
        """The highest revision that any answer has carried."""
        return self._revision

    @property
    def held(self) -> bool:
        """The database was replaced under us: nothing of it is served any more."""
        return self._replaced is not None

    @property
    def replaced(self) -> str:
        """Why nothing is served any more; empty while the database is the one we know."""
        return self._replaced.message if self._replaced else ""

    def expect(self, cluster_id: int, revision: int) -> None:
        """What an earlier life knew: no other cluster and no older state is believed."""
        self._cluster_id = self._cluster_id or cluster_id
        self._revision = max(self._revision, revision)

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
        if compares and not then and not orelse:
            # etcd answers a transaction without operations from the member's own, perhaps old, state
            checked = await self.txn(compares, (Get(compares[0].key),), (Get(compares[0].key),), timeout=timeout)
            return TxnResult(checked.succeeded, checked.revision)
        read = all(isinstance(op, Get) for op in (*then, *orelse))
        return txn_result(await self.call("Txn", txn_request(compares, then, orelse), timeout, read=read))

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
        floor = self._revision
        try:
            response = await call.read()
        except grpc.aio.AioRpcError as error:
            self._members.rotate(member)
            raise member.failure(error.code().name, error.details() or "") from None
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise
        finally:
            call.cancel()
        if response is grpc.aio.EOF:
            self._members.rotate(member)
            raise StoreUnavailable("etcd ended the keep-alive without an answer")
        self.check_header(member, response.header)
        if response.ttl <= 0:
            if response.header.revision < floor:
                # a member that lags, or another database: either way its word ends no lease
                self._members.rotate(member)
                raise StoreUnavailable(f"{member.target} knows no lease {lease_id:x}, but it is behind what we saw")
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
        old: Member | None = None
        named: StoreUnavailable | None = None
        while True:
            member = self._member()
            left = deadline - loop.time()
            share = max(_MIN_TRY_S, left / max(1, len(self._members) - failures)) if read else left
            linear = rpc in _LINEARIZABLE and (rpc != "Txn" or bool(request.success or request.failure))
            floor = self._revision if linear else 0
            code, text = "", ""
            try:
                response = await member.unary(rpc, request, min(left, share), require_leader=rpc != "Status")
            except grpc.aio.AioRpcError as error:
                code, text = error.code().name, error.details() or ""
                failure = member.failure(code, text)
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
            else:
                revision = response.header.revision
                fell = 0 < revision < floor
                # old servers can give a stale read after a pause, so a read must say it twice; a write cannot be stale
                if fell and (old is not None or not read):
                    raise self.hold(replaced(floor, revision))
                self.check_header(member, response.header)
                if not fell:
                    return response
                old, failure = member, replaced(floor, revision)
                _log.warning("%s answered with revision %d after %d: asked again", member.target, revision, floor)
            if isinstance(failure, LeaseLost):
                await self._vouch(member, floor, deadline)
            if not isinstance(failure, StoreUnavailable) or failure.reason == DENIED:
                raise failure
            self._members.rotate(member)
            failures += 1
            named = failure if failure.reason != StoreUnavailable.reason else named
            again = old is not None or certainly_not_sent(code, text) or (read and FUTURE_REVISION not in text)
            everyone_asked = failures >= len(self._members) and failures % max(1, len(self._members)) == 0
            now = loop.time()
            if not again or now + _PAUSE_S >= deadline or (everyone_asked and now - started > _REFUSED_FOR_S):
                raise named or failure
            if everyone_asked:
                await asyncio.sleep(_PAUSE_S)

    async def _vouch(self, member: Member, floor: int, deadline: float) -> None:
        """Before a lease is called lost: does the member that says so still serve our database? Raises if not.

        It has applied the request that failed, so it cannot be behind anything we knew when we sent that.
        """
        left = deadline - asyncio.get_running_loop().time()
        try:
            request = message("StatusRequest")()
            response = await member.unary("Status", request, max(0.1, min(_VOUCH_S, left)), require_leader=False)
        except grpc.aio.AioRpcError as error:
            raise classify("UNAVAILABLE", error.details() or "") from None
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise
        self.check_header(member, response.header)
        if response.header.revision < floor:
            raise self.hold(replaced(floor, response.header.revision))

    def _member(self) -> Member:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._replaced is not None:
            raise StoreUnavailable(self._replaced.message, reason=self._replaced.reason, hint=self._replaced.hint)
        return self._members.current

    def _raise_if_closed(self) -> None:
        """gRPC cancels calls when their channel is closed; that is not a cancellation of the calling task."""
        task = asyncio.current_task()
        if self._closed and task is not None and not task.cancelling():
            raise StoreUnavailable("the store was closed during the call") from None

    def hold(self, why: StoreUnavailable) -> StoreUnavailable:
        """From now on nothing is asked and nothing is served; returns the error to raise."""
        if self._replaced is None:
            self._replaced = why
            _log.error("%s: nothing of this store is served any more (%s)", why.message, why.hint)
        return why

    def check_header(self, member: Member, header: Any) -> None:
        """Refuse answers of another cluster, and note how far the store has got."""
        if self._cluster_id and header.cluster_id and header.cluster_id != self._cluster_id:
            why = another_cluster(self._cluster_id, header.cluster_id, member.target)
            if not member.foreign:
                _log.error("%s: it is not asked again (%s)", why.message, why.hint)
            member.foreign = True
            self._members.rotate(member)
            raise self.hold(why) if not len(self._members) else why
        self._cluster_id = self._cluster_id or header.cluster_id
        self._revision = max(self._revision, header.revision)
