"""`/v1/completions` on the wire. The parts of a frame that never change are encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from infctl_daemon.gateway.asked import Bundle, Job
from infctl_daemon.gateway.detok import Detokenizer
from infctl_daemon.gateway.logprobs import Logprobs
from infctl_daemon.gateway.sse import DONE, Usage, data, encode, tail


class CompletionForm:
    """One response. `created` is its time in seconds."""

    def __init__(self, bundle: Bundle, created: int, tokenizer: Tokenizer, stream: str) -> None:
        self.id = f"cmpl-{stream}"
        self.base = {"id": self.id, "object": "text_completion", "created": created, "model": bundle.model}
        self._bundle = bundle
        self._tokenizer = tokenizer

    def surface(self, number: int, stream: str, job: Job) -> CompletionSurface:
        shown = _Shown(self._tokenizer, job, self._bundle) if self._bundle.top_logprobs is not None else None
        lead = job.text if self._bundle.echo else ""
        return CompletionSurface(self.base, number, token_ids=self._bundle.token_ids, lead=lead, shown=shown)

    def closing(self, usage: Usage) -> bytes:
        return data({**self.base, "choices": [], "usage": usage}) + DONE if self._bundle.include_usage else DONE

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {**self.base, "choices": choices, "usage": usage}


class CompletionSurface:
    """One choice of a response. `lead` is the prompt's text where it is echoed."""

    def __init__(
        self, base: dict[str, Any], number: int, *, token_ids: bool, lead: str = "", shown: _Shown | None = None
    ) -> None:
        self._base = base
        self._number = number
        self._token_ids = token_ids
        self._lead = lead
        self._shown = shown
        self._head = b"data: " + encode(base)[:-1] + b',"choices":[{"index":%d,"text":' % number
        self._tail = b',"logprobs":null,"finish_reason":null}]}\n'

    def tokens(self, ids: Sequence[int], text: str, mark: bytes, comment: str) -> bytes:
        ending = self._tail
        if self._shown is not None:
            ending = b',"logprobs":%s,"finish_reason":null}]}\n' % encode(self._shown.next(ids))
        if self._lead:
            text, self._lead = self._lead + text, ""
        listed = b',"token_ids":[' + ",".join(map(str, ids)).encode() + b"]" if self._token_ids else b""
        return b"".join((self._head, encode(text), listed, ending, tail(mark, comment)))

    def finish(self, reason: str, matched: str | int | None, text: str) -> bytes:
        logprobs = self._shown.next(()) if self._shown is not None and self._lead else None
        choice = {"index": self._number, "text": self._lead + text, "logprobs": logprobs}
        return data({**self._base, "choices": [{**choice, "finish_reason": reason, "matched_stop": matched}]})

    def choice(self, ids: Sequence[int], text: str, reason: str, matched: str | int | None) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": self._number,
            "text": self._lead + text,
            "logprobs": self._shown.next(ids) if self._shown is not None else None,
            "finish_reason": reason,
            "matched_stop": matched,
        }
        if self._token_ids:
            choice["token_ids"] = list(ids)
        return choice

    def absorb(self, meta: dict[str, Any]) -> None:
        """Nothing of it has a place in a completion."""


class _Shown:
    """OpenAI's `logprobs` object for each frame: the tokens not shown yet, the prompt's before the first."""

    def __init__(self, tokenizer: Tokenizer, job: Job, bundle: Bundle) -> None:
        assert job.logprobs is not None
        self._tokenizer = tokenizer
        self._known: Logprobs = job.logprobs
        self._top = bundle.top_logprobs or 0
        self._prompt: Sequence[int] = job.prompt_ids if bundle.echo else ()
        self._before = len(job.text) if bundle.echo else 0
        self._count = 0

    def next(self, ids: Sequence[int]) -> dict[str, list[Any]]:
        out: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if self._prompt:
            prompt, self._prompt = self._prompt, ()
            for number, (token, at) in enumerate(zip(prompt, offsets_of(self._tokenizer, prompt), strict=True)):
                self._add(out, token, at, *self._known.at_prompt(number))
        for number, token in enumerate(ids, self._count):
            self._add(out, token, self._before + self._known.offsets[number], *self._known.at(number))
        self._count += len(ids)
        return out

    def _add(self, out: dict[str, list[Any]], token: int, at: int, value: float | None, others: list[Any]) -> None:
        word = self._word(token)
        out["tokens"].append(word)
        out["token_logprobs"].append(value)
        out["text_offset"].append(at)
        top: dict[str, Any] | None = None
        if self._top and value is not None:
            top = {}
            for one in others:
                top.setdefault(self._word(one[1]), one[0])  # the best one, where two look the same
            top.setdefault(word, value)
        out["top_logprobs"].append(top)

    def _word(self, token: int) -> str:
        return str(self._tokenizer.decode([token], skip_special_tokens=False))


def offsets_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Where each token begins in the text of `ids` (characters)."""
    return Detokenizer(tokenizer, ()).feed_each(ids)[1]
