"""Drains and restarts for people: the plan before, a line for each change while, and the outcome with its exit code.

Data goes to stdout: that is the outcome. Plan and progress are talk.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence, Sized
from datetime import datetime, timedelta

import typer

from infctl.cli import io
from infctl.client.drain_plan import Plan
from infctl.client.intents import NOT_AFTER, Written, follow, unheard
from infctl.client.outcome import Ended, ended, node_of
from infctl.domain.errors import (
    Conflict,
    DeadlineExceeded,
    InfctlError,
    PartialFailure,
    UsageError,
)
from infctl.domain.ids import parse_address
from infctl.domain.intents import State
from infctl.ports.store import Store
from infctl.store.intent_records import DrainProgress, IntentStatus
from infctl.store.keys import Keys
from infctl.view.drains import is_over
from infctl.view.humanize import clock, duration

SAY_AGAIN = 10.0
SLACK = 60.0  # past its deadline a drain only waits for processes that do not die
_KINDS = {"group": "group", "groups": "group", "g": "group", "node": "node", "nodes": "node", "no": "node"}
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def target_of(word: str, *kinds: str) -> str:
    """`group/x` or `node/n` in full. Raises UsageError."""
    kind, name = parse_address(word, {short: long for short, long in _KINDS.items() if long in kinds})
    return f"{kind}/{name}"


def seconds_of(text: str) -> float:
    """`90s`, `15m`, `1h`, or a number of seconds. Raises UsageError."""
    number, unit = (text[:-1], text[-1]) if text and text[-1] in _UNITS else (text, "s")
    try:
        found = float(number) * _UNITS[unit]
    except ValueError:
        found = 0.0
    if not 0 < found <= 86400.0:
        raise UsageError(f"--deadline: {text!r} is no time between 1s and 24h", hint="write it like 90s, 15m or 2h")
    return found


def show_plan(plan: Plan, verb: str, *, at_once: bool = False) -> None:
    """What will happen, and when at the latest."""
    now = datetime.now().astimezone()

    def at(seconds: float) -> str:
        return (now + timedelta(seconds=seconds)).strftime("%H:%M:%S")

    io.err(f"{verb} {plan.target}: {_count(len(plan.groups), 'group')}, {_count(plan.streams, 'stream')} in flight")
    if not at_once:
        io.err(
            f"  no new requests from now on; SIGTERM {at(plan.instants.stop)} at the latest, SIGKILL "
            f"{at(plan.instants.kill)}, which is the deadline ({duration(plan.instants.kill)}, all told)"
        )
    owners = {group.node for group in plan.groups}
    for group in plan.groups:
        waits = f"; waits for {group.waits.rule}: {group.waits.why}" if group.waits and not at_once else ""
        streams = f", {_count(group.streams, 'stream')}" if group.serves else ""
        owner = f" of node/{group.node}" if owners - {plan.executors[0]} else ""
        io.err(f"  group/{group.name}{owner}: {group.state}{streams}{waits}")
    warn_unheard(plan.unheard, plan.executors)


def warn_unheard(unheard: Iterable[str], executors: Sequence[str]) -> None:
    """Daemons that are not there to do what is wanted of them."""
    then = "nothing is done" if len(executors) == 1 else "its share is not done"
    for node in unheard:
        io.err(
            f"  warning: the daemon of node/{node} is not heard; it has {duration(NOT_AFTER)} to take this up, "
            f"then {then}"
        )


def confirm(question: str, yes: bool) -> None:
    """Nobody is asked without a terminal. Raises UsageError, and Abort for a no."""
    if yes:
        return
    if not (io.is_tty(sys.stdin) and io.is_tty(sys.stderr)):
        raise UsageError("nobody is there to confirm this", reason="NeedsYes", hint="give --yes")
    io.err(f"{question} [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


async def watch_it(store: Store, keys: Keys, written: Written, deadline: float, verb: str, back: str) -> None:
    """Follow the intent to its end and say how it ended. Raises what the exit code stands for."""
    target = written.intent.target
    io.err(f"Ctrl-C stops watching, not the {verb}.")
    try:
        statuses = await _until_closed(store, keys, written, deadline)
    except asyncio.CancelledError:
        undo = f"   Take it back: {back}" if back else ""
        io.err(f"detached; the {verb} goes on. Look again: infctl describe {target}{undo}")
        raise
    _tell_outcome(target, verb, ended(statuses))


async def _until_closed(store: Store, keys: Keys, written: Written, deadline: float) -> list[IntentStatus]:
    """The last word of every executor."""
    began = time.monotonic()
    last: dict[str, IntentStatus] = {}
    said: dict[str, str] = {}
    said_at = asked_at = began
    statuses = follow(store, keys, written)
    pending: asyncio.Future[IntentStatus] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(statuses))
            done, _ = await asyncio.wait({pending}, timeout=SAY_AGAIN)
            now = time.monotonic()
            if done:
                status, pending = pending.result(), None
                last[node_of(status)] = status
                if is_over(written.intent, last):
                    return list(last.values())
            for line in [line for status in last.values() for line in status.groups]:
                text = _progress(line)
                again = not line.outcome and now - said_at >= SAY_AGAIN
                if again or text != said.get(line.group):
                    said[line.group], said_at = text, now
                    io.err(f"{datetime.now().astimezone():%H:%M:%S} {text}")
            silent = [] if not written.intent.executors and last else [n for n in written.executors if n not in last]
            if silent and now - asked_at >= SAY_AGAIN:
                asked_at, away = now, await unheard(store, keys, silent)
                for node in silent:
                    why = "is not heard" if node in away else "has not taken it up yet"
                    io.err(f"{datetime.now().astimezone():%H:%M:%S} the daemon of node/{node} {why}")
            running = any(status.state == State.RUNNING for status in last.values())
            if silent and not running and now - began > NOT_AFTER:
                raise InfctlError(
                    f"{_nobody(silent, last)} took it up within {duration(NOT_AFTER)}, and nobody will any more",
                    reason="NotTakenUp",
                    hint=f"infctl describe node/{silent[0]}",
                )
            if running and now - began > deadline + SLACK:
                raise DeadlineExceeded("it goes on past its deadline", hint=f"infctl describe {written.intent.target}")
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        await _close(statuses)


def _nobody(silent: Sequence[str], heard: Sized) -> str:
    return f"no daemon of {', '.join(f'node/{node}' for node in silent)}" if heard else "nobody"


async def _close(statuses: AsyncIterator[IntentStatus]) -> None:
    with contextlib.suppress(Exception):
        await statuses.aclose()  # type: ignore[attr-defined]


def _progress(line: DrainProgress) -> str:
    now = datetime.now().astimezone()
    if line.outcome:
        return f"group/{line.group}: {line.outcome}{f' ({line.message})' if line.message else ''}"
    streams = _count(line.streams, "stream")
    if line.streams and line.oldest_at_ms:
        oldest = max(0.0, time.time() - line.oldest_at_ms / 1000.0)
        streams += f" left (oldest {duration(oldest)}, {line.tokens} tokens)"
    parts = [f"group/{line.group} {line.stage}: {streams}"]
    if line.waits_for:
        parts.append(f"waits for {line.waits_for}")
    if line.next:
        parts.append(f"{line.next} at {clock(line.next_at, now).partition('.')[0]}")
    return "; ".join(parts)


def _tell_outcome(target: str, verb: str, status: Ended) -> None:
    """The outcome as its own word; what is no success becomes the error that its exit code belongs to."""
    message = f" ({status.message})" if status.message else ""
    if status.outcome == "unchanged":
        io.out(f"{target} {status.message}")
        return
    if status.state == State.EXPIRED:
        why = f"{target}: the {verb} expired: {status.message}"
        raise Conflict(why, reason="Expired", hint="look how it is now, and run it again")
    if status.outcome == "refused":
        raise Conflict(f"{target}: {status.message}", reason="Refused")
    if status.state == State.FAILED:
        kind = Conflict if status.guarded else InfctlError
        hint = "wait for another group, or give --allow-below-min" if status.guarded else f"infctl describe {target}"
        why = f"{target}: the {verb} failed: {status.message}"
        raise kind(why, reason="Guarded" if status.guarded else "Failed", hint=hint)
    io.out(f"{target} {status.outcome}{message}")
    if status.outcome == "undrained" and verb != "undrain":
        io.flush()
        raise InfctlError(f"the {verb} was taken back", reason="Undrained")
    if status.cut:
        io.flush()
        raise PartialFailure(
            f"{_count(status.cut, 'stream')} ended before {'its' if status.cut == 1 else 'their'} end",
            reason="StreamsCut",
            hint="a longer --deadline, or another ready group of the pool that they can move to",
        )


def _count(n: int, what: str) -> str:
    return f"{n or 'no'} {what}{'' if n == 1 else 's'}"
