"""Rank 0: the queue, the batch, and the steps that all ranks take together.

What stays true: a step of the whole batch is one message to each peer and one to the detokenizer; prefill goes before
decode, as in SGLang; the load snapshot is rewritten at the end of a turn and only then, so that it stands still when
any rank does, busy or idle.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

from infctl_daemon.engine.sim.argv import Options
from infctl_daemon.engine.sim.board import Board
from infctl_daemon.engine.sim.kv import Memory, to_retract
from infctl_daemon.engine.sim.rank import Collective
from infctl_daemon.engine.sim.request import Request
from infctl_daemon.engine.sim.say import say
from infctl_daemon.engine.sim.tokens import Vocabulary, origin
from infctl_daemon.engine.sim.wire import Outbox, Pipe

HEALTH_PREFIX = "HEALTH_CHECK_"
_BEHIND = 0.005
_RESERVE = 0.1
"""Share of what a request may still say that must have room when it is taken in."""


class Scheduler:
    """`control` talks with the HTTP process, `output` feeds the detokenizer."""

    def __init__(self, options: Options, board: Board, control: Pipe, output: Outbox, collective: Collective) -> None:
        self._options = options
        self._board = board
        self._control = control
        self._output = output
        self._collective = collective
        folder = Path(options.model_path)
        self._vocab = Vocabulary(folder)
        self._tokenizer_path = str(folder / "tokenizer.json")
        self._tokenizer: Any = None
        start = origin(options.random_seed, options.weight_version)
        self._memory = Memory(options.max_total_tokens, start, keep=options.radix_cache)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._slow = 1.0
        self._wrong = False
        self._steps = 0
        self._generated = 0
        self._prefilled = 0
        self._next_step = 0.0
        self._leaving = False
        self._paused = False
        self._probed = False

    def run(self) -> None:
        """Turns until told to leave; raises `PeerGone` when a rank, the detokenizer or the parent is gone."""
        self._publish()
        self._control.send(("ready",))
        while not self._leaving:
            if self._paused:
                self._stand_still()
                continue
            if not self._waiting and not self._running:
                self._idle()
            elif not (self._has_place and self._prefill()):
                self._decode_step()
            self._publish()
        self._collective.leave()

    @property
    def _has_place(self) -> bool:
        return bool(self._waiting) and len(self._running) < self._options.max_running_requests

    def _publish(self) -> None:
        self._output.flush()
        used = self._memory.used(self._running)
        self._memory.trim(used)
        self._board.publish(len(self._running), len(self._waiting), used, self._steps, self._generated, self._prefilled)

    # -- messages -------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        """One turn without work. The ranks agree on "nothing to do" as well, as SGLang's broadcast does."""
        self._collective.begin(0)
        self._collective.complete()
        self._publish()
        message = self._control.poll(_BEHIND if self._output.behind else self._options.idle_seconds)
        while message is not None:
            self._handle(message)
            message = self._control.poll(0)
        self._next_step = 0.0

    def _stand_still(self) -> None:
        """A turn of a paused engine: messages are taken, nothing is said, and the load snapshot is not rewritten."""
        self._output.flush()
        message = self._control.poll(_BEHIND if self._output.behind else self._options.idle_seconds)
        if message is not None:
            self._handle(message)
        self._next_step = 0.0

    def _listen(self, until: float) -> None:
        """Takes messages until the step is over; new requests wait for the next turn."""
        while True:
            left = until - time.monotonic()
            message = self._control.poll(left)
            if message is not None:
                self._handle(message)
            elif left <= 0:
                return

    def _handle(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("add", rid, ids, params):
                self._add(rid, ids, params)
            case ("abort", prefix):
                self._abort(prefix)
            case ("info", number):
                self._control.send(("info", number, self._info()))
            case ("flush", number):
                idle = not self._running and not self._waiting
                if idle:
                    self._memory.clear()
                self._control.send(("flush", number, idle))
            case ("pause", mode):
                self._pause(mode)
            case ("continue",):
                self._paused = False
            case ("slow", factor):
                self._slow = factor
            case ("wrong", on):
                self._wrong = on
            case ("leave",):
                self._leaving = True

    def _pause(self, mode: str) -> None:
        self._paused = True
        if mode == "retract":
            self._retract(list(self._running))

    def _info(self) -> dict[str, Any]:
        return {"steps": self._steps, "running": len(self._running), "waiting": len(self._waiting)}

    def _add(self, rid: str, ids: list[int], params: dict[str, Any]) -> None:
        if rid.startswith(HEALTH_PREFIX) and (self._running or self._waiting):
            self._probed = True  # answered after the next step, past the detokenizer: it may hang unnoticed
            return
        limit = self._options.max_queued_requests
        if limit is not None and len(self._waiting) >= limit:
            full = {"type": "abort", "status_code": 503, "message": "The request queue is full."}
            self._output.send([(rid, [], full, (0, 0, 0), None, None)])
            return
        sequence = Request(rid, ids, params, self._vocab, self._text, self._options.eos_every)
        self._waiting.append(sequence)

    def _abort(self, prefix: str) -> None:
        kept: deque[Request] = deque()
        gone: list[tuple[Any, ...]] = []
        for sequence in self._waiting:
            if sequence.rid.startswith(prefix):
                finish = {"type": "abort", "message": "Abort in waiting queue"}
                gone.append((sequence.rid, [], finish, (0, 0, 0), None, None))
            else:
                kept.append(sequence)
        self._waiting = kept
        if gone:
            self._output.send(gone)
        for sequence in self._running:
            if sequence.rid.startswith(prefix):
                sequence.aborted = True

    def _text(self, ids: Any) -> str:
        """Text of a few ids; the tokenizer is loaded by the first request with a stop string."""
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(self._tokenizer_path)
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    # -- steps ----------------------------------------------------------------------------------------------

    def _prefill(self) -> bool:
        """Takes waiting requests into the batch, as many as there is room for; whether there was for any."""
        room = self._options.max_running_requests - len(self._running)
        batch: list[Request] = []
        fresh = 0
        used = self._memory.used(self._running)
        while self._waiting and len(batch) < room:
            sequence = self._waiting[0]
            self._check(sequence)
            cost = self._memory.enter(sequence)
            if batch and fresh + cost > self._options.chunked_prefill_size:
                break
            wanted = sequence.held_tokens + int(_RESERVE * sequence.left)
            if (batch or self._running) and not self._memory.fits(used + wanted):
                break
            used += wanted
            fresh += cost
            sequence.log_input(self._memory.start(sequence))
            batch.append(self._waiting.popleft())
        if not batch:
            return False
        seconds = self._options.first_token_seconds + fresh / self._options.prefill_rate
        self._collective.begin(len(batch))
        self._running += batch
        self._listen(time.monotonic() + seconds * self._slow)
        self._collective.complete()
        self._prefilled += fresh
        self._next_step = time.monotonic()
        for sequence in batch:
            self._memory.remember(sequence)
        self._emit(batch)
        return True

    def _check(self, sequence: Request) -> None:
        """What ends the real engine ends this one."""
        asked = sequence.asked
        if not sequence.ids:
            raise RuntimeError("a prompt without tokens")
        if asked is not None and (asked.start < -1 or asked.top > self._vocab.size):
            raise RuntimeError(f"log probabilities that the engine cannot give: {asked}")

    def _make_room(self, steps: int) -> None:
        """Retracts who does not fit; what even alone does not fit is ended."""
        gone = to_retract(self._running, steps, self._memory)
        if gone:
            self._retract(gone)
        if self._running and not self._memory.fits(self._memory.used(self._running) + steps):
            self._running[-1].out_of_memory = True

    def _retract(self, gone: list[Request]) -> None:
        """Back to the head of the queue. Penalties forget what was said, as in SGLang."""
        for sequence in gone:
            sequence.retract()
        names = set(map(id, gone))
        self._running = [s for s in self._running if id(s) not in names]
        self._waiting.extendleft(reversed(gone))

    def _decode_step(self) -> None:
        now = time.monotonic()
        steps = self._options.steps_per_turn
        self._make_room(steps)
        each = self._options.decode_seconds + self._options.decode_seconds_each * len(self._running)
        pace = each * self._slow * steps
        late = now - self._next_step
        self._next_step = (self._next_step if late < pace else now) + pace
        self._collective.begin(len(self._running))
        self._listen(self._next_step)
        self._collective.complete()
        self._emit(list(self._running), steps)

    def _emit(self, batch: list[Request], steps: int = 1) -> None:
        """Says `steps` tokens of each of `batch`; all of them leave in one message."""
        self._steps += 1
        out, done, said = say(batch, steps, self._wrong)
        self._generated += said
        if out:
            self._output.send(out)
        if self._probed:
            self._probed = False
            self._control.send(("healthy",))
        if done:
            gone = set(map(id, done))
            self._running = [s for s in self._running if id(s) not in gone]
            for sequence in done:
                self._memory.remember(sequence)
