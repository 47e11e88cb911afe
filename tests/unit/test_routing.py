"""Which endpoint gets a request."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infctl.domain.model import Endpoint, EndpointState
from infctl.domain.routing import NoRoute, Wanted, compatible, pick

A = Endpoint("a", "p", 1, "a-1", "http://a", "m", "rev", "tok", 1000, 100, max_running=4, max_queued=4)
B = replace(A, group="b", launch="b-1", url="http://b")
C = replace(A, group="c", launch="c-1", url="http://c", max_running=40, max_queued=40)
WANTED = Wanted("m")


def test_the_least_loaded_endpoint_is_picked_and_the_first_by_name_among_equals() -> None:
    assert pick([B, A], WANTED, {}) is A
    assert pick([A, B], WANTED, {"a-1": 1}) is B


def test_load_is_measured_against_the_capacity() -> None:
    assert pick([A, C], WANTED, {"a-1": 2, "c-1": 10}) is C
    assert pick([A, C], WANTED, {"a-1": 1, "c-1": 20}) is A


@pytest.mark.parametrize(
    ("endpoints", "wanted", "load", "why"),
    [
        ([], WANTED, {}, NoRoute.UNKNOWN_MODEL),
        ([A], Wanted("other"), {}, NoRoute.UNKNOWN_MODEL),
        ([replace(A, state=EndpointState.DRAINING)], WANTED, {}, NoRoute.NONE_READY),
        ([replace(A, state=EndpointState.SUSPECT)], WANTED, {}, NoRoute.NONE_READY),
        ([replace(A, state=EndpointState.UNFIT)], WANTED, {}, NoRoute.NONE_READY),
        ([A], Wanted("m", exclude_launches=frozenset({"a-1"})), {}, NoRoute.NONE_READY),
        ([A], Wanted("m", exclude_groups=frozenset({"a"})), {}, NoRoute.NONE_READY),
        ([A], Wanted("m", revision="newer"), {}, NoRoute.NONE_READY),
        ([A], Wanted("m", tokenizer_digest="other"), {}, NoRoute.NONE_READY),
        ([A], Wanted("m", context_length=1001), {}, NoRoute.NONE_READY),
        ([A, B], WANTED, {"a-1": 8, "b-1": 9}, NoRoute.ALL_FULL),
        ([replace(A, max_running=0, max_queued=0)], WANTED, {}, NoRoute.ALL_FULL),
    ],
)
def test_nothing_is_picked_for_a_reason_that_can_be_told(
    endpoints: list[Endpoint], wanted: Wanted, load: dict[str, int], why: NoRoute
) -> None:
    assert pick(endpoints, wanted, load) is why


def test_a_suspect_endpoint_is_the_last_resort_of_new_requests_and_an_unfit_one_is_none() -> None:
    suspect = replace(A, state=EndpointState.SUSPECT)
    assert pick([suspect, B], WANTED, {"b-1": 5}, last_resort=True) is B
    assert pick([suspect, B], WANTED, {"b-1": 8}, last_resort=True) is NoRoute.ALL_FULL
    assert pick([suspect, replace(B, state=EndpointState.DRAINING)], WANTED, {}, last_resort=True) is suspect
    assert pick([replace(A, state=EndpointState.UNFIT)], WANTED, {}, last_resort=True) is NoRoute.NONE_READY


def test_a_replay_away_from_a_fault_may_queue_on_a_full_survivor() -> None:
    assert pick([A, B], WANTED, {"a-1": 9, "b-1": 8}, ignore_caps=True) is B


def test_a_replay_still_needs_the_same_weights_and_tokenizer() -> None:
    wanted = Wanted("m", revision="rev", tokenizer_digest="tok", context_length=1000)
    assert compatible(A, wanted)
    assert pick([replace(B, revision="x"), A], wanted, {"a-1": 99}, ignore_caps=True) is A


@pytest.mark.parametrize(
    "change", [{"model": "x"}, {"revision": "x"}, {"tokenizer_digest": "x"}, {"context_length": 999}], ids=str
)
def test_an_endpoint_that_differs_in_one_thing_cannot_continue(change: dict[str, object]) -> None:
    wanted = Wanted("m", "rev", "tok", 1000)
    assert not compatible(replace(A, **change), wanted)  # type: ignore[arg-type]


@settings(max_examples=100)
@given(
    st.lists(
        st.builds(
            lambda n, run, queue, ready: replace(
                A,
                group=f"g{n}",
                launch=f"g{n}-1",
                max_running=run,
                max_queued=queue,
                state=EndpointState.READY if ready else EndpointState.DRAINING,
            ),
            st.integers(0, 5),
            st.integers(0, 4),
            st.integers(0, 4),
            st.booleans(),
        ),
        max_size=6,
        unique_by=lambda e: e.group,
    ),
    st.dictionaries(st.sampled_from([f"g{n}-1" for n in range(6)]), st.integers(0, 9)),
    st.frozensets(st.sampled_from([f"g{n}-1" for n in range(6)])),
)
def test_what_is_picked_is_ready_has_room_is_not_excluded_and_does_not_depend_on_the_order(
    endpoints: list[Endpoint], load: dict[str, int], exclude: frozenset[str]
) -> None:
    wanted = Wanted("m", exclude_launches=exclude)
    found = pick(endpoints, wanted, load)
    assert pick(list(reversed(endpoints)), wanted, load) == found
    if isinstance(found, Endpoint):
        assert found.state is EndpointState.READY
        assert found.launch not in exclude
        assert load.get(found.launch, 0) < found.capacity
    else:
        room = [
            e
            for e in endpoints
            if e.state is EndpointState.READY and e.launch not in exclude and load.get(e.launch, 0) < e.capacity
        ]
        assert not room
