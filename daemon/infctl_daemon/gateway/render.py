"""A chat becomes token ids: a worker renders it with the model's own template, so no two workers disagree on a prompt.

The ids are made once, before the request gets a stream; from there on a chat is generated and replayed like any other
prompt. A worker that does not answer in time is passed over for the next one.
"""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
import structlog

from infctl.domain.request_events import Break, ErrorType
from infctl_daemon.gateway.core import Core
from infctl_daemon.gateway.errors import ClientError, engine_words, invalid
from infctl_daemon.runtime.log import about

log = structlog.get_logger()
TRIES = 3
TIMEOUT = 2.0
BYTES_PER_SECOND = 500_000  # what a busy worker renders and encodes at least
ANSWER_LIMIT = 64 * 1024 * 1024
_answer = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder().encode


async def render(core: Core, model: str, rendering: dict[str, Any], pin: str = "") -> list[int]:
    """Ids of the chat's prompt. Raises ClientError: the template's own words where it refuses, else `unavailable`."""
    body = _encode(rendering)
    limit = aiohttp.ClientTimeout(total=TIMEOUT + len(body) / BYTES_PER_SECOND)
    passed: set[str] = set()
    why = "none is ready"
    for _ in range(TRIES):
        record = core.any_worker(model, passed, pin)
        if record is None:
            break
        passed.add(record.launch)
        headers = {"authorization": f"Bearer {core.fleet.api_key(record.launch)}", "content-type": "application/json"}
        try:
            async with core.http.post(f"{record.url}/tokenize", data=body, headers=headers, timeout=limit) as answer:
                status, said = answer.status, await answer.content.read(ANSWER_LIMIT)
                while (more := await answer.content.read(ANSWER_LIMIT)) and len(said) < ANSWER_LIMIT:
                    said += more
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = f"{record.group} did not answer ({type(error).__name__})"
            if isinstance(error, aiohttp.ClientConnectorError):
                core.worker_suspect(record.launch, Break.REFUSED, str(error))
            continue
        if status == 200:
            return _ids(said, record.group)
        if status in (400, 422):
            words = engine_words(said)
            field = "tools" if words.startswith("Tool ") else "messages"
            raise invalid(f"the model's template refused the chat: {words}", field, code="template_refused")
        if status in (401, 403):
            core.worker_suspect(record.launch, Break.UNAUTHORIZED, f"/tokenize: {status}")
        why = f"{record.group} answered {status}"
        log.warning("chat.render_failed", **about(record), status=status)
    raise ClientError(ErrorType.UNAVAILABLE, f"no worker of {model} rendered the chat: {why}")


def _ids(said: bytes, group: str) -> list[int]:
    try:
        tokens = _answer.decode(said).get("tokens")
    except (msgspec.MsgspecError, ValueError):
        tokens = None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise ClientError(ErrorType.INTERNAL, f"{group} rendered the chat to something that is no list of ids")
    return tokens
