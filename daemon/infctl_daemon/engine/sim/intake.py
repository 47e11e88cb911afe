"""Reads the body of a /generate call: what SGLang refuses, and in which of its three ways.

What stays true: a body that is not well-formed is HTTP 400 even for a stream (`Malformed`, `Contract`); one that is
well-formed but cannot be served is `Refused`, which a stream gets as HTTP 200 with an error frame.
"""

from __future__ import annotations

import json
import math
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

_FIELD_NAMES = (
    "max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty "
    "repetition_penalty min_new_tokens n json_schema regex ebnf structural_tag ignore_eos skip_special_tokens "
    "spaces_between_special_tokens no_stop_trim stream_interval logit_bias sampling_seed custom_params beam_width "
    "watermark choice"
)
_FIELDS = _FIELD_NAMES.split()


class Malformed(Exception):
    """Body that does not fit the schema; the text is one problem a line."""


class Contract(Exception):
    """sampling_params that do not fit the contract."""


class Refused(Exception):
    """A well-formed request that the engine will not run (SGLang's ValueError)."""


@dataclass(frozen=True)
class Limits:
    """`context` tokens in all; `vocab` entries; how a text becomes ids."""

    context: int
    vocab: int
    encode: Callable[[str], list[int]]
    deterministic: bool
    stream_interval: int

    @property
    def longest_prompt(self) -> int:
        """A prompt of this many tokens is already refused by the scheduler."""
        return self.context - 6


@dataclass(frozen=True)
class Generate:
    """One request as the scheduler wants it."""

    rid: str
    stream: bool
    ids: list[int]
    params: dict[str, Any]
    too_long: str | None = None


def one_token(rid: str) -> Generate:
    """The request of a warm-up or a health check."""
    params = {
        "max_new": 1,
        "min_new": 0,
        "stop_ids": [],
        "stops": [],
        "ignore_eos": True,
        "no_stop_trim": False,
        "skip_special": True,
        "every": 1,
        "salt": 0,
    }
    return Generate(rid=rid, stream=False, ids=[0], params=params)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def parse_json(raw: bytes) -> Any:
    """The body as JSON; NaN and Infinity are not JSON. Raises `Malformed`."""
    try:
        return json.loads(raw, parse_constant=_reject_constant)
    except ValueError as error:
        at = getattr(error, "pos", 0)
        raise Malformed(f"'type': 'json_invalid', 'loc': ('body', {at}), 'msg': 'JSON decode error'") from error


def _wrong(field: str, kind: str, want: str, got: object) -> NoReturn:
    raise Malformed(f"'type': '{kind}', 'loc': ('body', '{field}'), 'msg': 'Input should be {want}', 'input': {got!r}")


def read_generate(raw: bytes, limits: Limits) -> Generate:
    """Raises `Malformed`, `Contract` or `Refused`. Unknown keys of the body are ignored, as SGLang does."""
    body = parse_json(raw)
    if not isinstance(body, dict):
        raise Malformed("'type': 'dataclass_type', 'loc': ('body',), 'msg': 'Input should be a dictionary'")
    text, ids, rid = body.get("text"), body.get("input_ids"), body.get("rid")
    if text is not None and not isinstance(text, str | list):
        _wrong("text", "string_type", "a valid string", text)
    if ids is not None and not isinstance(ids, list):
        raise Malformed(
            f"'type': 'value_error', 'loc': ('body', 'input_ids'), "
            f"'msg': 'Value error, must be list or null; got {type(ids).__name__}', 'input': {ids!r}"
        )
    if rid is not None and not isinstance(rid, str | list):
        _wrong("rid", "string_type", "a valid string", rid)
    for token in ids or ():
        if not isinstance(token, int) or isinstance(token, bool):
            _wrong("input_ids", "int_type", "a valid integer", token)
    stream = _flag(body.get("stream", False))
    given = body.get("sampling_params")
    if given is not None and not isinstance(given, dict):
        _wrong("sampling_params", "dict_type", "a valid dictionary", given)
    params = given or {}
    _check_contract(params)
    if isinstance(text, list) or isinstance(rid, list) or params.get("n", 1) not in (1, None):
        raise Refused("Batches and n > 1 are not simulated.")
    if text is None and ids is None:
        raise Refused("Either text, input_ids or input_embeds should be provided.")
    if ids is not None and not ids:
        raise Refused("input_ids cannot be empty.")
    prompt: list[int] = ids if ids is not None else limits.encode(text or "")
    name = rid if isinstance(rid, str) else uuid.uuid4().hex
    return _admit(name, stream, prompt, params, limits)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("yes", "true", "on", "1", "y", "t"):
        return True
    if isinstance(value, str) and value.lower() in ("no", "false", "off", "0", "n", "f"):
        return False
    if value in (0, 1):
        return bool(value)
    _wrong("stream", "bool_parsing", "a valid boolean", value)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, str):
        return f'string "{value}"'
    return "sequence" if isinstance(value, list) else "map"


