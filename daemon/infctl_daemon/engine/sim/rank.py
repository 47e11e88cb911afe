"""Ranks other than 0, and the collective that ties all ranks together.

What stays true: no step ends before every rank has answered, so one silent rank stops the group; a rank whose peer
is gone raises `PeerGone` and ends.
"""

from __future__ import annotations

import socket
import time

from infctl_daemon.engine.sim.wire import PeerGone, Pipe


class Collective:
    """Rank 0's side: one message to every peer at the start of a step, one answer from each at its end."""

    def __init__(self, peers: list[Pipe]) -> None:
        self._peers = peers
        self._step = 0

    def begin(self, batch: int) -> None:
        self._step += 1
        for peer in self._peers:
            peer.send((self._step, batch))

    def complete(self) -> None:
        """Waits for all peers, for as long as it takes."""
        for peer in self._peers:
            if peer.recv() != self._step:
                raise PeerGone


def run_follower(pipe: Pipe) -> None:
    """Life of a rank other than 0: answer each step; raises `PeerGone` when rank 0 ends."""
    while True:
        step, _batch = pipe.recv()
        pipe.send(step)


def join(address: str, rank: int, seconds: float) -> Pipe:
    """Connects a rank of another node to the rendezvous; raises TimeoutError after `seconds`."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            sock = socket.create_connection((host.strip("[]"), int(port)), timeout=5)
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank 0 at {address} after {seconds:.0f} s") from error
            time.sleep(0.05)
            continue
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipe = Pipe(sock)
        pipe.send(("rank", rank))
        return pipe


def gather(address: str, expected: set[int], seconds: float) -> list[Pipe]:
    """Rank 0's rendezvous: waits until each of `expected` has joined; raises TimeoutError."""
    if not expected:
        return []
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    found: dict[int, Pipe] = {}
    with socket.create_server((host.strip("[]"), int(port))) as listener:
        while found.keys() != expected:
            left = deadline - time.monotonic()
            if left <= 0:
                missing = sorted(expected - found.keys())
                raise TimeoutError(f"ranks {missing} did not join within {seconds:.0f} s")
            listener.settimeout(left)
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pipe = Pipe(sock)
            kind, rank = pipe.recv()
            if kind == "rank" and rank in expected:
                found[rank] = pipe
    return [found[r] for r in sorted(found)]
