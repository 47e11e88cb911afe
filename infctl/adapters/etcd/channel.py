"""Connections to the members: one lazy channel for each, sticky, rotated by whoever finds the current one bad.

Keeps true: a member that comes back is reconnected within about half a second, whatever other clients of this process
went through (gRPC's defaults: up to two minutes, and shared); traffic to etcd never goes through an HTTP proxy;
certificates that were renewed on disk are used as soon as the old ones are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio

from infctl.adapters.etcd import tls as certificates
from infctl.adapters.etcd.errors import CLIENT_REFUSED, EXPIRED, TLS_REASONS, classify
from infctl.adapters.etcd.messages import RPCS, message
from infctl.domain.errors import ConfigError, StoreError, StoreUnavailable
from infctl.ports.tls import TlsFiles

# A stream or call with it fails within 5 s on a member without quorum, instead of looking healthy for ever.
REQUIRE_LEADER = (("hasleader", "true"),)

_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    # this one is the time a connection attempt may take; under 1 s a far or busy TLS member is never reached
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    # finds a connection that a firewall dropped; etcd answers pings under 5 s with GOAWAY
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]

_RETIRE_S = 10.0


class Member:
    """One endpoint and its channel, made at the first call (in the loop that uses it)."""

    def __init__(self, endpoint: str, tls: TlsFiles | None) -> None:
        scheme, separator, rest = endpoint.partition("://")
        if not separator:
            scheme, rest = ("http" if tls is None or endpoint.startswith("unix:") else "https"), endpoint
        self.target = rest if rest.startswith("unix:") else rest.rstrip("/")
        if scheme not in ("http", "https") or ":" not in self.target:
            raise ConfigError(f"not an etcd endpoint: {endpoint!r}", hint="host:port, http(s)://host:port, unix:/path")
        self.tls = (tls or TlsFiles()) if scheme == "https" else None
        self.foreign = False  # it serves another cluster: never asked again
        self.on_doubt: set[Callable[[], None]] = set()
        self._channel: Any = None
        self._stubs: dict[str, Any] = {}
        self._opened_with: object = None
        self._closing: set[asyncio.Task[None]] = set()

    def _stub(self, rpc: str) -> Any:
        if rpc not in self._stubs:
            if self._channel is None:
                self._channel = self._open()
            path, request, response = RPCS[rpc]
            kind = self._channel.stream_stream if rpc in ("Watch", "LeaseKeepAlive") else self._channel.unary_unary
            self._stubs[rpc] = kind(
                path,
                request_serializer=message(request).SerializeToString,
                response_deserializer=message(response).FromString,
            )
        return self._stubs[rpc]

    def _open(self) -> Any:
        if self.tls is None:
            return grpc.aio.insecure_channel(self.target, options=_OPTIONS)
        options = list(_OPTIONS)
        if self.tls.server_name:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))  # type: ignore[arg-type]
        self._opened_with = certificates.stamp(self.tls)
        return grpc.aio.secure_channel(self.target, self._credentials(self.tls), options=options)

    def _credentials(self, files: TlsFiles) -> Any:
        """A file that cannot be read now may be on its way: an outage, which fences nothing, and no end of a daemon."""
        try:
            return certificates.credentials(files)
        except ConfigError as error:
            hint = "it is read again at each try"
            raise StoreUnavailable(error.message, reason="StoreTlsFiles", hint=hint) from error

    async def unary(self, rpc: str, request: Any, timeout: float, *, require_leader: bool = True) -> Any:
        """One call. Raises grpc.aio.AioRpcError."""
        metadata = REQUIRE_LEADER if require_leader else ()
        return await self._stub(rpc)(request, timeout=timeout, metadata=metadata)

    def stream(self, rpc: str, requests: AsyncIterator[Any], timeout: float | None = None) -> Any:
        """A two-way stream fed from an iterator: gRPC writes it, so a dead stream shows only where we read."""
        return self._stub(rpc)(requests, timeout=timeout, metadata=REQUIRE_LEADER)

    def failure(self, code: str, text: str) -> StoreError:
        """What the failure of a call to this member means, with what we know of our own certificate."""
        failure = classify(code, text)
        if self.tls is None or failure.reason not in TLS_REASONS:
            return failure
        self._renew(self.tls)
        if failure.reason != CLIENT_REFUSED:
            return failure
        why = certificates.own_fault(self.tls, datetime.now(UTC))
        reason = EXPIRED if self.tls.cert and why else CLIENT_REFUSED
        return StoreUnavailable(f"{why}; {failure.message}", reason=reason, hint=failure.hint) if why else failure

    def _renew(self, files: TlsFiles) -> None:
        """The next call uses the files as they are now, where they are not those that were just refused."""
        if self._channel is not None and self._opened_with != certificates.stamp(files):
            # with a grace: gRPC ends what still runs by cancelling it, which a caller takes for its own end
            task = asyncio.get_running_loop().create_task(self.close(_RETIRE_S))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self, grace: float | None = None) -> None:
        channel, self._channel = self._channel, None
        self._stubs.clear()
        if channel is not None:
            await channel.close(grace)


class Members:
    """All endpoints. Everyone uses the current one until somebody saw it fail."""

    def __init__(self, endpoints: Sequence[str], tls: TlsFiles | None) -> None:
        if not endpoints:
            raise ConfigError("no etcd endpoint given", hint="--endpoints, INFCTL_ENDPOINTS or a context")
        self._all = [Member(e, tls) for e in endpoints]
        self._at = 0

    def __len__(self) -> int:
        return sum(not member.foreign for member in self._all)

    @property
    def current(self) -> Member:
        return self._all[self._at]

    def rotate(self, failed: Member) -> None:
        """Leave `failed`, unless somebody else already did: ten calls that fail together move on only once.

        Whoever else still relies on it is told, and asks it at once instead of waiting for its next question.
        """
        if self.current is failed:
            order = [(self._at + step) % len(self._all) for step in range(1, len(self._all) + 1)]
            self._at = next((at for at in order if not self._all[at].foreign), self._at)
        for doubt in list(failed.on_doubt):
            doubt()

    async def close(self) -> None:
        for member in self._all:
            await member.close()
