"""Client bodies, checked: what comes out of here may be sent to an engine, and says what a replay must adjust.

Nothing that can kill an engine passes (ids outside the vocabulary, `min_p` in deterministic mode), nor anything that
runs client code there (`custom_logit_processor`), nor fields by which one client could reach another's request
(`rid`, sessions, PD bootstrap). The rest of the sampling parameters travels unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from infctl.domain.replay import ANSWER_RESERVE, CONTEXT_RESERVE, Sampling
from infctl_daemon.gateway.errors import ClientError, invalid

NEVER_FORWARDED = ("custom_logit_processor",)
# fields of a native request that only we set, or that would tie it to one worker's memory
_OURS = frozenset({"rid", "stream", "input_ids", "text", "sampling_params", "bootstrap_host", "bootstrap_port",
                   "bootstrap_room", "routed_dp_rank", "disagg_prefill_dp_rank", "model", "background"})  # fmt: skip
_NOT_REPLAYABLE_TOP = ("return_logprob", "input_embeds", "image_data", "video_data", "audio_data", "session_params",
                       "return_hidden_states", "lora_path")  # fmt: skip
_NOT_REPLAYABLE_SAMPLING = ("json_schema", "regex", "ebnf", "structural_tag", "stop_regex", "beam_width")
_NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
MAX_STOPS = 64
DEFAULT_NEW_TOKENS = 128  # SGLang's own default on /generate


@dataclass(slots=True)
class Asked:
    """A request as it was asked for, before a worker is known. `prompt` is text or ids."""

    model: str
    prompt: str | list[int]
    sampling: dict[str, Any]
    max_new: int | None
    stream: bool
    extra: dict[str, Any] = field(default_factory=dict)
    token_ids: bool = False
    include_usage: bool = False
    echo_model: str = ""
    limit_given: bool = True


@dataclass(slots=True)
class Job:
    """A request that fits a model: prompt ids and resolved limits."""

    asked: Asked
    prompt_ids: list[int]
    sampling: Sampling
    stops: tuple[str, ...]


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class CompletionBody(msgspec.Struct):
    """`POST /v1/completions`; unknown fields are ignored, as OpenAI's own server does."""

    model: str
    prompt: str | list[int | str | list[int]]
    max_tokens: int | None = 16
    stream: bool = False
    stream_options: _StreamOptions | None = None
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


class GenerateBody(msgspec.Struct):
    """SGLang's native `POST /generate`, the part we look at."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: dict[str, Any] | None = None
    stream: bool = False
    model: str | None = None


_completion = msgspec.json.Decoder(CompletionBody)
_generate = msgspec.json.Decoder(GenerateBody)
_any = msgspec.json.Decoder(dict[str, Any])


def read_completion(body: bytes) -> Asked:
    """Raises ClientError with the field at fault."""
    asked = _decode(_completion, body)
    if bytes(asked.custom_logit_processor) not in (b"", b"null"):
        raise invalid("custom_logit_processor is never forwarded: it runs client code", "custom_logit_processor")
    if asked.n not in (None, 1) or asked.best_of not in (None, 1):
        raise invalid("only n=1 is served", "n")
    for name in ("echo", "suffix", "logprobs"):
        wanted = getattr(asked, name)
        if wanted is not None and wanted is not False and wanted != "":  # 0 log probabilities is a wish, too
            raise invalid(f"{name} is not served", name)
    sampling: dict[str, Any] = {
        "skip_special_tokens": asked.skip_special_tokens,
        "ignore_eos": asked.ignore_eos,
        "no_stop_trim": asked.no_stop_trim,
        "min_new_tokens": asked.min_tokens,
    }
    for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "stop",
                 "repetition_penalty", "logit_bias", "stop_token_ids", "stop_regex", "json_schema", "regex",
                 "ebnf", "structural_tag"):  # fmt: skip
        value = getattr(asked, name)
        if value is not None:
            sampling[name] = value
    if asked.seed is not None:
        sampling["sampling_seed"] = asked.seed
    schema = _schema(asked.response_format)
    if schema is not None:
        sampling["json_schema"] = schema
    # never left out in silence: an answer without the adapter or the form that was asked for is a wrong answer
    extra = {n: v for n in ("lora_path", "session_params", "priority") if (v := getattr(asked, n)) is not None}
    return Asked(
        extra=extra,
        model=asked.model,
        prompt=_one_prompt(asked.prompt),
        sampling=sampling,
        max_new=asked.max_tokens,
        stream=asked.stream,
        token_ids=asked.return_token_ids,
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        echo_model=asked.model,
    )


def _schema(response_format: dict[str, Any] | None) -> str | None:
    """OpenAI's `response_format` as SGLang's `json_schema`; None for plain text. Raises ClientError."""
    kind = (response_format or {}).get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type": "object"}'
    form = (response_format or {}).get("json_schema")
    if kind != "json_schema" or not isinstance(form, dict) or not isinstance(form.get("schema"), dict):
        raise invalid("response_format is text, json_object or json_schema with its schema", "response_format")
    return msgspec.json.encode(form["schema"]).decode()


def _one_prompt(prompt: str | list[int | str | list[int]]) -> str | list[int]:
    """Text, or ids; a list of one prompt is that prompt."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and not isinstance(prompt[0], int):
        return prompt[0]
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) != len(prompt):
        raise invalid("send one prompt in a request: text, or a list of token ids", "prompt")
    return ids


