"""Takes in one /generate request: what SGLang refuses, and in which of its three ways.

What stays true: a body that is not well-formed is HTTP 400 even for a stream (see `schema`); one that is well-formed
but cannot be served is `Refused`, which a stream gets as HTTP 200 with an error frame; one that only the scheduler
refuses (`too_long`) becomes an abort frame.
"""

from __future__ import annotations

import json
import math
import random
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from infctl_daemon.engine.sim.logprobs import Wanted
from infctl_daemon.engine.sim.lora import Adapters, LoraError

_POISON = -2


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
    adapters: Adapters
    memory: int

    @property
    def room(self) -> int:
        """Tokens that one request may have: the context, or the whole memory where that is less."""
        return min(self.context, self.memory)

    @property
    def longest_prompt(self) -> int:
        """A prompt of this many tokens is already refused by the scheduler."""
        return self.room - 6


@dataclass(frozen=True)
class Generate:
    """One request as the scheduler wants it."""

    rid: str
    stream: bool
    ids: list[int]
    params: dict[str, Any]
    too_long: str | None = None
    logs: Wanted | None = None
    tail: bytes = b""


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
        "taste": (0.0, 0.0, 1.0, {}),
        "logs": None,
        "space": 0,
        "adapter": None,
    }
    return Generate(rid=rid, stream=False, ids=[0], params=params)


def admit(body: dict[str, Any], limits: Limits) -> Generate:
    """One request of a body that has one prompt and one set of parameters; raises `Refused`."""
    ids, text, params = body.get("input_ids"), body.get("text"), body.get("sampling_params") or {}
    prompt: list[int] = ids if ids is not None else limits.encode(text or "")
    name: str = body["rid"] if isinstance(body.get("rid"), str) else uuid.uuid4().hex
    tail = b""
    if body["return_prompt_token_ids"]:
        tail += b',"prompt_token_ids":' + json.dumps(prompt, separators=(",", ":")).encode()
    if body.get("index") is not None:
        tail += b',"index":%d' % body["index"]
    made = _admit(name, body["stream"], prompt, params, limits, _logs(body, limits))
    adapter = body.get("lora_path")
    if adapter:
        try:
            limits.adapters.resolve(adapter)
        except LoraError as error:
            raise Refused(str(error)) from error
    made.params["adapter"] = adapter or None
    space = [body.get("extra_key"), body.get("cache_salt")]
    made.params["space"] = zlib.crc32(repr(space).encode()) if any(space) else 0
    return replace(made, tail=tail)


def _logs(body: dict[str, Any], limits: Limits) -> Wanted | None:
    """What is asked for of log probabilities; the rest means nothing without return_logprob."""
    ids = body.get("token_ids_logprob") or []
    if not all(isinstance(t, int) and not isinstance(t, bool) for t in ids):
        raise Refused("token_ids_logprob must be a flat list of integers.")
    for token in ids:
        if not 0 <= token < limits.vocab:
            raise Refused(
                f"token_ids_logprob contains out-of-vocabulary token id {token}; valid range is [0, {limits.vocab})."
            )
    if not body.get("return_logprob"):
        return None
    start, top = body.get("logprob_start_len"), body.get("top_logprobs_num") or 0
    if isinstance(start, list) or isinstance(top, list):
        start, top = _POISON, 0  # a list for one prompt reaches the scheduler and ends it
    return Wanted(-1 if start is None else start, top, tuple(ids), body["return_text_in_logprobs"])


def _value(params: dict[str, Any], name: str, default: Any) -> Any:
    value = params.get(name)
    return default if value is None else value


def _admit(
    rid: str, stream: bool, ids: list[int], params: dict[str, Any], limits: Limits, logs: Wanted | None
) -> Generate:
    longest = limits.room - 2 - len(ids)
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
    min_p = _value(params, "min_p", 0.0)
    if not 0 <= min_p <= 1:
        raise Refused(f"min_p must be in [0, 1], got {min_p}.")
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
    elif logs is not None and logs.start > len(ids):
        too_long = (
            f"req.logprob_start_len={logs.start} is higher than the number of input tokens "
            f"len(req.origin_input_ids)={len(ids)}. Please use a smaller logprob_start_len."
        )
    stop = _value(params, "stop", [])
    every = _value(params, "stream_interval", limits.stream_interval) if stream else 50
    return Generate(
        rid=rid,
        stream=stream,
        ids=ids,
        too_long=too_long,
        logs=logs,
        params={
            "max_new": longest if max_new is None else min(max_new, longest),
            "min_new": min_new,
            "stop_ids": list(_value(params, "stop_token_ids", [])),
            "stops": [stop] if isinstance(stop, str) else list(stop),
            "ignore_eos": _value(params, "ignore_eos", False),
            "no_stop_trim": _value(params, "no_stop_trim", False),
            "skip_special": _value(params, "skip_special_tokens", True),
            "every": max(1, every),
            "salt": _salt(temperature, top_k, params.get("sampling_seed"), limits.deterministic),
            "taste": _taste(params, limits),
            "logs": None if logs is None else (logs.start, logs.top, logs.ids),
        },
    )


def _taste(params: dict[str, Any], limits: Limits) -> tuple[float, float, float, dict[int, float]]:
    """Penalties and biases; raises `Refused`."""
    for name in ("frequency_penalty", "presence_penalty"):
        value = _value(params, name, 0.0)
        if not -2 <= value <= 2:
            raise Refused(f"{name} must be in [-2, 2], got {value}.")
    repetition = _value(params, "repetition_penalty", 1.0)
    if not 0 < repetition <= 2:
        raise Refused(f"repetition_penalty must be in (0, 2] (1.0 = no penalty), got {repetition}.")
    bias: dict[int, float] = {}
    for key, value in _value(params, "logit_bias", {}).items():
        try:
            token = int(key)
        except ValueError as error:
            raise Refused(str(error)) from error
        if not 0 <= token < limits.vocab:
            raise Refused(f"logit_bias must has keys in [0, {limits.vocab - 1}], got {token}.")
        bias[token] = float(value)
    frequency, presence = _value(params, "frequency_penalty", 0.0), _value(params, "presence_penalty", 0.0)
    return frequency, presence, repetition, bias


def _salt(temperature: float, top_k: int, seed: int | None, deterministic: bool) -> int:
    """0 for greedy; else the seed counts in deterministic mode only, as in SGLang."""
    if temperature == 0 or top_k == 1:
        return 0
    if deterministic:
        return (42 if seed is None else seed) * 2 + 1
    return random.getrandbits(62) | 1
