"""Splits a /generate body into requests: lists of prompts, and n samples of each.

What stays true: request ids, order and refusals are SGLang's: a given id of a list gets `_0`, `_1` … behind it, n > 1
throws the given id away (so the call cannot be aborted by it), answers of a prompt stand beside each other.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from infctl_daemon.engine.sim.intake import Generate, Limits, Refused, admit

_LISTS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "lora_path")


class Crashed(Exception):
    """A body that SGLang stumbles over: HTTP 500, or a body cut short."""


@dataclass(frozen=True)
class Plan:
    """What a call asks for. `first` must run before `requests` (they share its prompts in the cache)."""

    requests: list[Generate]
    single: bool
    first: list[Generate]


def plan(body: dict[str, Any], limits: Limits) -> Plan:
    """Raises `Refused` or `Crashed`."""
    text, ids, given = body.get("text"), body.get("input_ids"), body.get("sampling_params")
    if text is None and ids is None:
        raise Refused("Either text, input_ids or input_embeds should be provided.")
    if ids is not None and not ids:
        raise Refused("input_ids cannot be empty.")
    prompts: list[dict[str, Any]]
    if ids is not None:
        single = not isinstance(ids[0], list)
        prompts = [{"input_ids": i} for i in ([ids] if single else ids)]
    else:
        single = isinstance(text, str)
        prompts = [{"text": t} for t in ([text] if isinstance(text, str) else text or [])]
    samples = _samples(given)
    if single and samples == 1:
        if isinstance(given, list) or isinstance(body.get("rid"), list):
            raise Crashed
        return Plan([admit(body, limits)], True, [])
    if isinstance(given, list) and len(given) != len(prompts):
        raise Crashed
    rids = _rids(body.get("rid"), len(prompts)) if samples == 1 else None
    requests: list[Generate] = []
    first: list[Generate] = []
    for number, prompt in enumerate(prompts):
        params = given[number] if isinstance(given, list) else given or {}
        one = {**body, "text": None, "input_ids": None, **prompt, "sampling_params": params, "rid": None}
        for name in _LISTS:
            if isinstance(body.get(name), list):
                one[name] = _of(body[name], number)
        if samples > 1:
            prime = {**one, "sampling_params": {**params, "max_new_tokens": 0, "min_new_tokens": 0}}
            first.append(admit({**prime, "stream": False, "return_logprob": False}, limits))
        for _ in range(samples):
            own = {"rid": rids[number] if rids else None, "index": len(requests) if body["stream"] else None}
            requests.append(admit({**one, **own}, limits))
    return Plan(requests, False, first)


def _samples(given: Any) -> int:
    """How many answers each prompt gets; 0 and less mean one."""
    several = given if isinstance(given, list) else [given or {}]
    counts = {params.get("n") or 1 for params in several} or {1}
    if len(counts) > 1:
        raise Refused("The parallel_sample_num should be the same for all samples in sample params.")
    return max(1, int(counts.pop()))


def _rids(rid: Any, count: int) -> list[str]:
    if rid is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(rid, str):
        return [f"{rid}_{i}" for i in range(count)]
    if len(rid) != count:
        raise Refused("The specified rids length mismatch with the batch_size for batch processing.")
    return list(rid)


def _of(values: list[Any], number: int) -> Any:
    if number >= len(values):
        raise Crashed
    return values[number]