def read_generate(body: bytes) -> Asked:
    """Raises ClientError with the field at fault."""
    asked = _decode(_generate, body)
    whole = _any.decode(body)
    for name in NEVER_FORWARDED:
        if whole.get(name) is not None:
            raise invalid(f"{name} is never forwarded: it runs client code", name)
    if (asked.text is None) == (asked.input_ids is None):
        raise invalid("exactly one of text and input_ids is needed", "text")
    sampling = dict(asked.sampling_params or {})
    if "custom_params" in sampling:
        raise invalid("custom_params belong to custom_logit_processor, which is never forwarded", "custom_params")
    if sampling.get("n") not in (None, 1):
        raise invalid("only n=1 is served", "n")
    limit_given = "max_new_tokens" in sampling
    max_new = sampling.pop("max_new_tokens", DEFAULT_NEW_TOKENS)
    if max_new is not None and (not isinstance(max_new, int) or isinstance(max_new, bool)):
        raise invalid("max_new_tokens must be a whole number", "max_new_tokens")
    prompt = asked.text if asked.text is not None else asked.input_ids
    assert prompt is not None
    extra = {k: v for k, v in whole.items() if k not in _OURS}
    return Asked(
        model=asked.model or "",
        prompt=prompt,
        sampling=sampling,
        max_new=max_new,
        stream=asked.stream,
        extra=extra,
        limit_given=limit_given,
    )


def fit(asked: Asked, prompt_ids: list[int], *, context_length: int, vocab_size: int, deterministic: bool) -> Job:
    """Check a request against the model that will serve it. Raises ClientError."""
    if not prompt_ids:
        raise invalid("the prompt is empty", "prompt")
    for token in prompt_ids:
        if not 0 <= token < vocab_size:
            raise invalid(f"token id {token} is outside the vocabulary of {vocab_size}", "prompt")
    room = context_length - ANSWER_RESERVE - len(prompt_ids)
    if len(prompt_ids) >= context_length - CONTEXT_RESERVE:
        raise invalid(
            f"the prompt has {len(prompt_ids)} tokens, the context holds {context_length}",
            "prompt",
            code="context_length_exceeded",
        )
    max_new = room if asked.max_new is None else asked.max_new
    if not asked.limit_given:
        max_new = min(max_new, room)  # a default is no wish: it is cut to what fits
    if max_new < 1:
        raise invalid("max_tokens must be at least 1", "max_tokens")
    if max_new + len(prompt_ids) > context_length:
        raise invalid(
            f"{len(prompt_ids)} prompt tokens and {max_new} new ones are more than the context of {context_length}",
            "max_tokens",
            code="context_length_exceeded",
        )
    sampling = _sampling(asked, max_new, vocab_size, deterministic=deterministic)
    stop = asked.sampling.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS or not all(isinstance(s, str) for s in stops):
        raise invalid(f"stop takes up to {MAX_STOPS} strings", "stop")
    return Job(asked, prompt_ids, sampling, stops)


def _sampling(asked: Asked, max_new: int, vocab_size: int, *, deterministic: bool) -> Sampling:
    given = asked.sampling
    for name in _NUMBERS:
        value = given.get(name)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise invalid(f"{name} must be a number", name)
        if name in ("temperature", "top_p", "min_p") and value is not None and value < 0:
            raise invalid(f"{name} must not be negative", name)
    if deterministic and given.get("min_p"):
        raise invalid("min_p ends an engine in deterministic mode (SGLang #33695)", "min_p")
    min_new = given.get("min_new_tokens") or 0
    if not isinstance(min_new, int) or min_new < 0 or min_new > max_new:
        raise invalid(f"min_tokens must be between 0 and max_tokens ({max_new})", "min_tokens")
    stop_ids = given.get("stop_token_ids") or []
    if not isinstance(stop_ids, list) or not all(isinstance(t, int) and 0 <= t < vocab_size for t in stop_ids):
        raise invalid("stop_token_ids must be ids of the vocabulary", "stop_token_ids")
    extras = {n for n in _NOT_REPLAYABLE_TOP if asked.extra.get(n)}
    extras |= {n for n in _NOT_REPLAYABLE_SAMPLING if given.get(n)}
    return Sampling(
        max_new=max_new,
        min_new=min_new,
        temperature=_or(given.get("temperature"), 1.0),
        seed=given.get("sampling_seed"),
        frequency_penalty=_or(given.get("frequency_penalty"), 0.0),
        presence_penalty=_or(given.get("presence_penalty"), 0.0),
        repetition_penalty=_or(given.get("repetition_penalty"), 1.0),
        logit_bias=_bias(given.get("logit_bias"), vocab_size),
        stop_token_ids=frozenset(stop_ids),
        ignore_eos=bool(given.get("ignore_eos")),
        extras=frozenset(extras),
    )


def _or(value: Any, default: float) -> float:
    return default if value is None else float(value)


def _bias(given: Any, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if not given:
        return ()
    try:
        bias = tuple((int(k), float(v)) for k, v in given.items())
    except (AttributeError, TypeError, ValueError):
        raise invalid("logit_bias maps token ids to numbers", "logit_bias") from None
    if any(not 0 <= token < vocab_size for token, _ in bias):
        raise invalid("logit_bias names a token outside the vocabulary", "logit_bias")
    return bias


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        message = str(error)
        param = message.rpartition("`$.")[2].rstrip("`") if "`$." in message else None
        if "missing required field" in message:
            param = message.partition("`")[2].partition("`")[0]
        raise invalid(message, param) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not JSON: {error}", code="malformed_json") from None


__all__ = ["Asked", "ClientError", "Job", "fit", "read_completion", "read_generate"]