def _check_contract(params: dict[str, Any]) -> None:
    for name, value in params.items():
        if name not in _FIELDS:
            known = ", ".join(f"`{f}`" for f in _FIELDS)
            raise Contract(f"unknown field `{name}`, expected one of {known}")
        if value is None:
            continue
        whole = isinstance(value, int) and not isinstance(value, bool)
        if name in ("max_new_tokens", "min_new_tokens", "n", "top_k", "sampling_seed") and not whole:
            raise Contract(f"invalid type: {_kind(value)}, expected i64")
        if name in ("temperature", "top_p", "min_p") and not (whole or isinstance(value, float)):
            raise Contract(f"invalid type: {_kind(value)}, expected f64")
        if name == "stop" and not isinstance(value, str | list):
            raise Contract(f"invalid type: {_kind(value)}, expected a value or an array of values for StringOrList")
        if name == "stop_token_ids" and not isinstance(value, list):
            raise Contract(f"invalid type: {_kind(value)}, expected a sequence")
        if name in ("ignore_eos", "no_stop_trim", "skip_special_tokens") and not isinstance(value, bool):
            raise Contract(f"invalid type: {_kind(value)}, expected a boolean")


def _value(params: dict[str, Any], name: str, default: Any) -> Any:
    value = params.get(name)
    return default if value is None else value


def _admit(rid: str, stream: bool, ids: list[int], params: dict[str, Any], limits: Limits) -> Generate:
    longest = limits.context - 2 - len(ids)
    max_new = params.get("max_new_tokens", 128)
    min_new = _value(params, "min_new_tokens", 0)
    temperature = _value(params, "temperature", 1.0)
    top_p = _value(params, "top_p", 1.0)
    top_k = _value(params, "top_k", -1)
    if not (math.isfinite(temperature) and temperature >= 0):
        raise Refused(f"temperature must be a non-negative finite number, got {temperature}.")
    if not 0 < top_p <= 1:
        raise Refused(f"top_p must be in (0, 1], got {top_p}.")
    if top_k < 1 and top_k != -1:
        raise Refused(f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    if max_new is not None and max_new < 0:
        raise Refused(f"max_new_tokens must be at least 0, got {max_new}.")
    if min_new < 0 or (max_new is not None and min_new > max_new):
        raise Refused(f"min_new_tokens must be in [0, max_new_tokens({max_new})], got {min_new}.")
    if len(ids) >= limits.context:
        raise Refused(
            f"The input ({len(ids)} tokens) is longer than the model's context length ({limits.context} tokens)."
        )
    if max_new is not None and len(ids) + max_new > limits.context:
        raise Refused(
            f"Requested token count exceeds the model's maximum context length of {limits.context} tokens. "
            f"You requested a total of {len(ids) + max_new} tokens: {len(ids)} tokens from the input messages and "
            f"{max_new} tokens for the completion. Please reduce the number of tokens in the input messages or the "
            "completion to fit within the limit."
        )
    too_long = None
    if len(ids) >= limits.longest_prompt:
        too_long = (
            f"Input length ({len(ids)} tokens) exceeds the maximum allowed length ({limits.longest_prompt} tokens). "
            "Use a shorter input or enable --allow-auto-truncate."
        )
    stop = _value(params, "stop", [])
    every = _value(params, "stream_interval", limits.stream_interval) if stream else 50
    return Generate(
        rid=rid,
        stream=stream,
        ids=ids,
        too_long=too_long,
        params={
            "max_new": longest if max_new is None else min(max_new, longest),
            "min_new": min_new,
            "stop_ids": list(_value(params, "stop_token_ids", [])),
            "stops": [stop] if isinstance(stop, str) else list(stop),
            "ignore_eos": _value(params, "ignore_eos", False),
            "no_stop_trim": _value(params, "no_stop_trim", False),
            "skip_special": _value(params, "skip_special_tokens", True),
            "every": max(1, every),
            "salt": _salt(temperature, params.get("sampling_seed"), limits.deterministic),
        },
    )


def _salt(temperature: float, seed: int | None, deterministic: bool) -> int:
    """0 for greedy; else the seed counts in deterministic mode only, as in SGLang."""
    if temperature == 0:
        return 0
    if deterministic:
        return (42 if seed is None else seed) * 2 + 1
    return random.getrandbits(62) | 1
