"""Rank 0: the queue, the batch, and the steps that all ranks take together.

What stays true: a step of the whole batch is one message to each peer and one to the detokenizer; prefill goes before
decode, as in SGLang; the load snapshot is rewritten at the end of a turn and only then, so that it stands still when
any rank does, busy or idle.
"""

from __future__ import annotations

import time
import zlib
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

from infctl_daemon.engine.sim.argv import Options
from infctl_daemon.engine.sim.board import Board
from infctl_daemon.engine.sim.rank import Collective
from infctl_daemon.engine.sim.request import Finish, Request
from infctl_daemon.engine.sim.tokens import Vocabulary, fold, origin
from infctl_daemon.engine.sim.wire import Pipe


class Scheduler:
    """`control` talks with the HTTP process, `output` feeds the detokenizer."""

    def __init__(self, options: Options, board: Board, control: Pipe, output: Pipe, collective: Collective) -> None:
        self._options = options
        self._board = board
        self._control = control
        self._output = output
        self._collective = collective
        folder = Path(options.model_path)
        self._vocab = Vocabulary(folder)
        self._tokenizer_path = str(folder / "tokenizer.json")
        self._tokenizer: Any = None
        self._origin = origin(options.random_seed, options.weight_version)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._slow = 1.0
        self._wrong = False
        self._steps = 0
        self._generated = 0
        self._prefilled = 0
        self._next_step = 0.0
        self._leaving = False
        self._paused = False

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
            elif self._waiting and len(self._running) < self._options.max_running_requests:
                self._prefill()
            else:
                self._decode_step()
            self._publish()

    def _publish(self) -> None:
        used = sum(s.held_tokens for s in self._running)
        self._board.publish(len(self._running), len(self._waiting), used, self._steps, self._generated, self._prefilled)

    # -- messages -------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        """One turn without work. The ranks agree on "nothing to do" as well, as SGLang's broadcast does."""
        self._collective.begin(0)
        self._collective.complete()
        self._publish()
        message = self._control.poll(self._options.idle_seconds)
        while message is not None:
            self._handle(message)
            message = self._control.poll(0)
        self._next_step = 0.0

    def _stand_still(self) -> None:
        """A turn of a paused engine: messages are taken, nothing is said, and the load snapshot is not rewritten."""
        message = self._control.poll(self._options.idle_seconds)
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
                    self._cache.clear()
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
            for sequence in self._running:
                sequence.retractions += 1
            self._waiting.extendleft(reversed(self._running))
            self._running = []

    def _info(self) -> dict[str, Any]:
        return {"steps": self._steps, "running": len(self._running), "waiting": len(self._waiting)}

    def _add(self, rid: str, ids: list[int], params: dict[str, Any]) -> None:
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

    def _prefill(self) -> None:
        room = self._options.max_running_requests - len(self._running)
        batch: list[Request] = []
        fresh = 0
        while self._waiting and len(batch) < room:
            sequence = self._waiting[0]
            cost = self._enter(sequence)
            if batch and fresh + cost > self._options.chunked_prefill_size:
                break
            fresh += cost
            batch.append(self._waiting.popleft())
        seconds = self._options.first_token_seconds + fresh / self._options.prefill_rate
        self._collective.begin(len(batch))
        self._running += batch
        self._listen(time.monotonic() + seconds * self._slow)
        self._collective.complete()
        self._prefilled += fresh
        self._next_step = time.monotonic()
        self._emit(batch)

    def _start(self, sequence: Request) -> int:
        """State of the empty prefix; an adapter's name makes another model of it."""
        if sequence.adapter is None:
            return self._origin
        return fold(self._origin, zlib.crc32(sequence.adapter.encode()))

    def _enter(self, sequence: Request) -> int:
        """Walks the prompt: sets the state after it, and how much of it was cached; returns the rest."""
        if not sequence.ids:
            raise RuntimeError("a prompt without tokens")  # kills the real engine as well
        state = self._start(sequence)
        cached = 0
        cache = self._cache
        seen = self._options.radix_cache
        if sequence.out:
            return self._enter_again(sequence)
        last = len(sequence.ids) - 1
        if sequence.asked is not None:
            start = sequence.asked.start
            if start < -1 or sequence.asked.top > self._vocab.size:
                raise RuntimeError(f"log probabilities that the engine cannot give: {sequence.asked}")  # SGLang dies
            if start >= 0:
                last = min(last, start)
            sequence.log_input(state)
        for position, token in enumerate(sequence.ids):
            state = fold(state, token)
            if seen and position < last and state ^ sequence.space in cache:
                cached = position + 1
            else:
                seen = False
        sequence.state = state
        sequence.cached = cached
        return len(sequence.ids) - cached

    def _enter_again(self, sequence: Request) -> int:
        """A retracted one: its state stands, its prompt and output are computed again."""
        state, cached = self._start(sequence), 0
        for token in (*sequence.ids, *sequence.out):
            state = fold(state, token)
            if not self._options.radix_cache or state ^ sequence.space not in self._cache:
                break
            cached += 1
        return sequence.held_tokens - cached

    def _remember(self, sequence: Request) -> None:
        if not self._options.radix_cache:
            return
        state = self._start(sequence)
        cache = self._cache
        for token in (*sequence.ids, *sequence.out):
            state = fold(state, token)
            cache[state ^ sequence.space] = None
            cache.move_to_end(state ^ sequence.space)
        while len(cache) > self._options.max_total_tokens:
            cache.popitem(last=False)

    def _decode_step(self) -> None:
        now = time.monotonic()
        steps = self._options.steps_per_turn
        pace = self._options.decode_seconds * self._slow * steps
        late = now - self._next_step
        self._next_step = (self._next_step if late < pace else now) + pace
        self._collective.begin(len(self._running))
        self._listen(self._next_step)
        self._collective.complete()
        self._emit(list(self._running), steps)

    def _emit(self, batch: list[Request], steps: int = 1) -> None:
        """Says `steps` tokens of each of `batch`; all of them leave in one message."""
        self._steps += 1
        out: list[tuple[Any, ...]] = []
        done: list[Request] = []
        gone: set[int] = set()
        wrong = self._wrong
        for _ in range(steps):
            live = [s for s in batch if id(s) not in gone] if gone else batch
            for sequence in live:
                finish = sequence.step_plain() if sequence.plain and not wrong else sequence.step(wrong)
                if finish is None:
                    if sequence.due():
                        out.append(self._update(sequence, None))
                else:
                    out.append(self._update(sequence, finish))
                    done.append(sequence)
                    gone.add(id(sequence))
            self._generated += len(live)
        if out:
            self._output.send(out)
        if done:
            self._running = [s for s in self._running if id(s) not in gone]
            for sequence in done:
                self._remember(sequence)

    def _update(self, sequence: Request, finish: Finish | None) -> tuple[Any, ...]:
        opening = None if sequence.opened else sequence.trim
        sequence.opened = True
        new = sequence.out[sequence.sent :]
        sequence.sent = len(sequence.out)
        logs = None
        if sequence.asked is not None:
            logs = (sequence.input_logs if opening is not None else None, sequence.output_logs)
            sequence.output_logs = []
        base = (len(sequence.ids), sequence.cached, sequence.retractions)
        return (sequence.rid, new, finish, base, opening, logs)
