"""Does a request fit the model that will serve it: what comes out of here may be sent to an engine.

Nothing that can kill an engine passes (ids outside the vocabulary, `min_p` in deterministic mode, more alternatives
than tokens), and what a replay must adjust is told apart from what travels unchanged.
"""

from __future__ import annotations

from typing import Any

from infctl.domain.replay import ANSWER_RESERVE, CONTEXT_RESERVE, Sampling
from infctl_daemon.gateway.asked import Asked, Job
from infctl_daemon.gateway.errors import invalid
from infctl_daemon.gateway.logprobs import Logprobs

_NOT_REPLAYABLE_TOP = ("input_embeds", "image_data", "video_data", "audio_data", "session_params",
                       "return_hidden_states", "lora_path")  # fmt: skip
_NOT_REPLAYABLE_SAMPLING = ("json_schema", "regex", "ebnf", "structural_tag", "stop_regex", "beam_width")
_NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
MAX_STOPS = 64
MAX_ALTERNATIVES = 64  # log probabilities beside the chosen one; each costs a tuple a token on the wire


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
    if max_new < (0 if asked.may_be_empty else 1):
        raise invalid("max_tokens must be at least 1", "max_tokens")
    if max_new + len(prompt_ids) > context_length:
        raise invalid(
            f"{len(prompt_ids)} prompt tokens and {max_new} new ones are more than the context of {context_length}",
            "max_tokens",
            code="context_length_exceeded",
        )
    sampling = _sampling(asked, max_new, vocab_size, deterministic=deterministic)
    _check_logprobs(asked.extra, vocab_size, len(prompt_ids))
    stop = asked.sampling.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) for s in stops):
        raise invalid(f"stop takes up to {MAX_STOPS} strings", "stop")
    return Job(asked, prompt_ids, sampling, tuple(stops), Logprobs() if asked.extra.get("return_logprob") else None)


def _check_logprobs(extra: dict[str, Any], vocab_size: int, prompt: int) -> None:
    """An engine ends on more alternatives than its vocabulary has, on a list of counts, on a start below -1."""
    if type(extra.get("return_logprob", False)) is not bool:
        raise invalid("return_logprob is true or false", "return_logprob")
    most = min(MAX_ALTERNATIVES, vocab_size)
    top = extra.get("top_logprobs_num")
    if top is not None and (type(top) is not int or not 0 <= top <= most):
        raise invalid(f"top_logprobs_num must be between 0 and {most}", "top_logprobs_num")
    start = extra.get("logprob_start_len")
    if start is not None and (type(start) is not int or not -1 <= start <= prompt):
        raise invalid(f"logprob_start_len must be between -1 and the prompt's {prompt} tokens", "logprob_start_len")
    picked = extra.get("token_ids_logprob")
    if picked is not None and (
        not isinstance(picked, list) or not all(type(t) is int and 0 <= t < vocab_size for t in picked)
    ):
        raise invalid("token_ids_logprob must be ids of the vocabulary", "token_ids_logprob")


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
