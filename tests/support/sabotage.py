"""Runs the gateway with one promise broken: a check that cannot fail proves nothing, so the demo must fail on these.

    python tests/support/sabotage.py KIND <arguments of infctl-gateway>

`late-frames` breaks nothing: it only hands the stream a frame of the attempt before, as a slow network might, and is
the control of `epoch-check-off`, which lets that frame through.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

from infctl.domain import replay, request
from infctl.domain import request_events as ev
from infctl_daemon.gateway import core, stream
from infctl_daemon.gateway.main import main

LATE_BY = (0.2, 0.4, 0.6)


def late_frames() -> None:
    """After each migration the old attempt speaks up again, with a token that is not in the model's mind."""
    original = stream.Stream._dispatch

    def dispatch(self: stream.Stream, epoch: Any, exclude: Any, recovering: bool) -> None:
        old = (replace(epoch, attempt=epoch.attempt - 1), exclude[-1] if exclude else "")
        original(self, epoch, exclude, recovering)
        if recovering:
            for delay in LATE_BY:
                asyncio.get_running_loop().call_later(delay, speak, self, *old)

    def speak(self: stream.Stream, epoch: Any, launch: str) -> None:
        self._frame_ids = [5]
        self.feed(ev.TokensArrived(epoch, launch, len(self.tokens), 1))

    stream.Stream._dispatch = dispatch  # type: ignore[method-assign]


def epoch_check_off() -> None:
    """Frames of any epoch and launch count as the live attempt's."""
    late_frames()
    original = request._tokens

    def tokens(state: request.Request, event: ev.TokensArrived, now: float) -> Any:
        return original(state, replace(event, epoch=state.epoch, launch=state.launch), now)

    request._tokens = tokens


def replay_cut_off_by_one() -> None:
    """The replacement is asked to go on from one token too early, and is believed all the same."""
    original = core.Core.dispatch

    def dispatch(self: core.Core, of: stream.Stream, epoch: Any, exclude: Any, *, recovering: bool) -> Any:
        if not recovering:
            return original(self, of, epoch, exclude, recovering=recovering)
        whole = of.tokens
        of.tokens = whole[:-1]
        try:
            answer = original(self, of, epoch, exclude, recovering=recovering)
        finally:
            of.tokens = whole
        if isinstance(answer, stream.Attempt):
            answer.base = len(whole)
        return answer

    core.Core.dispatch = dispatch  # type: ignore[method-assign]


def limits_not_adjusted() -> None:
    """The replacement gets the limits of the whole request, not of what is left."""
    original = core.plan_replay

    def plan(sampling: replay.Sampling, **rest: Any) -> Any:
        made = original(sampling, **rest)
        return replace(made, max_new=sampling.max_new) if isinstance(made, replay.Continue) else made

    core.plan_replay = plan


KINDS = {
    "late-frames": late_frames,
    "epoch-check-off": epoch_check_off,
    "replay-cut-off-by-one": replay_cut_off_by_one,
    "limits-not-adjusted": limits_not_adjusted,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
