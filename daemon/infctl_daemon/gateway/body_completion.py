"""The body of `POST /v1/completions`: OpenAI's fields, and those that SGLang adds, as streams to be run.

What changes an answer is passed on or refused, never left out in silence.
"""

from __future__ import annotations

from typing import Any

import msgspec

from infctl_daemon.gateway.asked import Asked, Bundle, check_count, check_total, multiply
from infctl_daemon.gateway.body_json import decode
from infctl_daemon.gateway.body_sampling import SamplingBody, extra_of, sampling_of
from infctl_daemon.gateway.errors import invalid

MAX_LOGPROBS = 20


class CompletionBody(SamplingBody, kw_only=True):
    """What a completion has beside the fields it shares with chats."""

    prompt: str | list[int | str | list[int]]
    max_tokens: int | None = 16
    best_of: int | None = None
    echo: bool = False
    suffix: str | None = None
    logprobs: int | None = None


_decoder = msgspec.json.Decoder(CompletionBody)


def read_completion(body: bytes) -> Bundle:
    """Raises ClientError with the field at fault."""
    asked: CompletionBody = decode(_decoder, body)
    if asked.suffix:
        raise invalid("suffix is not served: send the prompt in the model's own fill-in-the-middle form", "suffix")
    keep = check_count(asked.n)
    each = keep if asked.best_of is None else check_count(asked.best_of, "best_of")
    if each < keep:
        raise invalid(f"best_of ({each}) must not be smaller than n ({keep})", "best_of")
    if each > keep and asked.stream:
        raise invalid("best_of cannot be streamed: which answers are best is known at the end", "best_of")
    if asked.logprobs is not None and not 0 <= asked.logprobs <= MAX_LOGPROBS:
        raise invalid(f"logprobs must be between 0 and {MAX_LOGPROBS}", "logprobs")
    prompts = _prompts(asked.prompt)
    check_total(len(prompts), each)
    answers: list[Asked] = []
    for prompt in prompts:
        one = Asked(
            model=asked.model,
            prompt=prompt,
            sampling=sampling_of(asked),
            max_new=asked.max_tokens,
            extra=_extra(asked, compare=each > keep),
            may_be_empty=asked.echo,
        )
        answers += multiply(one, each)
    return Bundle(
        answers,
        stream=asked.stream,
        per_prompt=each,
        keep=keep,
        token_ids=asked.return_token_ids,
        include_usage=asked.include_usage,
        echo=asked.echo,
        top_logprobs=asked.logprobs,
    )


def _extra(asked: CompletionBody, *, compare: bool) -> dict[str, Any]:
    extra = extra_of(asked)
    if asked.logprobs is not None or compare:
        extra["return_logprob"] = True
        extra["top_logprobs_num"] = asked.logprobs or 0
    if asked.logprobs is not None and asked.echo:
        extra["logprob_start_len"] = 0
    return extra


def _prompts(prompt: str | list[int | str | list[int]]) -> list[str | list[int]]:
    """Text, ids, or a list of either."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) == len(prompt):
        return [ids]
    several = [one for one in prompt if not isinstance(one, int)]
    if len(several) != len(prompt) or len({isinstance(one, str) for one in several}) != 1:
        raise invalid("prompt is a text, a list of token ids, or a list of either", "prompt")
    return several
