"""Lets the test's own process reach addresses that only a namespace reaches: loopback ports that are forwarded there.

Its thread has entered the namespace; the listening sockets stay outside. What the far side says is passed on, its end
and its resets too. A connection that is swallowed on its way looks open here: who asks has a deadline of his own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading

from tests.support import netns


class Relay:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"relay {namespace}", daemon=True)
        self._ports: dict[tuple[str, int], int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    def open(self) -> None:
        self._thread.start()

    def port_to(self, address: str, port: int) -> int:
        """The port of 127.0.0.1 that leads there."""
        known = self._ports.get((address, port))
        if known is None:
            listening = socket.create_server(("127.0.0.1", 0))
            known = self._ports[address, port] = listening.getsockname()[1]
            asyncio.run_coroutine_threadsafe(self._serve(listening, address, port), self._loop).result(10)
        return known

    def close(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._loop.close()

    def _run(self) -> None:
        netns.enter(self._namespace)
        self._loop.run_forever()

    async def _serve(self, listening: socket.socket, address: str, port: int) -> None:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(_join(reader, writer, address, port))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._servers.append(await asyncio.start_server(accepted, sock=listening))

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports that were aborted close their sockets in the next turn


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, port: int) -> None:
    """Both directions until both are at their end."""
    far: asyncio.StreamWriter | None = None
    try:
        far_reader, far = await asyncio.open_connection(address, port)
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(reader, far))
            both.create_task(_pump(far_reader, writer))
        writer.close()
    except* OSError:
        # a reset goes on as a reset, not as a clean end
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        for one in (writer, far):
            if one is not None:
                one.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.write_eof()
