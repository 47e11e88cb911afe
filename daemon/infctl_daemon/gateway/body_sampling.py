"""The fields that completions and chats share: how tokens are chosen and where an answer stops."""

from __future__ import annotations

from typing import Any

import msgspec

from infctl_daemon.gateway.body_json import schema_of
from infctl_daemon.gateway.errors import invalid


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class SamplingBody(msgspec.Struct, kw_only=True):
    """OpenAI's fields and SGLang's; unknown ones are ignored, as OpenAI's own server does."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = 1
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
    extra_key: str | None = None
    return_token_ids: bool = False
    custom_logit_processor: msgspec.Raw = msgspec.Raw(b"")

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "stop",
             "repetition_penalty", "logit_bias", "stop_token_ids", "stop_regex", "json_schema", "regex",
             "ebnf", "structural_tag")  # fmt: skip
_BESIDE = ("lora_path", "session_params", "priority", "extra_key")


def sampling_of(asked: SamplingBody) -> dict[str, Any]:
    """The engine's `sampling_params`, without the limit on new tokens. Raises ClientError."""
    if bytes(asked.custom_logit_processor) not in (b"", b"null"):
        raise invalid("custom_logit_processor is never forwarded: it runs client code", "custom_logit_processor")
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


def extra_of(asked: SamplingBody) -> dict[str, Any]:
    """Fields of the engine's body beside `sampling_params`.

    Never left out in silence: an answer without the adapter that was asked for is a wrong answer.
    """
    return {name: value for name in _BESIDE if (value := getattr(asked, name)) is not None}
