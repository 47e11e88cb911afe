"""The gateway's middle: knows every running stream, finds workers for them, and carries news to those concerned.

It decides nothing about a request (that is `domain.request`) nor about a route (`domain.routing`): it brings the
facts to them and does what they say.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import structlog

from infctl.domain import request as machine
from infctl.domain import request_events as ev
from infctl.domain.errors import ConfigError
from infctl.domain.ids import Epoch, engine_rid, is_stream_id, stream_id
from infctl.domain.model import Contract, Endpoint, Limits
from infctl.domain.replay import FinishHere, plan_replay, replayability
from infctl.domain.request_events import Break, ErrorType
from infctl.domain.routing import NoRoute, Wanted, pick
from infctl.store import stamp
from infctl.store.codec import encode
from infctl.store.keys import Keys
from infctl.store.records import EndpointRecord, EventRecord, FaultNotice, LaunchLoad, StreamRecord, Suspicion
from infctl_daemon.gateway.answer import Part
from infctl_daemon.gateway.asked import Job
from infctl_daemon.gateway.detok import Detokenizer
from infctl_daemon.gateway.errors import ClientError
from infctl_daemon.gateway.fleet import Fleet
from infctl_daemon.gateway.journal import Journal
from infctl_daemon.gateway.logprobs import ABOUT_THE_PROMPT
from infctl_daemon.gateway.pulse import PulseWatch
from infctl_daemon.gateway.stream import Attempt, Stream
from infctl_daemon.gateway.upstream import request_head
from infctl_daemon.runtime.log import about
from infctl_daemon.runtime.recorder import Recorder

log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode
ABORT_TIMEOUT = 1.5
MAX_STREAMS = 4096


class Core:
    """`leases` gives the lease ids for live streams, finished ones and events, and the gateway's own."""

    def __init__(
        self,
        name: str,
        keys: Keys,
        limits: Limits,
        fleet: Fleet,
        journal: Journal,
        recorder: Recorder,
        http: aiohttp.ClientSession,
        live_lease: Callable[[], int],
        fading_lease: Callable[[], int],
        own_lease: Callable[[], int],
    ) -> None:
        self.name = name
        self.keys = keys
        self.limits = limits
        self.fleet = fleet
        self.recorder = recorder
        self.incarnation = int.from_bytes(os.urandom(2), "big")
        self.streams: dict[str, Stream] = {}
        self.counters: dict[str, int] = defaultdict(int)
        self.now = asyncio.get_running_loop().time
        self.pulse = PulseWatch(limits, self.heartbeat, self._frozen)
        self._journal = journal
        self.http = http
        self._live_lease = live_lease
        self._fading_lease = fading_lease
        self._own_lease = own_lease
        self._by_launch: dict[str, set[Attempt]] = defaultdict(set)
        self._tasks: set[asyncio.Task[None]] = set()
        fleet.on_fault = self._fault

    def adopt_limits(self, limits: Limits) -> None:
        """Timers for what begins from now on; leases keep their length. Raises ConfigError where they do not fit."""
        kept = replace(limits, lease_ttl=self.limits.lease_ttl, resume_window=self.limits.resume_window)
        if problems := kept.problems():
            raise ConfigError("; ".join(sentence for _, sentence in problems))
        self.limits = self.pulse.limits = kept

    # admission
    def new_stream_id(self) -> str:
        return stream_id(int(time.time() * 1000), os.urandom(11))

    def check_room(self, model: str, count: int, pin: str = "") -> None:
        """Raises ClientError when nothing can serve `count` more streams at all.

        Asked before anything is written: a stream that never gets a worker costs the store nothing.
        """
        if len(self.streams) + count > MAX_STREAMS:
            raise ClientError(ErrorType.OVERLOADED, f"this gateway carries at most {MAX_STREAMS} streams")
        found = pick(self._candidates(pin), Wanted(model=model), self.fleet.load, last_resort=True)
        if isinstance(found, NoRoute):
            refused = self._no_worker(Epoch(1, 0), model, found)
            raise ClientError(refused.error, refused.message)

    def admit(self, sid: str, job: Job, part: Part, detokenizer: Detokenizer, pin: str = "") -> Stream:
        """Take a request that fits its model; what it tells goes to `part`."""
        model = job.asked.model
        deterministic = any(e.deterministic for e in self.fleet.endpoints() if e.model == model)
        contract = replayability(job.sampling, deterministic=deterministic)
        state = machine.Request(
            id=sid,
            deadline=self.now() + self.limits.request_deadline,
            replayable=contract[0] in (Contract.EXACT, Contract.CONTINUABLE),
            migration_limit=self.limits.migrations,
            patience=min(30.0, self.limits.request_deadline),
        )
        stream = Stream(self, state, job, part, detokenizer, contract, pin)
        self.streams[sid] = stream
        if self.recorder.on:
            self.recorder.initial("request", sid, state)
        return stream

    def streams_of(self, request_id: str) -> list[Stream]:
        """The running streams of one client request, known by its own id or by one stream's."""
        if (one := self.streams.get(request_id)) is not None:
            return [one]
        if not is_stream_id(request_id):
            return []
        return [s for sid, s in sorted(self.streams.items()) if sid[:-2] == request_id]

    def forget(self, stream: Stream) -> None:
        self.streams.pop(stream.id, None)

    # dispatch
    def dispatch(
        self, stream: Stream, epoch: Epoch, exclude: tuple[str, ...], *, recovering: bool
    ) -> Attempt | ev.NoWorker | ev.NothingLeft:
        """Find a worker and send it what is left of the request."""
        job = stream.job
        wanted = Wanted(
            model=job.asked.model,
            revision=stream.revision,
            tokenizer_digest=stream.tokenizer_digest,
            context_length=len(job.prompt_ids) + job.sampling.max_new if recovering else 0,
            exclude_launches=frozenset(exclude),
        )
        found = pick(
            self._candidates("" if recovering else stream.pin),
            wanted,
            self.fleet.load,
            ignore_caps=recovering,
            last_resort=not recovering,
        )
        if isinstance(found, NoRoute):
            return self._no_worker(epoch, wanted.model, found)
        record = self.fleet.record(found.launch)
        assert record is not None
        plan = plan_replay(
            job.sampling,
            prompt_tokens=len(job.prompt_ids),
            committed=tuple(stream.tokens),
            eos_ids=frozenset(record.eos_ids),
            context_length=found.context_length,
        )
        if isinstance(plan, FinishHere):
            stream._matched = plan.matched
            return ev.NothingLeft(epoch, plan.reason)
        sampling = {**job.asked.sampling, "max_new_tokens": plan.max_new, "min_new_tokens": plan.min_new}
        if plan.logit_bias:
            sampling["logit_bias"] = {str(t): b for t, b in plan.logit_bias}
        stream.rid = engine_rid(stream.id, epoch, self.incarnation)
        extra = job.asked.extra
        if stream.tokens and ABOUT_THE_PROMPT in extra:
            extra = {**extra, ABOUT_THE_PROMPT: -1}  # known already; and the input holds answer tokens now
        body = _encode(
            {
                **extra,
                "rid": stream.rid,
                "input_ids": job.prompt_ids + stream.tokens,
                "sampling_params": sampling,
                "stream": True,
            }
        )
        stream.group, stream.launch = found.group, found.launch
        stream.revision, stream.tokenizer_digest = found.revision, found.tokenizer_digest
        at = urlsplit(found.url)
        host, port = at.hostname or "127.0.0.1", at.port or 80
        head = request_head(f"{host}:{port}", "/generate", self.fleet.api_key(found.launch), len(body))
        attempt = Attempt(self, stream, epoch, found.launch, len(stream.tokens), head, body)
        count, _ = self.fleet.dispatched.get(found.launch, (0, 0.0))
        self.fleet.note_dispatch(found.launch, count + 1, stamp.now_ms())
        attempt.upstream.start(host, port)
        return attempt

    def any_worker(self, model: str, passed: set[str], pin: str = "") -> EndpointRecord | None:
        """The least loaded ready worker of a model that is not among `passed`; for work that is no stream."""
        wanted = Wanted(model=model, exclude_launches=frozenset(passed))
        found = pick(self._candidates(pin), wanted, self.fleet.load, ignore_caps=True, last_resort=True)
        return None if isinstance(found, NoRoute) else self.fleet.record(found.launch)

    def _candidates(self, pin: str) -> list[Endpoint]:
        return [e for e in self.fleet.endpoints() if not pin or e.group == pin]

    def _no_worker(self, epoch: Epoch, model: str, why: NoRoute) -> ev.NoWorker:
        if why is NoRoute.ALL_FULL:
            return ev.NoWorker(epoch, ErrorType.OVERLOADED, f"every ready group of {model} is full")
        if why is NoRoute.UNKNOWN_MODEL and not self.fleet.serves(model):
            return ev.NoWorker(epoch, ErrorType.MODEL_NOT_FOUND, f"no pool serves {model!r}")
        return ev.NoWorker(epoch, ErrorType.UNAVAILABLE, f"no ready group serves {model} now")

    # attempts tell
    def attempt_started(self, attempt: Attempt) -> None:
        attempts = self._by_launch[attempt.launch]
        attempts.add(attempt)
        self._count(attempt.launch, len(attempts))

    def attempt_ended(self, attempt: Attempt) -> None:
        attempts = self._by_launch[attempt.launch]
        attempts.discard(attempt)
        self._count(attempt.launch, len(attempts))
        if not attempts:
            del self._by_launch[attempt.launch]

    def _count(self, launch: str, count: int) -> None:
        if count:
            self.fleet.load[launch] = count
        else:
            self.fleet.load.pop(launch, None)
        self.pulse.streams(launch, count)

    def loads(self) -> dict[str, LaunchLoad]:
        """What each launch has of ours: streams, their tokens, the oldest's beginning."""
        found: dict[str, LaunchLoad] = {}
        for launch, attempts in self._by_launch.items():
            streams = [attempt.stream for attempt in attempts]
            found[launch] = LaunchLoad(
                streams=len(streams),
                tokens=sum(s.state.committed for s in streams),
                oldest_at_ms=min((s.started_ms for s in streams), default=0.0),
            )
        return found

    def token_seen(self, launch: str) -> None:
        self.pulse.last[launch] = self.now()

    def dropped(self, why: str, count: int) -> None:
        self.counters[f"dropped_{why}"] += count

    # faults
    def _fault(self, notice: FaultNotice) -> None:
        streams, record = len(self._by_launch.get(notice.launch, ())), self.fleet.record(notice.launch)
        self._lost(notice.launch, Break.FAULT, f"{notice.reason} ({notice.fault_id})")
        log.info("fault.seen", **{**about(record), **about(notice)}, why=notice.evidence, streams=streams)

    def _frozen(self, launch: str, why: str) -> None:
        if self.fleet.quarantine(launch, why):
            self._suspect(launch, Break.FROZEN, why)
            self._spawn(self._until_proven(launch))
        self._lost(launch, Break.FROZEN, why)

    def _lost(self, launch: str, kind: Break, why: str) -> None:
        for attempt in list(self._by_launch.get(launch, ())):
            attempt.stream.feed(ev.LaunchLost(launch, kind, why))

    def worker_suspect(self, launch: str, kind: Break, why: str) -> None:
        """A connection to the launch failed: no new work goes there until it has answered a probe."""
        if self.fleet.faulted(launch) is None and self.fleet.quarantine(launch, f"{kind}: {why}"):
            self._suspect(launch, kind, why)
            if kind is not Break.UNAUTHORIZED:
                self._spawn(self._until_proven(launch))

    async def _until_proven(self, launch: str) -> None:
        delay = 0.5
        while launch in self.fleet.quarantined() and self.fleet.faulted(launch) is None:
            await asyncio.sleep(delay)
            first = await self.heartbeat(launch, self.limits.probe)
            if first is not None:
                await asyncio.sleep(1.5)  # an idle scheduler refreshes its heartbeat about once a second
                second = await self.heartbeat(launch, self.limits.probe)
                if second is not None and second != first:
                    self.fleet.release(launch)
                    return
            delay = min(5.0, delay * 2)
            if self.fleet.record(launch) is None:
                self.fleet.release(launch)
                return

    async def heartbeat(self, launch: str, timeout: float) -> float | None:
        """The newest scheduler time stamp of a launch (its own clock), None without an answer in time."""
        record = self.fleet.record(launch)
        if record is None:
            return None
        headers = {"authorization": f"Bearer {self.fleet.api_key(launch)}"}
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self.http.get(f"{record.url}/v1/loads", headers=headers, timeout=limit) as answer:
                loads = msgspec.json.decode(await answer.read())["loads"]
                return max(float(one["timestamp"]) for one in loads)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return None

    def abort_upstream(self, launch: str, rid: str, settled: Callable[[], None]) -> None:
        """Tell the engine to forget `rid`; `settled` is called when it answered, or did not in time."""
        record = self.fleet.record(launch)
        if record is None or self.fleet.faulted(launch) is not None:
            asyncio.get_running_loop().call_soon(settled)
            return
        self._spawn(self._abort(record.url, self.fleet.api_key(launch), rid, settled))

    async def _abort(self, url: str, key: str, rid: str, settled: Callable[[], None]) -> None:
        limit = aiohttp.ClientTimeout(total=ABORT_TIMEOUT)
        headers = {"authorization": f"Bearer {key}"}
        try:
            async with self.http.post(f"{url}/abort_request", json={"rid": rid}, headers=headers, timeout=limit):
                pass
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.debug("abort.failed", rid=rid, why=str(error))
        settled()

    # telling the store
    def record(self, stream: Stream) -> None:
        """Write `streams/<id>` as it is now."""
        state = stream.state
        finished = state.phase in machine.TERMINAL
        record = StreamRecord(
            stream=stream.id,
            owner=self.name,
            term=state.epoch.term,
            attempt=state.epoch.attempt,
            state=state.phase.value,
            model=stream.job.asked.model,
            contract=stream.contract.value,
            contract_reason=stream.contract_reason,
            rid=stream.rid,
            group=stream.group,
            launch=stream.launch,
            prompt_tokens=len(stream.job.prompt_ids),
            committed=state.committed,
            migrations=state.migrations,
            replayed_tokens=stream.replayed,
            finish_reason=stream.finish_reason,
            error=f"{stream.error[0]}: {stream.error[1]}" if stream.error else "",
            detached=state.detached,
            chain=[(state.epoch.term, state.committed)],
            started_at=stamp.text_of(stream.started_ms),
            updated_at=stamp.now_text(),
            deadline_at=stamp.text_of(stream.started_ms + self.limits.request_deadline * 1000.0),
        )
        lease = self._fading_lease if finished else self._live_lease
        self._journal.put(self.keys.stream(stream.id), encode(record), lease)

    def record_all(self) -> None:
        """The lease of the live streams was replaced: its keys went with it."""
        for stream in self.streams.values():
            self.record(stream)

    def announce(self, kind: str, subject: str, launch: str, message: str, fields: dict[str, Any]) -> None:
        """Write an event for people and for the timeline."""
        notice = self.fleet.faulted(launch) if launch else None
        event = EventRecord(
            at=stamp.now_text(),
            kind=kind,
            subject=subject,
            actor=f"gateway/{self.name}",
            fault_id=notice.fault_id if notice else "",
            message=message,
            fields={"launch": launch, "at_ms": stamp.now_ms(), **fields},
        )
        self._journal.put(self.keys.event(stamp.event_id()), encode(event), self._fading_lease)

    def _suspect(self, launch: str, kind: Break, why: str) -> None:
        record = self.fleet.record(launch)
        group = record.group if record else launch.rpartition("-")[0]
        suspicion = Suspicion(
            group=group, launch=launch, gateway=self.name, kind=kind.value, why=why, at=stamp.now_text()
        )
        self._journal.put(self.keys.suspicion(group, launch, self.name), encode(suspicion), self._own_lease)
        self.announce("worker.suspected", f"group/{group}", launch, f"{kind}: {why}", {"kind": kind.value})
        log.warning("worker.suspected", **about(record or suspicion), failure_reason=kind.value, why=why)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
