"""What a client asked for, before and after it is known to fit a model. One HTTP request holds one or more of them.

A request for several answers (n > 1, several prompts) becomes as many streams, each of which survives on its own:
an engine that is asked for n answers under one id can neither be aborted nor be continued for one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from infctl.domain.replay import Sampling
from infctl_daemon.gateway.errors import invalid
from infctl_daemon.gateway.logprobs import Logprobs

MAX_N = 128  # of OpenAI's API
MAX_STREAMS = 256  # two hex digits tell the streams of one request apart
DEFAULT_SEED = 42  # SGLang's own, in deterministic mode


@dataclass(slots=True)
class Asked:
    """One answer to be generated. `prompt` is text or ids; `may_be_empty`: no new token is a legal wish, too."""

    model: str
    prompt: str | list[int]
    sampling: dict[str, Any]
    max_new: int | None
    extra: dict[str, Any] = field(default_factory=dict)
    limit_given: bool = True
    may_be_empty: bool = False


@dataclass(slots=True)
class Job:
    """One answer that fits a model: prompt ids and resolved limits. `text` is the prompt's text where it is shown."""

    asked: Asked
    prompt_ids: list[int]
    sampling: Sampling
    stops: tuple[str, ...]
    logprobs: Logprobs | None = None
    text: str = ""


@dataclass(slots=True)
class Bundle:
    """One client's request: `answers` = prompts x `per_prompt`, of which the best `keep` for each prompt are given."""

    answers: list[Asked]
    stream: bool
    per_prompt: int = 1
    keep: int = 1
    listed: bool = False
    token_ids: bool = False
    include_usage: bool = False
    echo: bool = False
    top_logprobs: int | None = None

    @property
    def model(self) -> str:
        return self.answers[0].model


def check_count(n: Any, name: str = "n") -> int:
    """How many answers were asked for; None means one. Raises ClientError."""
    if n is None:
        return 1
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_N:
        raise invalid(f"{name} must be between 1 and {MAX_N}", name)
    return n


def check_total(prompts: int, each: int) -> None:
    """Raises ClientError when one request would need too many streams."""
    if prompts * each > MAX_STREAMS:
        raise invalid(f"{prompts} prompts with {each} answers each are more than {MAX_STREAMS} in a request", "n")


def multiply(asked: Asked, n: int) -> list[Asked]:
    """`n` answers to one prompt. Each takes a seed of its own, or a deterministic engine would say n times the same."""
    if n == 1:
        return [asked]
    made = []
    for number in range(n):
        sampling = dict(asked.sampling)
        if number:
            seed = sampling.get("sampling_seed")
            sampling["sampling_seed"] = (seed if type(seed) is int else DEFAULT_SEED) + number
        made.append(replace(asked, sampling=sampling))
    return made
