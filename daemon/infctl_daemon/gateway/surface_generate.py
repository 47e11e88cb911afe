"""SGLang's `/generate` on the wire: cumulative frames in the engine's shape, the stream's id in place of the rid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infctl_daemon.gateway.asked import Bundle, Job
from infctl_daemon.gateway.sse import DONE, Usage, data, encode, tail


class GenerateForm:
    """One response: an answer, or a list of them where the engine would give a list."""

    def __init__(self, bundle: Bundle, revision: str) -> None:
        self._listed = bundle.listed
        self._revision = revision

    def surface(self, number: int, stream: str, job: Job) -> GenerateSurface:
        return GenerateSurface(stream, job, self._revision, number if self._listed else None)

    def closing(self, usage: Usage) -> bytes:
        return DONE

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> Any:
        return choices if self._listed else choices[0]


class GenerateSurface:
    """One answer; `number` tells it from the others of a list."""

    def __init__(self, stream: str, job: Job, revision: str, number: int | None = None) -> None:
        self._stream = stream
        self._prompt = len(job.prompt_ids)
        self._logprobs = job.logprobs
        self._revision = revision
        self._number = number
        self._ids: list[int] = []
        self._text = ""
        self._engine_meta: dict[str, Any] = {}

    def tokens(self, ids: Sequence[int], text: str, mark: bytes, comment: str) -> bytes:
        self._ids.extend(ids)
        self._text += text
        return b"data: " + encode(self._body(self._ids, self._text, None)) + b"\n" + tail(mark, comment)

    def finish(self, reason: str, matched: str | int | None, text: str) -> bytes:
        return data(self.choice(self._ids, self._text + text, reason, matched))

    def choice(self, ids: Sequence[int], text: str, reason: str, matched: str | int | None) -> dict[str, Any]:
        finish = {"type": reason, **({"length": len(ids)} if reason == "length" else {"matched": matched})}
        return self._body(ids, text, finish)

    def absorb(self, meta: dict[str, Any]) -> None:
        self._engine_meta = meta

    def _body(self, ids: Sequence[int], text: str, finish: dict[str, Any] | None) -> dict[str, Any]:
        known = self._engine_meta
        if self._logprobs is not None:
            known = self._logprobs.into(known, len(ids))
        meta = {
            **known,
            "id": self._stream,
            "finish_reason": finish,
            "prompt_tokens": self._prompt,
            "weight_version": self._revision,
            "completion_tokens": len(ids),
        }
        body = {"text": text, "output_ids": ids, "meta_info": meta}
        return body if self._number is None else {**body, "index": self._number}
