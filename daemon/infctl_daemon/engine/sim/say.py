"""One turn of the batch: who says what, and what of it is shown.

What stays true: every token a request says is shown in an update of its own, unless its text may still become a stop
string or its stream asked for fewer frames; a request that has ended says nothing more in that turn.
"""

from __future__ import annotations

from typing import Any

from infctl_daemon.engine.sim.request import Finish, Request


def say(batch: list[Request], steps: int, wrong: bool) -> tuple[list[tuple[Any, ...]], list[Request], int]:
    """`steps` tokens of each: the updates in order, the requests that have ended, how many tokens were said."""
    updates: list[tuple[Any, ...]] = []
    done: list[Request] = []
    gone: set[int] = set()
    said = 0
    for _ in range(steps):
        live = [r for r in batch if id(r) not in gone] if gone else batch
        for request in live:
            finish = request.step_plain() if request.plain and not wrong else request.step(wrong)
            if finish is not None:
                done.append(request)
                gone.add(id(request))
                updates.append(_update(request, finish))
            elif request.due():
                updates.append(_update(request, None))
        said += len(live)
    return updates, done, said


def _update(request: Request, finish: Finish | None) -> tuple[Any, ...]:
    opening = None if request.opened else request.trim
    request.opened = True
    new = request.out[request.sent :]
    request.sent = len(request.out)
    logs = None
    if request.asked is not None:
        logs = (request.input_logs if opening is not None else None, request.output_logs)
        request.output_logs = []
    base = (len(request.ids), request.cached, request.retractions)
    return (request.rid, new, finish, base, opening, logs)
