"""The body of `POST /v1/completions`: OpenAI's fields, and those that SGLang adds, as streams to be run.

What changes an answer is passed on or refused, never left out in silence.
"""

from __future__ import annotations

from typing import Any

import msgspec

from infctl_daemon.gateway.asked import Asked, Bundle, check_count, check_total, multiply
from infctl_daemon.gateway.body_json import decode, schema_of
from infctl_daemon.gateway.errors import ClientError, invalid

MAX_LOGPROBS = 20


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class CompletionBody(msgspec.Struct):
    """Unknown fields are ignored, as OpenAI's own server does."""

    model: str
    prompt: str | list[int | str | list[int]]
    max_tokens: int | None = 16
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = 1
    best_of: int | None = None
    echo: bool = False
    suffix: str | None = None
    logprobs: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    response_format: dict[str, Any] | None = None
    lora_path: str | None = None
    session_params: dict[str, Any] | None = None
    priority: int | None = None
    return_token_ids: bool = False
    custom_logit_processor: msgspec.Raw = msgspec.Raw(b"")


_decoder = msgspec.json.Decoder(CompletionBody)
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "stop",
             "repetition_penalty", "logit_bias", "stop_token_ids", "stop_regex", "json_schema", "regex",
             "ebnf", "structural_tag")  # fmt: skip


def read_completion(body: bytes) -> Bundle:
    """Raises ClientError with the field at fault."""
    asked: CompletionBody = decode(_decoder, body)
    if bytes(asked.custom_logit_processor) not in (b"", b"null"):
        raise invalid("custom_logit_processor is never forwarded: it runs client code", "custom_logit_processor")
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
            sampling=_sampling(asked),
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
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        echo=asked.echo,
        top_logprobs=asked.logprobs,
    )


def _sampling(asked: CompletionBody) -> dict[str, Any]:
    sampling: dict[str, Any] = {
        "skip_special_tokens": asked.skip_special_tokens,
        "ignore_eos": asked.ignore_eos,
        "no_stop_trim": asked.no_stop_trim,
        "min_new_tokens": asked.min_tokens,
    }
    for name in _SAMPLING:
        value = getattr(asked, name)
        if value is not None:
            sampling[name] = value
    if asked.seed is not None:
        sampling["sampling_seed"] = asked.seed
    schema = schema_of(asked.response_format)
    if schema is not None:
        sampling["json_schema"] = schema
    return sampling


def _extra(asked: CompletionBody, *, compare: bool) -> dict[str, Any]:
    extra = {n: v for n in ("lora_path", "session_params", "priority") if (v := getattr(asked, n)) is not None}
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


__all__ = ["ClientError", "read_completion"]
