"""One client's stream: the request machine, its committed tokens, and the readers that follow them.

Everything that happens goes through `feed`: `domain.request.step` decides, `_execute` does, nothing else acts (R10).
Events that come up while effects are carried out wait in line, so each step sees the state the last one left.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from infctl.domain import request as machine
from infctl.domain import request_events as ev
from infctl.domain.ids import Epoch, engine_rid
from infctl.domain.model import Contract
from infctl.domain.request_events import Break, ErrorType
from infctl_daemon.gateway.answer import Part
from infctl_daemon.gateway.asked import Job
from infctl_daemon.gateway.detok import Detokenizer
from infctl_daemon.gateway.errors import engine_words, first_line
from infctl_daemon.gateway.frames import Frame
from infctl_daemon.gateway.sse import crc_of
from infctl_daemon.gateway.upstream import End, Upstream

if TYPE_CHECKING:
    from infctl_daemon.gateway.core import Core

_step = machine.step


class Stream:
    """`tokens` are the committed ids; `positions` of readers point into them."""

    def __init__(
        self,
        core: Core,
        state: machine.Request,
        job: Job,
        part: Part,
        detokenizer: Detokenizer,
        contract: tuple[Contract, str],
        pin: str,
    ) -> None:
        self.core = core
        self.id = state.id
        self.state = state
        self.job = job
        self.part = part
        self.contract, self.contract_reason = contract
        self.pin = pin
        self.tokens: list[int] = []
        self.crc = 0
        self.attempt: Attempt | None = None
        self.rid = ""
        self.group = ""
        self.launch = ""
        self.revision = ""
        self.tokenizer_digest = ""
        self.deterministic = False
        self.finish_reason = ""
        self.error: tuple[ErrorType, str] | None = None
        self.dropped = 0
        self.replayed = 0
        self.started_ms = time.time() * 1000.0
        self.note = ""
        self.ended = asyncio.Event()
        self._detok = detokenizer
        self._matched: str | int | None = None
        self._frame_ids: list[int] = []
        self._queue: deque[ev.RequestEvent] = deque()
        self._busy = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._dispatched_at = 0.0
        self._frozen_at_ms = 0.0

    def feed(self, event: ev.RequestEvent) -> None:
        """Let the machine decide on `event` and carry out what it says."""
        if self._busy:
            self._queue.append(event)
            return
        self._busy = True
        try:
            self._one(event)
            while self._queue:
                self._one(self._queue.popleft())
        finally:
            self._busy = False

    def _one(self, event: ev.RequestEvent) -> None:
        now = self.core.now()
        self.state, effects = _step(self.state, event, now)
        recorder = self.core.recorder
        if recorder.on:
            recorder.step("request", self.id, now, event, effects)
        for effect in effects:
            self._execute(effect)

    def _execute(self, effect: ev.RequestEffect) -> None:
        if type(effect) is ev.Deliver:
            self._deliver(effect)
            return
        match effect:
            case ev.Dispatch(epoch, _, exclude, recovering):
                self._dispatch(epoch, exclude, recovering)
            case ev.Drop(why, count):
                self.dropped += count
                self.core.dropped(why, count)
            case ev.AbortAttempt(epoch, launch):
                self._abort(epoch, launch)
            case ev.Record():
                self.core.record(self)
                if self.state.phase in machine.TERMINAL:
                    self._close()
            case ev.Finish(reason):
                self.finish_reason = reason
                text = self._detok.finish(self._matched)
                self.part.finish(reason, self._matched, text)
            case ev.Fail(error, message):
                self.error = (error, message)
                self.part.fail(error, message)
            case ev.Silence():
                self.part.fail(ErrorType.CONFLICT, "another gateway owns this stream")
                self._close()
            case ev.SetTimer(name, epoch, delay):
                self._set_timer(name, epoch, delay)
            case ev.Announce(kind, launch, message):
                self._announce(kind, launch, message)

    def _deliver(self, effect: ev.Deliver) -> None:
        ids = self._frame_ids
        if effect.skip or effect.count != len(ids):
            ids = ids[effect.skip : effect.skip + effect.count]
        self.tokens.extend(ids)
        self.crc = crc_of(ids, self.crc)
        if (known := self.job.logprobs) is None:
            text = self._detok.feed(ids)
        else:
            known.commit(effect.skip, effect.count)
            text, offsets = self._detok.feed_each(ids)
            known.offsets += offsets
        note, self.note = self.note, ""
        self.part.tokens(ids, text, len(self.tokens), self.crc, note)

    # attempts
    def _dispatch(self, epoch: Epoch, exclude: tuple[str, ...], recovering: bool) -> None:
        if self.attempt is not None:
            self.attempt.close()
            self.attempt = None
        answer = self.core.dispatch(self, epoch, exclude, recovering=recovering)
        if isinstance(answer, Attempt):
            self.attempt = answer
            self.replayed += answer.base if recovering else 0
            self._dispatched_at = self.core.now()
            self.feed(ev.WorkerChosen(epoch, answer.launch, answer.base))
        else:
            self.feed(answer)

    def _abort(self, epoch: Epoch, launch: str) -> None:
        if self.attempt is not None and self.attempt.epoch == epoch:
            self.attempt.close()
            self.attempt = None
        settles = self.state.epoch
        rid = engine_rid(self.id, epoch, self.core.incarnation)
        self.core.abort_upstream(launch, rid, lambda: self.feed(ev.AbortSettled(settles)))

    def _close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self.attempt is not None:
            self.attempt.close()
            self.attempt = None
        self.ended.set()
        self.core.forget(self)

    def _set_timer(self, name: str, epoch: Epoch, delay: float) -> None:
        if (old := self._timers.pop(name, None)) is not None:
            old.cancel()
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(delay, self.feed, ev.TimerFired(name, epoch))

    def _announce(self, kind: str, launch: str, message: str) -> None:
        fields: dict[str, Any] = {
            "stream": self.id,
            "attempt": self.state.epoch.attempt,
            "term": self.state.epoch.term,
            "committed": self.state.committed,
        }
        if kind == "stream.migrating":
            self._frozen_at_ms = time.time() * 1000.0
            self.note = f"infctl migrated attempt={self.state.epoch.attempt} at={self.state.committed}"
        if kind == "stream.resumed":
            fields["prefill_ms"] = round((self.core.now() - self._dispatched_at) * 1000.0, 3)
            fields["replayed_tokens"] = len(self.job.prompt_ids) + (self.attempt.base if self.attempt else 0)
            fields["frozen_ms"] = round(time.time() * 1000.0 - self._frozen_at_ms, 3)
        self.core.announce(kind, f"stream/{self.id}", launch, message, fields)


class Attempt:
    """One try on one launch: feeds the stream with what the engine says, stamped with its epoch and launch."""

    __slots__ = ("_closed", "_finish", "base", "core", "epoch", "launch", "stream", "upstream")

    def __init__(
        self, core: Core, stream: Stream, epoch: Epoch, launch: str, base: int, head: bytes, body: bytes
    ) -> None:
        self.core = core
        self.stream = stream
        self.epoch = epoch
        self.launch = launch
        self.base = base
        self._closed = False
        self._finish: dict[str, Any] | None = None
        told = stream.contract is Contract.NONE or stream.job.logprobs is not None
        self.upstream = Upstream(self, head, body, keep_meta=told)
        core.attempt_started(self)

    def on_frame(self, frame: Frame) -> None:
        stream = self.stream
        meta = frame.meta
        if meta is not None and meta.finish_reason is not None and meta.finish_reason.get("type") == "abort":
            # its ids are not to be trusted: SGLang fills in a 0 where a prompt was refused
            self._finished(meta.finish_reason)
            return
        ids = frame.ids
        if self.upstream.frames.keep_meta:
            told = self.upstream.frames.last_meta
            stream.part.surface.absorb(told)
            if (known := stream.job.logprobs) is not None:
                known.hear(told, frame.start, ids)
        if ids:
            self.core.token_seen(self.launch)
            stream._frame_ids = ids
            stream.feed(ev.TokensArrived(self.epoch, self.launch, self.base + frame.start, len(ids)))
        if frame.error is not None:
            self._broken(Break.ERROR_FRAME, first_line(str(frame.error.get("message", frame.error))))
            return
        if meta is not None and meta.finish_reason is not None and not self._closed:
            self._finished(meta.finish_reason)

    def _finished(self, reason: dict[str, Any]) -> None:
        kind = reason.get("type")
        if kind == "abort":
            status = reason.get("status_code")
            message = str(reason.get("message", ""))
            if status == 400:
                self._broken(Break.ERROR_FRAME, message)
            elif status == 503:
                self._broken(Break.OVERLOADED, message)
            elif status is None:
                self._broken(Break.ABORTED, message)
            else:
                self._broken(Break.ENGINE_FAILED, message)
            return
        total = self.base + self.upstream.frames.count
        matched = reason.get("matched")
        self.stream._matched = matched if isinstance(matched, str | int) else None
        self._release()
        self.stream.feed(ev.AttemptFinished(self.epoch, self.launch, str(kind), total))

    def on_end(self, end: End) -> None:
        if self._closed:
            return
        if not end.connected:
            kind = Break.REFUSED
        elif end.status in (401, 403):
            kind = Break.UNAUTHORIZED
        elif end.status == 400:
            kind = Break.ERROR_FRAME
        elif end.status == 503:
            kind = Break.OVERLOADED
        elif end.status not in (0, 200):
            kind = Break.ENGINE_FAILED
        else:
            kind = Break.RESET if "reset" in end.why else Break.EOF
        self._broken(kind, engine_words(end.body) if end.body else end.why)

    def _broken(self, kind: Break, why: str) -> None:
        if self._closed:
            return
        self._release()
        if kind in (Break.REFUSED, Break.EOF, Break.RESET, Break.UNAUTHORIZED):
            self.core.worker_suspect(self.launch, kind, why)
        self.stream.feed(ev.AttemptBroken(self.epoch, self.launch, kind, why))

    def _release(self) -> None:
        if not self._closed:
            self._closed = True
            self.core.attempt_ended(self)

    def close(self) -> None:
        """End the connection; nothing of this attempt reaches the stream any more."""
        finished = self._closed
        self._release()
        self.upstream.close(gently=finished)
