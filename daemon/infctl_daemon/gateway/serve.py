"""From a bundle that a client asked for to its answer: every answer becomes a stream, all end when the client goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog
from aiohttp import web
from tokenizers import Tokenizer

from infctl.domain import request_events as ev
from infctl.domain.model import Contract
from infctl.domain.request_events import ErrorType
from infctl.store.records import EndpointRecord
from infctl_daemon.gateway.answer import Answer
from infctl_daemon.gateway.asked import Bundle, Job
from infctl_daemon.gateway.core import Core
from infctl_daemon.gateway.detok import Detokenizer
from infctl_daemon.gateway.errors import ClientError
from infctl_daemon.gateway.fit import fit
from infctl_daemon.gateway.sse import Form
from infctl_daemon.gateway.stream import Stream

log = structlog.get_logger()
_PROMISES = (Contract.EXACT, Contract.CONTINUABLE, Contract.RESTART_ONLY, Contract.NONE)


@dataclass(slots=True)
class Served:
    """A model as its groups serve it."""

    record: EndpointRecord
    tokenizer: Tokenizer


def model_of(core: Core, model: str) -> Served:
    """Raises ClientError when no ready group serves the model."""
    record = core.fleet.example(model)
    tokenizer = core.fleet.tokenizer(record.tokenizer_digest) if record else None
    if record is None or tokenizer is None:
        if not core.fleet.serves(model):
            raise ClientError(ErrorType.MODEL_NOT_FOUND, f"no pool serves {model!r}", param="model")
        raise ClientError(ErrorType.UNAVAILABLE, f"no ready group serves {model} now")
    return Served(record, tokenizer)


def _jobs(bundle: Bundle, served: Served) -> list[Job]:
    """Raises ClientError with the field at fault."""
    record, tokenizer = served.record, served.tokenizer
    jobs: list[Job] = []
    ids: list[int] = []
    for number, asked in enumerate(bundle.answers):
        prompt = asked.prompt
        if number % bundle.per_prompt == 0:
            ids = list(tokenizer.encode(prompt).ids) if isinstance(prompt, str) else prompt
        job = fit(
            asked,
            ids,
            context_length=record.context_length,
            vocab_size=record.vocab_size,
            deterministic=record.deterministic,
        )
        if bundle.echo:
            job.text = prompt if isinstance(prompt, str) else str(tokenizer.decode(ids, skip_special_tokens=True))
        jobs.append(job)
    return jobs


async def serve(
    request: web.Request, core: Core, bundle: Bundle, served: Served, form: Callable[[str], Form], keep_alive: float
) -> web.StreamResponse:
    """Run every answer of the bundle. Raises ClientError before the response has begun."""
    jobs = _jobs(bundle, served)
    parent = core.new_stream_id()
    pin = request.headers.get("x-infctl-group", "")
    core.check_room(bundle.model, len(jobs), pin)
    answer = Answer(form(parent), bundle, keep_alive)
    streams = [
        _stream(core, f"{parent}{number:02x}" if len(jobs) > 1 else parent, job, served, answer, pin)
        for number, job in enumerate(jobs)
    ]
    headers = {"x-infctl-request-id": parent, "x-infctl-recovery": _recovery(streams)}
    try:
        for stream in streams:
            core.record(stream)
        for stream in streams:
            stream.feed(ev.Started())
        if bundle.stream:
            return await _stream_out(request, parent, answer, headers)
        await answer.done.wait()
        if answer.error is not None:
            raise ClientError(*answer.error)
        body = msgspec.json.encode(answer.whole())
        return web.Response(body=body, headers=headers, content_type="application/json")
    finally:
        # a client that is gone ends up here by cancellation
        for stream in streams:
            stream.feed(ev.ReaderLeft())


def _stream(core: Core, sid: str, job: Job, served: Served, answer: Answer, pin: str) -> Stream:
    sampling = job.asked.sampling
    detokenizer = Detokenizer(
        served.tokenizer,
        job.prompt_ids,
        stops=job.stops,
        skip_special_tokens=bool(sampling.get("skip_special_tokens", True)),
        no_stop_trim=bool(sampling.get("no_stop_trim", False)),
    )
    return core.admit(sid, job, answer.join(sid, job), detokenizer, pin=pin)


async def _stream_out(request: web.Request, parent: str, answer: Answer, headers: dict[str, str]) -> web.StreamResponse:
    if answer.error is not None:
        raise ClientError(*answer.error)
    response = web.StreamResponse(headers={**headers, "content-type": "text/event-stream", "cache-control": "no-store"})
    response.enable_chunked_encoding()
    await answer.begin(request, response)
    try:
        await answer.follow()
        await response.write_eof()
    except (ConnectionError, TimeoutError):
        log.debug("client.gone", request_id=parent)
    return response


def _recovery(streams: list[Stream]) -> str:
    """What the client may rely on: the weakest promise among the answers."""
    weakest = max(streams, key=lambda stream: _PROMISES.index(stream.contract))
    reason = f"; reason={weakest.contract_reason}" if weakest.contract_reason else ""
    return weakest.contract.value + (reason if weakest.contract is not Contract.EXACT else "")
