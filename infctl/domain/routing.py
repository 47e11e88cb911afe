"""Which endpoint gets a request: the least loaded one that can serve it, by rules that need no clock.

An endpoint counts only when it carries the highest generation seen of its group, no fault names its launch, and it
is not quarantined by this gateway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from infctl.domain.model import Endpoint, EndpointState


class NoRoute(StrEnum):
    """Why nothing was picked; the first that applies, from the most to the least definite."""

    UNKNOWN_MODEL = "model_not_found"
    NONE_READY = "unavailable"
    ALL_FULL = "overloaded"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the next worker must be. The three digests are empty at admission and set for a replay."""

    model: str
    revision: str = ""
    tokenizer_digest: str = ""
    context_length: int = 0
    exclude_launches: frozenset[str] = frozenset()
    exclude_groups: frozenset[str] = frozenset()


def compatible(endpoint: Endpoint, wanted: Wanted) -> bool:
    """Can this endpoint continue the request with the same weights, tokenizer and room?"""
    return (
        endpoint.model == wanted.model
        and (not wanted.revision or endpoint.revision == wanted.revision)
        and (not wanted.tokenizer_digest or endpoint.tokenizer_digest == wanted.tokenizer_digest)
        and endpoint.context_length >= wanted.context_length
    )


def pick(
    endpoints: Iterable[Endpoint],
    wanted: Wanted,
    load: Mapping[str, int],
    *,
    ignore_caps: bool = False,
    last_resort: bool = False,
) -> Endpoint | NoRoute:
    """The ready, compatible endpoint with the smallest share of its capacity in use (then by name).

    With `last_resort` a suspect one is taken where no ready one is able: a new request has nothing to lose there. A
    stream on its way from a fault waits for a ready one instead.
    `load` counts this gateway's running requests by launch. A replay away from a fault passes `ignore_caps`:
    a queue on a survivor beats an error.
    """
    known = [e for e in endpoints if e.model == wanted.model]
    if not known:
        return NoRoute.UNKNOWN_MODEL
    able = [
        e
        for e in known
        if e.state in (EndpointState.READY, EndpointState.SUSPECT)
        and compatible(e, wanted)
        and e.launch not in wanted.exclude_launches
        and e.group not in wanted.exclude_groups
    ]
    able = [e for e in able if e.state is EndpointState.READY] or (able if last_resort else [])
    if not able:
        return NoRoute.NONE_READY
    room = [e for e in able if ignore_caps or load.get(e.launch, 0) < e.capacity]
    if not room:
        return NoRoute.ALL_FULL
    return min(room, key=lambda e: (load.get(e.launch, 0) / max(1, e.capacity), load.get(e.launch, 0), e.group))
