"""How the ranks of several nodes find each other before they load, as torch's rendezvous does it.

What stays true: rank 0 listens on the rendezvous port only until every rank of the other nodes has joined; who is not
one of them is told why and left out, whatever it sends, and holds up nobody; every wait has a deadline. No rank loads
before all have joined, and rank 0 serves only after all have loaded.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from typing import Any

from infctl_daemon.engine.sim.argv import Options
from infctl_daemon.engine.sim.wire import PeerGone, Pipe

log = logging.getLogger("sim")

_RETRY_SECONDS = 0.1
_HELLO_BYTES = 4096


class RefusedByLeader(Exception):
    """Rank 0 will not have this rank, and says why."""


def group(options: Options) -> dict[str, Any]:
    """What the members of one group have in common."""
    return {
        "world size": options.world,
        "nodes": options.nnodes,
        "model": options.served_model_name or options.model_path,
        "weight version": options.weight_version,
        "seed": options.random_seed,
    }


def join(options: Options, rank: int) -> Pipe:
    """Connects a rank of another node to rank 0 and returns once all ranks have joined.

    Raises TimeoutError after the rendezvous' time, `RefusedByLeader`, or `PeerGone` when rank 0 ends meanwhile.
    """
    deadline = time.monotonic() + options.join_seconds
    host, port = _address(options)
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=5)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                where = options.dist_init_addr
                raise TimeoutError(f"no rank 0 at {where} after {options.join_seconds:g} s: {error}") from error
            time.sleep(_RETRY_SECONDS)
    pipe = _connected(sock)
    pipe.send((rank, options.node_rank, group(options)))
    answer = _within(pipe, deadline, f"rank 0 has not started the group after {options.join_seconds:g} s")
    if answer != "start":
        raise RefusedByLeader(answer)
    return pipe


def gather(options: Options) -> list[Pipe]:
    """Rank 0's side: one pipe for each rank of the other nodes, by rank; raises TimeoutError."""
    expected = set(range(options.world)) - set(options.ranks)
    if not expected:
        return []
    deadline = time.monotonic() + options.join_seconds
    found: dict[int, Pipe] = {}
    with socket.create_server(_address(options)) as listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while found.keys() != expected:
            left = deadline - time.monotonic()
            if left <= 0:
                missing = ", ".join(map(str, sorted(expected - found.keys())))
                raise TimeoutError(f"ranks {missing} did not join within {options.join_seconds:g} s")
            for key, _ in selector.select(left):
                if key.fileobj is listener:
                    pipe = _connected(listener.accept()[0])
                    selector.register(pipe.sock, selectors.EVENT_READ, pipe)
                    continue
                hello = _hello(key.data)
                if hello is not None:
                    selector.unregister(key.fileobj)
                    _take(key.data, hello, options, expected, found)
    log.info("rendezvous: all ranks have joined")
    pipes = [found[rank] for rank in sorted(found)]
    for pipe in pipes:
        pipe.send("start")
    return pipes


def await_loaded(pipes: list[Pipe], options: Options) -> None:
    """Waits until the ranks of the other nodes have loaded; raises TimeoutError, or `PeerGone`."""
    deadline = time.monotonic() + options.join_seconds
    for pipe in pipes:
        _within(pipe, deadline, f"not all ranks have loaded after {options.join_seconds:g} s")


def _hello(pipe: Pipe) -> object | None:
    """What a connection has said of itself; None while it is not complete, "" when it makes no sense."""
    try:
        hello = pipe.poll(0)
    except (PeerGone, OSError, ValueError, EOFError, TypeError):
        return ""
    return "" if hello is None and pipe.buffered > _HELLO_BYTES else hello


def _take(pipe: Pipe, hello: object, options: Options, expected: set[int], found: dict[int, Pipe]) -> None:
    """Takes in who belongs here; tells all others why not."""
    why = _refusal(hello, options, expected, found)
    if why:
        log.error("rendezvous: refused a rank: %s", why)
        try:
            pipe.send(why)
        except (PeerGone, OSError):
            log.info("rendezvous: it is gone already")
        pipe.sock.close()
        return
    assert isinstance(hello, tuple)
    found[hello[0]] = pipe


def _refusal(hello: object, options: Options, expected: set[int], found: dict[int, Pipe]) -> str:
    match hello:
        case (int(rank), int(node), dict(theirs)):
            pass
        case _:
            return "not a rank of a simulated engine"
    ours = group(options)
    other = [f"{name} {theirs.get(name)!r}, not {ours[name]!r}" for name in ours if theirs.get(name) != ours[name]]
    if other:
        return f"rank {rank} is of another group: {', '.join(other)}"
    if rank not in expected:
        return f"rank {rank} (node rank {node}) is not one that joins from another node"
    if rank in found:
        return f"rank {rank} (node rank {node}) has joined already"
    return ""


def _address(options: Options) -> tuple[str, int]:
    host, _, port = (options.dist_init_addr or "").rpartition(":")
    return host.strip("[]"), int(port)


def _connected(sock: socket.socket) -> Pipe:
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Pipe(sock)


def _within(pipe: Pipe, deadline: float, late: str) -> Any:
    """The next message, by `deadline`."""
    message = pipe.within(deadline - time.monotonic())
    if message is not None:
        return message
    raise TimeoutError(late)
