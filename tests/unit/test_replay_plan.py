"""What another worker is asked so that the stream goes on as if nothing had happened."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infctl.domain.model import Contract
from infctl.domain.replay import CONTEXT_RESERVE, Continue, FinishHere, Sampling, plan_replay, replayability

EOS = frozenset({2})
GREEDY = Sampling(max_new=100, temperature=0.0)


def plan(sampling: Sampling, *committed: int, prompt: int = 10, context: int = 1000) -> Continue | FinishHere:
    return plan_replay(sampling, prompt_tokens=prompt, committed=committed, eos_ids=EOS, context_length=context)


def test_limits_are_counted_from_the_start_of_the_stream_not_of_the_attempt() -> None:
    assert plan(replace(GREEDY, min_new=10), 5, 6, 7) == Continue(97, 7, ())


def test_before_the_first_token_nothing_is_adjusted() -> None:
    sampling = replace(GREEDY, min_new=10, frequency_penalty=0.5, logit_bias=((9, 1.5),))
    assert plan(sampling) == Continue(100, 10, ((9, 1.5),))


@pytest.mark.parametrize(("k", "left"), [(1, 0), (4, 0), (2, 0)])
def test_min_new_never_falls_below_zero(k: int, left: int) -> None:
    found = plan(replace(GREEDY, min_new=1), *range(5, 5 + k))
    assert isinstance(found, Continue) and found.min_new == left


@pytest.mark.parametrize(
    ("sampling", "committed", "expected"),
    [
        (GREEDY, (5, 2), FinishHere("stop", 2)),
        (replace(GREEDY, stop_token_ids=frozenset({7})), (5, 7), FinishHere("stop", 7)),
        (replace(GREEDY, max_new=2), (5, 6), FinishHere("length")),
        (replace(GREEDY, max_new=2), (5, 2), FinishHere("stop", 2)),
        (replace(GREEDY, max_new=2), (5, 6, 7), FinishHere("length")),
        (replace(GREEDY, max_new=0), (5,), FinishHere("length")),
    ],
)
def test_a_stream_that_is_complete_needs_no_worker(
    sampling: Sampling, committed: tuple[int, ...], expected: FinishHere
) -> None:
    assert plan(sampling, *committed) == expected


@pytest.mark.parametrize(
    ("sampling", "committed"),
    [
        (replace(GREEDY, ignore_eos=True), (5, 2)),
        (replace(GREEDY, ignore_eos=True, stop_token_ids=frozenset({7})), (5, 7)),
        (replace(GREEDY, min_new=3), (5, 2)),
        (GREEDY, (2, 5)),
    ],
    ids=["eos ignored", "the engine ignores stop ids too", "below min_new", "stop id not last"],
)
def test_a_stop_id_that_did_not_stop_the_engine_does_not_stop_the_replay(
    sampling: Sampling, committed: tuple[int, ...]
) -> None:
    assert isinstance(plan(sampling, *committed), Continue)


@pytest.mark.parametrize(
    ("room", "finishes"), [(CONTEXT_RESERVE + 1, False), (CONTEXT_RESERVE, True), (0, True), (-3, True)]
)
def test_a_prefix_that_the_engine_would_not_admit_ends_as_length(room: int, finishes: bool) -> None:
    found = plan(GREEDY, 5, 6, prompt=10, context=12 + room)
    assert (found == FinishHere("length")) is finishes


def test_an_unknown_context_length_cuts_nothing_short() -> None:
    assert plan(GREEDY, 5, 6, context=0) == Continue(98, 0, ())


def test_a_frequency_penalty_is_carried_over_as_a_bias_for_each_time_a_token_came() -> None:
    found = plan(replace(GREEDY, frequency_penalty=0.5, logit_bias=((5, 1.0), (9, 3.0))), 5, 6, 5)
    assert isinstance(found, Continue)
    assert dict(found.logit_bias) == {5: 0.0, 6: -0.5, 9: 3.0}


def test_without_a_penalty_the_bias_travels_unchanged() -> None:
    found = plan(replace(GREEDY, logit_bias=((5, 1.0),)), 5, 5)
    assert isinstance(found, Continue) and found.logit_bias == ((5, 1.0),)


@settings(max_examples=150)
@given(
    st.integers(1, 30),
    st.integers(0, 10),
    st.lists(st.integers(3, 6), max_size=40),
    st.integers(1, 29),
    st.sampled_from([0.0, 0.25]),
)
def test_two_moves_ask_for_the_same_as_one(
    max_new: int, min_new: int, tokens: list[int], cut: int, penalty: float
) -> None:
    """Moving after `cut` tokens and again at the end leaves the limits that one move at the end leaves."""
    sampling = Sampling(max_new, min_new, temperature=0.0, frequency_penalty=penalty)
    once = plan(sampling, *tokens)
    first = plan(sampling, *tokens[:cut])
    if not isinstance(first, Continue) or cut > len(tokens):
        return
    between = replace(sampling, max_new=first.max_new, min_new=first.min_new, logit_bias=first.logit_bias)
    twice = plan(between, *tokens[cut:], prompt=10 + cut)
    if isinstance(once, FinishHere) or isinstance(twice, FinishHere):
        assert once == twice
        return
    assert (once.max_new, once.min_new) == (twice.max_new, twice.min_new)
    one, two = dict(once.logit_bias), dict(twice.logit_bias)
    assert one.keys() == two.keys() and all(math.isclose(one[t], two[t]) for t in one)


@pytest.mark.parametrize(
    ("sampling", "deterministic", "contract", "reason"),
    [
        (GREEDY, True, Contract.EXACT, ""),
        (GREEDY, False, Contract.CONTINUABLE, "endpoint-not-deterministic"),
        (replace(GREEDY, temperature=0.7), True, Contract.CONTINUABLE, "sampled-without-seed"),
        (replace(GREEDY, temperature=0.7, seed=1), True, Contract.EXACT, ""),
        (replace(GREEDY, temperature=0.7, seed=0), True, Contract.EXACT, ""),
        (replace(GREEDY, repetition_penalty=1.1), True, Contract.NONE, "repetition-penalty"),
        (replace(GREEDY, presence_penalty=0.1), True, Contract.NONE, "presence-penalty"),
        (replace(GREEDY, frequency_penalty=0.1), True, Contract.EXACT, ""),
        (replace(GREEDY, extras=frozenset({"regex"})), True, Contract.NONE, "grammar"),
        (replace(GREEDY, extras=frozenset({"return_logprob", "regex"})), False, Contract.NONE, "grammar"),
        (replace(GREEDY, extras=frozenset({"lora_path"})), True, Contract.NONE, "adapter"),
        (replace(GREEDY, extras=frozenset({"top_p"})), True, Contract.EXACT, ""),
    ],
)
def test_the_promise_is_made_at_admission_with_its_reason(
    sampling: Sampling, deterministic: bool, contract: Contract, reason: str
) -> None:
    assert replayability(sampling, deterministic=deterministic) == (contract, reason)


def test_a_request_that_is_only_about_its_prompt_is_asked_for_no_token() -> None:
    assert plan(replace(GREEDY, max_new=0)) == Continue(0, 0, ())
