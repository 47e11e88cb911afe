"""The bytes of SGLang's answers: stream frames, whole answers, errors.

What stays true: key order and spacing are those recorded from the real engine (tests/conformance/recorded); a
cumulative frame costs the same at any length, because the encoded text and ids so far are kept, and so is what stays
the same from frame to frame.
"""

from __future__ import annotations

import json
import time
from typing import Any

from infctl_daemon.engine.sim.logprobs import Lists

DONE = b"data: [DONE]\n\n"
_OPEN = b'data: {"text":"'
_IDS = b'","output_ids":['
_ESCAPED: dict[str, bytes] = {}
_ESCAPED_LIMIT = 8192

Base = tuple[int, int, int]
"""Prompt tokens, cached ones of them, retractions."""


def encode(value: object) -> bytes:
    """JSON without spaces and with plain UTF-8, as orjson writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def as_chunk(data: bytes) -> bytes:
    """A chunk of a chunked HTTP body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _escape(text: str) -> bytes:
    raw = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    if len(_ESCAPED) < _ESCAPED_LIMIT and len(text) < 32:
        _ESCAPED[text] = raw
    return raw


class Answer:
    """What one request has answered so far. `tail` stands behind meta_info: the index in a batch, the prompt's ids."""

    __slots__ = (
        "_base", "_head", "_ids", "_middle", "_sent_first", "_spans", "_started", "_text", "_version",
        "completion", "finish", "logs", "rid", "tail",
    )  # fmt: skip

    def __init__(self, rid: str, weight_version: str, logs: Lists | None = None, tail: bytes = b"") -> None:
        self.rid = rid
        self.logs = logs
        self.tail = tail
        self.finish: dict[str, Any] | None = None
        self.completion = 0
        self._base: Base = (0, 0, 0)
        self._head = b'],"meta_info":{"id":' + encode(rid) + b',"finish_reason":'
        self._version = encode(weight_version)
        self._spans = [(self._version, 0)]
        self._text = bytearray()
        self._ids = bytearray()
        self._sent_first = False
        self._started = time.perf_counter()
        self._middle: tuple[bytes, bytes, int] | None = None

    def take(self, new: list[int], added: str, finish: dict[str, Any] | None, base: Base) -> None:
        if len(new) == 1:
            self._ids += b",%d" % new[0] if self._ids else b"%d" % new[0]
            self.completion += 1
        elif new:
            self._ids += (b"," if self._ids else b"") + ",".join(map(str, new)).encode()
            self.completion += len(new)
        if added:
            self._text += _ESCAPED.get(added) or _escape(added)
        if base != self._base:
            self._base = base
            self._middle = None
        self.finish = finish

    def label(self, weight_version: str) -> None:
        """From the next token on the weights have this name."""
        self._version = encode(weight_version)
        self._middle = None
        if self._spans[-1][1] == self.completion:
            self._spans.pop()
        self._spans.append((self._version, self.completion))

    def _weight_versions(self) -> bytes:
        ends = [start for _, start in self._spans[1:]] + [self.completion]
        spans = [
            b'{"version":%b,"start":%d,"end":%d}' % (version, start, end)
            for (version, start), end in zip(self._spans, ends, strict=True)
        ]
        return b'"weight_versions":[' + b",".join(spans) + b"],"

    def _fixed(self) -> tuple[bytes, bytes, int]:
        """What stands before and behind completion_tokens in a frame that is neither the first nor the last."""
        prompt, cached, retractions = self._base
        detail = b'{"device":%d,"host":0}' % cached if cached else b"null"
        before = b"".join(
            (
                self._head, b'null,"prompt_tokens":%d,"weight_version":' % prompt, self._version,
                b',"num_retractions":%d,"reasoning_tokens":0,"completion_tokens":' % retractions,
            )
        )  # fmt: skip
        after = b',"cached_tokens":%d,"cached_tokens_details":%b,"dp_rank":null}' % (cached, detail)
        after += self.tail + b"}\n\n"
        return before, after + b"\r\n", len(_OPEN) + len(_IDS) + len(before) + len(after)

    def chunk(self) -> bytes:
        """The next stream frame as a chunk of an HTTP body. One copy of text and ids: they are most of a frame."""
        if self.finish is None and self._sent_first and self.logs is None:
            if self._middle is None:
                self._middle = self._fixed()
            before, after, size = self._middle
            text, ids, count = self._text, self._ids, b"%d" % self.completion
            size += len(text) + len(ids) + len(count)
            return b"".join((b"%x\r\n" % size, _OPEN, text, _IDS, ids, before, count, after))
        stamp = not self._sent_first
        self._sent_first = True
        return as_chunk(b"data: " + self.body(stamp=stamp) + b"\n\n")

    def body(self, *, stamp: bool) -> bytes:
        """The JSON of a frame, or of the whole answer. `stamp` adds the time it was sent."""
        prompt, cached, retractions = self._base
        logs = b"" if self.logs is None else self.logs.body()
        count = b"%d" % self.completion
        finish = b"null" if self.finish is None else encode(self.finish)
        last = self.finish is not None
        spans = self._weight_versions() if last else b""
        latency = b',"e2e_latency":' + repr(time.perf_counter() - self._started).encode() if last else b""
        sent = b',"response_sent_to_client_ts":' + repr(time.time()).encode() if stamp else b""
        parts: list[bytes | bytearray] = [b'{"text":"', self._text, _IDS, self._ids, self._head, finish]
        if last and prompt == 0:
            parts += [
                b',"weight_version":', self._version, latency, b",", spans, logs, b'"completion_tokens":', count,
            ]  # fmt: skip
        else:
            detail = b'{"device":%d,"host":0}' % cached if cached else b"null"
            parts += [
                b',"prompt_tokens":%d,"weight_version":' % prompt, self._version,
                b',"num_retractions":%d,' % retractions, logs, b'"reasoning_tokens":0,"completion_tokens":', count,
                b',"cached_tokens":%d,' % cached, spans, b'"cached_tokens_details":', detail, b',"dp_rank":null',
                latency,
            ]  # fmt: skip
        parts += [sent, b"}", self.tail, b"}"]
        return b"".join(parts)


def refusal(message: str) -> bytes:
    """HTTP body of a request that is well-formed and refused."""
    return encode({"error": {"message": message}})


def refusal_frame(message: str) -> bytes:
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


def bad_request(message: str) -> bytes:
    return encode({"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400})
