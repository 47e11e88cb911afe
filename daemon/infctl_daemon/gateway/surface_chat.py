"""`/v1/chat/completions` on the wire. An answer's first frame names its role; what never changes is encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from infctl_daemon.gateway.asked import Bundle, Job
from infctl_daemon.gateway.logprobs import Logprobs
from infctl_daemon.gateway.sse import DONE, Usage, data, encode, tail


class ChatForm:
    """One response. `created` is its time in seconds."""

    def __init__(self, bundle: Bundle, created: int, tokenizer: Tokenizer, stream: str) -> None:
        self._base = {"id": f"chatcmpl-{stream}", "object": "", "created": created, "model": bundle.model}
        self._chunk = {**self._base, "object": "chat.completion.chunk"}
        self._bundle = bundle
        self._tokenizer = tokenizer

    def surface(self, number: int, stream: str, job: Job) -> ChatSurface:
        shown = None
        if self._bundle.top_logprobs is not None and job.logprobs is not None:
            shown = _Shown(self._tokenizer, job.logprobs, self._bundle.top_logprobs)
        return ChatSurface(self._chunk, number, token_ids=self._bundle.token_ids, shown=shown)

    def closing(self, usage: Usage) -> bytes:
        return data({**self._chunk, "choices": [], "usage": usage}) + DONE if self._bundle.include_usage else DONE

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {**self._base, "object": "chat.completion", "choices": choices, "usage": usage}


class ChatSurface:
    """One choice of a response."""

    def __init__(self, chunk: dict[str, Any], number: int, *, token_ids: bool, shown: _Shown | None = None) -> None:
        self._chunk = chunk
        self._number = number
        self._token_ids = token_ids
        self._shown = shown
        self._begun = False
        self._head = b"data: " + encode(chunk)[:-1] + b',"choices":[{"index":%d,"delta":{"content":' % number
        self._tail = b',"logprobs":null,"finish_reason":null}]}\n'

    def tokens(self, ids: Sequence[int], text: str, mark: bytes, comment: str) -> bytes:
        ending = self._tail
        if self._shown is not None:
            ending = b',"logprobs":%s,"finish_reason":null}]}\n' % encode(self._shown.next(ids))
        listed = b',"token_ids":[' + ",".join(map(str, ids)).encode() + b"]" if self._token_ids else b""
        frame = b"".join((self._head, encode(text), b"}", listed, ending, tail(mark, comment)))
        return frame if self._begun else self._begin() + frame

    def _begin(self) -> bytes:
        self._begun = True
        choice = {"index": self._number, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        return data({**self._chunk, "choices": [{**choice, "finish_reason": None}]})

    def finish(self, reason: str, matched: str | int | None, text: str) -> bytes:
        begin = b"" if self._begun else self._begin()
        choice = {"index": self._number, "delta": {"content": text} if text else {}, "logprobs": None}
        return begin + data({**self._chunk, "choices": [{**choice, "finish_reason": reason, "matched_stop": matched}]})

    def choice(self, ids: Sequence[int], text: str, reason: str, matched: str | int | None) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": self._number,
            "message": {"role": "assistant", "content": text},
            "logprobs": self._shown.next(ids) if self._shown is not None else None,
            "finish_reason": reason,
            "matched_stop": matched,
        }
        if self._token_ids:
            choice["token_ids"] = list(ids)
        return choice

    def absorb(self, meta: dict[str, Any]) -> None:
        """Nothing of it has a place in a chat."""


class _Shown:
    """OpenAI's `logprobs` object of a chat for each frame: the tokens not shown yet."""

    def __init__(self, tokenizer: Tokenizer, known: Logprobs, top: int) -> None:
        self._tokenizer = tokenizer
        self._known = known
        self._top = top
        self._count = 0

    def next(self, ids: Sequence[int]) -> dict[str, Any]:
        content = []
        for number, token in enumerate(ids, self._count):
            value, others = self._known.at(number)
            top = [self._entry(one[1], one[0]) for one in others[: self._top]]
            content.append({**self._entry(token, value), "top_logprobs": top})
        self._count += len(ids)
        return {"content": content, "refusal": None}

    def _entry(self, token: int, value: float | None) -> dict[str, Any]:
        word = str(self._tokenizer.decode([token], skip_special_tokens=False))
        return {"token": word, "logprob": value, "bytes": list(word.encode())}
