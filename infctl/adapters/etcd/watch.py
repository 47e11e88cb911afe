"""One watch that survives its members.

Keeps true:

* it resumes at the last event's revision + 1, or after a periodic progress notice of the server (which comes in order
  behind the events it covers); never after a progress answer we asked for, because 3.4.23 and 3.5.1 send that one
  before thousands of events still to come. The header counts only where the caller gave no start revision;
* events it has delivered are dropped if a server sends them again;
* a compacted history is told as one `Relist`, also at the compaction revision itself, where old servers lose a delete;
* a member that does not answer a ping is left after `PING_S + PATIENCE_S`, sooner when somebody else of this store
  found it dead; `Interrupted` is said once until another one has answered;
* what it resumes is the history it came from: the last change it delivered must still be there.

A task reads the stream, so that cancelling a reader (a timeout around `anext`) costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

import grpc.aio

from infctl.adapters.etcd.channel import Member, Members
from infctl.adapters.etcd.convert import key_range, range_request, watch_event
from infctl.adapters.etcd.errors import FUTURE_REVISION, REPLACED, another_history, ended_watch
from infctl.adapters.etcd.liveness import Liveness
from infctl.adapters.etcd.messages import message
from infctl.domain.errors import Compacted, StoreError, StoreUnavailable
from infctl.ports.store import Alive, Events, Interrupted, Relist, WatchEvent, WatchItem

if TYPE_CHECKING:
    from infctl.adapters.etcd.client import EtcdStore

PING_S = 1.5
PATIENCE_S = 2.0  # for the answer to a ping, and for a new watch to be created
_PATIENCE_MAX_S = 16.0  # a member that is searching a long history answers no ping meanwhile
_PROBE_S = 0.3  # the first pings of a stream, until the view is known to be fresh
_QUEUE = 16  # items read ahead; a slow reader then holds back the server, not our memory
_RETRY_S = (0.05, 0.5)
_ELSEWHERE_S = 0.02  # while there is a member that was not asked yet: only so that not all watches come at once
_LIST_S = 10.0


_log = logging.getLogger(__name__)


class Fresh(Enum):
    """Whether this stream has caught up. An answer to the first ping may have overtaken a backlog."""

    NO = 0
    ANSWERED = 1
    YES = 2


class EtcdWatch:
    """An async iterator of `WatchItem`; ends only by `aclose()`."""

    def __init__(
        self,
        store: EtcdStore,
        members: Members,
        prefix: str,
        start_revision: int,
        *,
        on_close: Callable[[EtcdWatch], None],
    ) -> None:
        self._store = store
        self._members = members
        self._prefix = prefix
        self._next = start_revision
        self._on_close = on_close
        self._items: asyncio.Queue[WatchItem | None] = asyncio.Queue(_QUEUE)
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._interrupted = False
        self._patience = PATIENCE_S
        self._last: WatchEvent | None = None

    def __aiter__(self) -> EtcdWatch:
        return self

    async def __anext__(self) -> WatchItem:
        if self._closed:
            raise StopAsyncIteration
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"etcd-watch {self._prefix}")
        item = await self._items.get()
        if item is None:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while not self._items.empty():
            self._items.get_nowait()
        self._items.put_nowait(None)  # wakes a reader that waits in another task

    async def _run(self) -> None:
        failures = 0
        while True:
            member = self._members.current
            before = self._next
            level = logging.WARNING
            try:
                await self._check_history()
                member = self._members.current
                await self._follow(member)
            except Compacted:
                if await self._relist():
                    failures = 0
                    continue
                reason = "the history was compacted and the prefix cannot be listed"
            except StoreError as error:
                reason = error.message
                level = logging.ERROR if error.reason == REPLACED else logging.WARNING
            except Exception as error:
                _log.exception("watch of %s: a bug; trying again", self._prefix)
                reason = repr(error)
            self._members.rotate(member)
            failures = 0 if self._next > before else failures + 1
            if not self._interrupted:
                self._interrupted = True
                _log.log(level, "watch of %s is interrupted: %s", self._prefix, reason)
                await self._items.put(Interrupted(reason))
            if self._store.held:
                await asyncio.Event().wait()  # until it is closed: nothing of this store is served any more
            low, high = _RETRY_S
            longest = _ELSEWHERE_S if failures < len(self._members) else min(high, low * 2 ** min(failures, 5))
            await asyncio.sleep(random.uniform(0.0, longest))

    async def _check_history(self) -> None:
        """Raises Compacted unless the revision before our next one is kept, hence every event from there on."""
        if self._next <= 1:
            return
        known, last = self._store.revision, self._last
        request = range_request(last.key if last else self._prefix or "\0", prefix=False, revision=self._next - 1)
        request.keys_only = True
        try:
            response = await self._store.call("Range", request, PATIENCE_S, read=True)
        except StoreUnavailable as error:
            if FUTURE_REVISION not in error.message:
                raise
            if self._next - 1 > known:
                return  # the caller chose to start in the future
            request.revision = 0  # a plain read tells an old answer from an old database
            await self._store.call("Range", request, PATIENCE_S, read=True)
            raise
        if last is None or _is_there(response, last):
            return
        self._members.rotate(self._members.current)  # a broken member, or all of them: another one tells
        if not _is_there(await self._store.call("Range", request, PATIENCE_S, read=True), last):
            raise self._store.hold(another_history(last.key, last.mod_revision))

    async def _relist(self) -> bool:
        try:
            listed = await self._store.range(self._prefix, timeout=_LIST_S)
        except StoreError:
            return False
        self._next, self._last = listed.revision + 1, None
        self._interrupted = False
        await self._items.put(Relist(listed.kvs, listed.revision))
        return True

    async def _follow(self, member: Member) -> None:
        """Read one stream until it fails. Raises StoreError."""
        requests: asyncio.Queue[Any] = asyncio.Queue()
        requests.put_nowait(self._create())
        call = member.stream("Watch", _drain(requests))
        given_up: list[float] = []

        def ask() -> None:
            requests.put_nowait(message("WatchRequest")(progress=message("WatchProgress")()))

        def end(patience: float) -> None:
            given_up.append(patience)
            call.cancel()

        liveness = Liveness(PATIENCE_S, ask=ask, end=end)
        member.on_doubt.add(liveness.doubt)
        created, fresh = False, Fresh.NO
        try:
            while True:
                try:
                    response = await _read(member, call)
                except StoreUnavailable:
                    if not given_up:
                        raise
                    self._patience = min(self._patience * 2, _PATIENCE_MAX_S) if created else self._patience
                    raise StoreUnavailable(f"{member.target} did not answer for {given_up[0]:g} s") from None
                liveness.heard()
                if response.created:
                    created = True
                    self._next = self._next or response.header.revision + 1
                fresh = await self._take(member, response, fresh)
                liveness.patience = self._patience
                # the time our reader took is not held against the member
                liveness.waiting(PING_S if fresh is Fresh.YES else _PROBE_S)
        finally:
            member.on_doubt.discard(liveness.doubt)
            liveness.stop()
            requests.put_nowait(None)
            call.cancel()

    def _create(self) -> Any:
        key, end = key_range(self._prefix, True)
        create = message("WatchCreate")(key=key, range_end=end, start_revision=self._next, progress_notify=True)
        return message("WatchRequest")(create=create)

    async def _take(self, member: Member, response: Any, fresh: Fresh) -> Fresh:
        """Hand on one answer; returns whether the view is known to be as new as the member's."""
        self._store.check_header(member, response.header)
        if response.canceled:
            if response.compact_revision:
                raise Compacted("the watch was compacted", compact_revision=response.compact_revision)
            raise ended_watch(response.cancel_reason)
        events = tuple(watch_event(e) for e in response.events if e.kv.mod_revision >= self._next)
        if events:
            self._next, self._last = events[-1].mod_revision + 1, events[-1]
            self._recovered()
            await self._items.put(Events(events, events[-1].mod_revision))
        if response.events:
            return Fresh.YES if fresh is Fresh.YES else Fresh.NO
        revision = response.header.revision
        if revision < self._next - 1:
            return Fresh.NO  # this member lags behind what we have seen: its word makes nothing fresh
        if response.created:
            # nothing can be missing only where the member is exactly where we are
            fresh = Fresh.YES if revision == self._next - 1 else Fresh.NO
        elif response.watch_id >= 0:  # a periodic notice, in order behind every event it covers
            self._next = max(self._next, revision + 1)
            fresh = Fresh.YES
        else:
            fresh = Fresh.YES if fresh is not Fresh.NO else Fresh.ANSWERED
        if fresh is Fresh.YES:
            self._recovered()
            if self._items.empty():
                await self._items.put(Alive(revision))
        return fresh

    def _recovered(self) -> None:
        self._patience = PATIENCE_S
        self._interrupted = False


def _is_there(response: Any, last: WatchEvent) -> bool:
    """Whether this is the state of the key that its last change has left."""
    return [kv.mod_revision for kv in response.kvs] == ([] if last.is_delete else [last.mod_revision])


async def _drain(requests: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while (request := await requests.get()) is not None:
        yield request


async def _read(member: Member, call: Any) -> Any:
    """The next answer. Raises StoreError for every end of the stream.

    Never under wait_for: its timeout would cancel the read, and with it the whole stream.
    """
    try:
        response = await call.read()
    except grpc.aio.AioRpcError as error:
        raise member.failure(error.code().name, error.details() or "") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise StoreUnavailable("the stream was cancelled") from None
    except Exception as error:
        raise StoreUnavailable(f"the stream broke: {error!r}") from error
    if response is grpc.aio.EOF:
        raise StoreUnavailable("etcd closed the stream")
    return response
