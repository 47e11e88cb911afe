"""The replay plan: what another worker must be asked so that the stream goes on as if nothing had happened.

Facts about the engine: SGLang counts limits and penalties from the start of *its* request, so each is adjusted by
the k tokens that are already committed. What cannot be carried over is found at admission (`replayability`),
never at the moment of the fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from infctl.domain.model import Contract

# SGLang 0.5.23 admits inputs shorter than the context less 6, and ends an answer two places before the context does
# (both held by the conformance suite)
CONTEXT_RESERVE = 6
ANSWER_RESERVE = 2


@dataclass(frozen=True, slots=True)
class Sampling:
    """The part of a request that a replay must adjust; the rest travels unchanged.

    `max_new` is already resolved (never None). `extras` names the sampling features in use, as the engine calls them.
    """

    max_new: int
    min_new: int = 0
    temperature: float = 1.0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    extras: frozenset[str] = frozenset()


# why a request cannot be continued on another worker; the words go into the recovery header
_BLOCKERS = {
    "json_schema": "grammar",
    "regex": "grammar",
    "ebnf": "grammar",
    "structural_tag": "grammar",
    "stop_regex": "stop-regex",
    "beam_width": "beam",
    "session_params": "session",
    "input_embeds": "embeds",
    "image_data": "multimodal",
    "video_data": "multimodal",
    "audio_data": "multimodal",
    "return_hidden_states": "hidden-states",
    "lora_path": "adapter",
}


def replayability(sampling: Sampling, *, deterministic: bool) -> tuple[Contract, str]:
    """The promise for a request, and the reason where it is less than `exact`.

    `exact` needs an endpoint that says it is deterministic; a penalty that cannot be restored makes it `none`.
    """
    for name in sorted(sampling.extras):
        if name in _BLOCKERS:
            return Contract.NONE, _BLOCKERS[name]
    if sampling.repetition_penalty != 1.0:
        return Contract.NONE, "repetition-penalty"
    if sampling.presence_penalty != 0.0:
        # a bias would charge an id that comes back a second time
        return Contract.NONE, "presence-penalty"
    if not deterministic:
        return Contract.CONTINUABLE, "endpoint-not-deterministic"
    if sampling.temperature > 0 and sampling.seed is None:
        return Contract.CONTINUABLE, "sampled-without-seed"
    return Contract.EXACT, ""


@dataclass(frozen=True, slots=True)
class Continue:
    """Ask a worker for `input_ids` = prompt + committed with these adjusted limits."""

    max_new: int
    min_new: int
    logit_bias: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class FinishHere:
    """Nothing is left to generate: end the stream as `reason` ("stop" or "length"), without a worker."""

    reason: str
    matched: int | None = None


def plan_replay(
    sampling: Sampling,
    *,
    prompt_tokens: int,
    committed: tuple[int, ...],
    eos_ids: frozenset[int],
    context_length: int,
) -> Continue | FinishHere:
    """What the next attempt must ask for after `committed` tokens (k of them) reached the client's stream."""
    k = len(committed)
    if k and (last := committed[-1]) in _stops(sampling, eos_ids) and k >= sampling.min_new:
        return FinishHere("stop", last)
    left = sampling.max_new - k
    if not k and sampling.max_new == 0:
        return Continue(0, 0, sampling.logit_bias)  # only the prompt is of interest
    if left <= 0:
        return FinishHere("length")
    if k and 0 < context_length <= prompt_tokens + k + CONTEXT_RESERVE:
        return FinishHere("length")
    bias = dict(sampling.logit_bias)
    if sampling.frequency_penalty:
        for token in committed:
            bias[token] = bias.get(token, 0.0) - sampling.frequency_penalty
    return Continue(left, max(0, sampling.min_new - k), tuple(bias.items()))


def _stops(sampling: Sampling, eos_ids: frozenset[int]) -> frozenset[int]:
    """`ignore_eos` switches off every stop by token id in the engine, those of the request too."""
    return frozenset() if sampling.ignore_eos else sampling.stop_token_ids | eos_ids
