"""A member that answers on command: real gRPC over a unix socket, no etcd behind it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from infctl.adapters.etcd.messages import RPCS, message


class FakeMember:
    """Answers every call through `answer(rpc, request)`: a response, or (code, text) to fail with."""

    def __init__(self, socket: Path) -> None:
        self.endpoint = f"unix:{socket}"
        self.calls: Counter[str] = Counter()
        self.metadata: dict[str, list[Any]] = {}
        self.answer: Callable[[str, Any], Any] = self.plain
        self.revision, self.cluster_id = 5, 77

    def header(self) -> Any:
        return message("Header")(cluster_id=self.cluster_id, member_id=1, revision=self.revision)

    def plain(self, rpc: str, request: Any) -> Any:
        return message(RPCS[rpc][2])(header=self.header())

    def handlers(self) -> Any:
        return {
            path.rpartition("/")[2]: self._handler(name, request, response)
            for name, (path, request, response) in RPCS.items()
        }

    def _handler(self, rpc: str, request: str, response: str) -> Any:
        async def unary(request: Any, context: Any) -> Any:
            self.calls[rpc] += 1
            self.metadata[rpc] = list(context.invocation_metadata())
            answer = self.answer(rpc, request)
            if asyncio.iscoroutine(answer):
                answer = await answer
            if isinstance(answer, tuple):
                await context.abort(grpc.StatusCode[answer[0]], answer[1])
            return answer

        async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
            self.calls[rpc] += 1
            self.metadata[rpc] = list(context.invocation_metadata())
            async for request in requests:
                answer = self.answer(rpc, request)
                if asyncio.iscoroutine(answer):
                    answer = await answer
                if isinstance(answer, tuple):
                    await context.abort(grpc.StatusCode[answer[0]], answer[1])
                if answer is not None:
                    yield answer

        streaming = rpc in ("Watch", "LeaseKeepAlive")
        make = grpc.stream_stream_rpc_method_handler if streaming else grpc.unary_unary_rpc_method_handler
        return make(
            stream if streaming else unary,
            request_deserializer=message(request).FromString,
            response_serializer=message(response).SerializeToString,
        )


@asynccontextmanager
async def fake_member(socket: Path) -> AsyncIterator[FakeMember]:
    member = FakeMember(socket)
    server = grpc.aio.server()
    by_service: dict[str, dict[str, Any]] = {}
    for path, _, _ in RPCS.values():
        service, method = path.strip("/").split("/")
        by_service.setdefault(service, {})[method] = member.handlers()[method]
    server.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(service, methods) for service, methods in by_service.items())
    )
    server.add_insecure_port(member.endpoint)
    await server.start()
    try:
        yield member
    finally:
        await server.stop(None)
