"""The body of SGLang's native `POST /generate`: single requests, batches and n > 1, as streams to be run.

Nothing passes that runs client code in an engine (`custom_logit_processor`), nor fields by which one client could
reach another's request or tie its own to one worker's memory (`rid`, PD bootstrap). The rest travels unchanged.
"""

from __future__ import annotations

from typing import Any

import msgspec

from infctl_daemon.gateway.asked import Asked, Bundle, check_count, check_total, multiply
from infctl_daemon.gateway.body_json import decode
from infctl_daemon.gateway.errors import invalid

NEVER_FORWARDED = ("custom_logit_processor",)
_OURS = frozenset({"rid", "stream", "input_ids", "text", "sampling_params", "bootstrap_host", "bootstrap_port",
                   "bootstrap_room", "routed_dp_rank", "disagg_prefill_dp_rank", "model", "background"})  # fmt: skip
# in a batch, a list of these has one entry for each prompt
_PER_PROMPT = ("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob", "lora_path",
               "image_data", "video_data", "audio_data", "session_params", "return_hidden_states", "extra_key",
               "priority")  # fmt: skip
DEFAULT_NEW_TOKENS = 128  # SGLang's own default on /generate


class GenerateBody(msgspec.Struct):
    """The part we look at."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    stream: bool = False
    model: str | None = None


_decoder = msgspec.json.Decoder(GenerateBody)
_any = msgspec.json.Decoder(dict[str, Any])


def read_generate(body: bytes) -> Bundle:
    """The model's name may be empty. Raises ClientError with the field at fault."""
    asked: GenerateBody = decode(_decoder, body)
    whole = _any.decode(body)
    for name in NEVER_FORWARDED:
        if whole.get(name) is not None:
            raise invalid(f"{name} is never forwarded: it runs client code", name)
    if (asked.text is None) == (asked.input_ids is None):
        raise invalid("exactly one of text and input_ids is needed", "text")
    prompts, batch = _prompts(asked)
    given = asked.sampling_params
    if isinstance(given, list) and (not batch or len(given) != len(prompts)):
        raise invalid(f"sampling_params has {len(given)} entries for {len(prompts)} prompts", "sampling_params")
    extra = {k: v for k, v in whole.items() if k not in _OURS}
    singles = [
        _one(
            asked.model or "",
            prompt,
            dict((given[i] if isinstance(given, list) else given) or {}),
            _of(extra, i, len(prompts)) if batch else extra,
        )
        for i, prompt in enumerate(prompts)
    ]
    counts = {n for _, n in singles}
    if len(counts) != 1:
        raise invalid("n must be the same for every prompt of a batch", "n")
    (n,) = counts
    check_total(len(prompts), n)
    answers = [one for single, _ in singles for one in multiply(single, n)]
    return Bundle(answers, stream=asked.stream, per_prompt=n, keep=n, listed=batch or n > 1)


def _prompts(asked: GenerateBody) -> tuple[list[str | list[int]], bool]:
    """The prompts, and whether they came as a batch (whose answer is a list even for one of them)."""
    if isinstance(asked.text, str):
        return [asked.text], False
    if asked.text is not None:
        if not asked.text:
            raise invalid("text is an empty list", "text")
        return list(asked.text), True
    given = asked.input_ids or []
    ids = [token for token in given if isinstance(token, int)]
    if len(ids) == len(given):
        return [ids], False
    lists = [one for one in given if isinstance(one, list)]
    if len(lists) != len(given):
        raise invalid("input_ids is a list of ids, or a list of such lists", "input_ids")
    return list(lists), True


def _of(extra: dict[str, Any], number: int, total: int) -> dict[str, Any]:
    """The fields of one prompt of a batch. Raises ClientError where a list has another length."""
    mine = dict(extra)
    for name in _PER_PROMPT:
        value = extra.get(name)
        if not isinstance(value, list) or (name == "token_ids_logprob" and not any(isinstance(v, list) for v in value)):
            continue
        if len(value) != total:
            raise invalid(f"{name} has {len(value)} entries for {total} prompts", name)
        mine[name] = value[number]
    return mine


def _one(model: str, prompt: str | list[int], sampling: dict[str, Any], extra: dict[str, Any]) -> tuple[Asked, int]:
    if "custom_params" in sampling:
        raise invalid("custom_params belong to custom_logit_processor, which is never forwarded", "custom_params")
    n = check_count(sampling.pop("n", None))
    limit_given = "max_new_tokens" in sampling
    max_new = sampling.pop("max_new_tokens", DEFAULT_NEW_TOKENS)
    if max_new is not None and (not isinstance(max_new, int) or isinstance(max_new, bool)):
        raise invalid("max_new_tokens must be a whole number", "max_new_tokens")
    asked = Asked(model=model, prompt=prompt, sampling=sampling, max_new=max_new, extra=extra, limit_given=limit_given)
    return asked, n
