"""Ranks other than 0, and the collective that ties all ranks together.

What stays true: no step ends before every rank has answered, so one silent rank stops the group; a rank whose peer
is gone raises `PeerGone` and ends; a rank that was told to leave returns.
"""

from __future__ import annotations

import contextlib

from infctl_daemon.engine.sim.wire import PeerGone, Pipe

_LEAVE = "leave"


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

    def leave(self) -> None:
        """Tells all peers that the end is in order; who is gone already has nothing to be told."""
        for peer in self._peers:
            with contextlib.suppress(PeerGone):
                peer.send(_LEAVE)


def run_follower(pipe: Pipe) -> None:
    """Life of a rank other than 0: answer each step until told to leave; raises `PeerGone` when rank 0 ends."""
    while (step := pipe.recv()) != _LEAVE:
        pipe.send(step[0])


def run_far_follower(pipe: Pipe, limit: float) -> None:
    """The same on another node, where no watchdog of rank 0's reaches: raises TimeoutError when there is no next step
    within `limit` seconds of one that had work. A rank 0 that stands still without work is waited for without end.
    """
    busy = 0
    while (step := pipe.within(limit) if busy else pipe.recv()) != _LEAVE:
        if step is None:
            raise TimeoutError(f"Scheduler watchdog timeout: no step for {limit:g} s")
        number, busy = step
        pipe.send(number)
