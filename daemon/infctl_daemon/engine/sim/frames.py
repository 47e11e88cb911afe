"""The bytes of SGLang's answers: stream frames, whole answers, errors.

What stays true: key order and spacing are those recorded from the real engine (tests/conformance/recorded); a
cumulative frame costs the same at any length, because the encoded text and ids so far are kept.
"""

from __future__ import annotations

import json
import time
from typing import Any

from infctl_daemon.engine.sim.logprobs import Lists

DONE = b"data: [DONE]\n\n"


def encode(value: object) -> bytes:
    """JSON without spaces and with plain UTF-8, as orjson writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Answer:
    """What one request has answered so far. `updated` counts batches of tokens taken in."""

    __slots__ = (
        "_head", "_ids", "_started", "_text", "_version", "cached", "completion", "finish", "first_sent", "logs",
        "prompt_tokens", "rid",
    )  # fmt: skip

    def __init__(self, rid: str, weight_version: str, logs: Lists | None = None) -> None:
        self.rid = rid
        self.logs = logs
        self.finish: dict[str, Any] | None = None
        self.prompt_tokens = 0
        self.cached = 0
        self.completion = 0
        self.first_sent = False
        self._head = b'"meta_info":{"id":' + encode(rid) + b',"finish_reason":'
        self._version = encode(weight_version)
        self._text = bytearray()
        self._ids = bytearray()
        self._started = time.perf_counter()

    def take(self, new: list[int], added: str, finish: dict[str, Any] | None, prompt_tokens: int, cached: int) -> None:
        if new:
            self._ids += (b"," if self._ids else b"") + ",".join(map(str, new)).encode()
            self.completion += len(new)
        if added:
            self._text += json.dumps(added, ensure_ascii=False)[1:-1].encode()
        self.finish = finish
        self.prompt_tokens = prompt_tokens
        self.cached = cached

    def body(self, *, stamp: bool) -> bytes:
        """The JSON of a frame, or of the whole answer. `stamp` adds the time it was sent."""
        count = b"%d" % self.completion
        finish = self.finish
        spans = (
            b'"weight_versions":[{"version":' + self._version + b',"start":0,"end":' + count + b"}],"
            if finish is not None
            else b""
        )
        tail = b',"response_sent_to_client_ts":' + repr(time.time()).encode() if stamp else b""
        logs = b"" if self.logs is None else self.logs.body()
        head = b'{"text":"' + self._text + b'","output_ids":[' + self._ids + b"]," + self._head
        if finish is not None and self.prompt_tokens == 0:
            return b"".join(
                (
                    head, encode(finish), b',"weight_version":', self._version, b',"e2e_latency":',
                    repr(time.perf_counter() - self._started).encode(), b",", spans, logs, b'"completion_tokens":',
                    count, tail, b"}}",
                )
            )  # fmt: skip
        detail = b'{"device":%d,"host":0}' % self.cached if self.cached else b"null"
        latency = b""
        if finish is not None:
            latency = b',"e2e_latency":' + repr(time.perf_counter() - self._started).encode()
        return b"".join(
            (
                head, b"null" if finish is None else encode(finish), b',"prompt_tokens":%d' % self.prompt_tokens,
                b',"weight_version":', self._version, b',"num_retractions":0,', logs, b'"reasoning_tokens":0,',
                b'"completion_tokens":', count, b',"cached_tokens":%d,' % self.cached, spans,
                b'"cached_tokens_details":', detail, b',"dp_rank":null', latency, tail, b"}}",
            )
        )  # fmt: skip

    def frame(self) -> bytes:
        """The next stream frame; the first one is stamped."""
        stamp = not self.first_sent
        self.first_sent = True
        return b"data: " + self.body(stamp=stamp) + b"\n\n"


def refusal(message: str) -> bytes:
    """HTTP body of a request that is well-formed and refused."""
    return encode({"error": {"message": message}})


def refusal_frames(message: str) -> bytes:
    """The same for a stream, after HTTP 200."""
    error = {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}
    return b"data: " + encode({"error": error}) + b"\n\n"


def malformed(problem: str, path: str) -> bytes:
    """HTTP body of a request that does not fit the schema."""
    lines = ["{" + line + "}" for line in problem.split("\n")]
    count = f"{len(lines)} validation error{'s' if len(lines) > 1 else ''}"
    message = f"{count}:\n" + "".join(f"  {line}\n" for line in lines) + f"\n    {path} [{', '.join(lines)}]"
    return encode({"object": "error", "message": message, "type": "Bad Request", "param": None, "code": 400})


def openai_error(message: str, status: int) -> bytes:
    return encode({"object": "error", "message": message, "type": str(status), "param": None, "code": status})
