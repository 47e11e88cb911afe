"""Causes: each has its traits, and evidence gives the most definite one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infctl.domain.causes import Cause, Evidence, Kind, Recovery, Routing, classify, explains, named, traits


def test_every_cause_has_its_traits() -> None:
    for cause in Cause:
        assert traits(cause) == traits(str(cause))
    assert traits("a word of a later version") == traits(Cause.OTHER)
    assert named("a word of a later version") is Cause.OTHER


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (Evidence(exited=True, exit_code=-11), Cause.CRASH),
        (Evidence(exited=True, exit_code=0), Cause.CRASH),
        (Evidence(exited=True), Cause.CRASH),
        (Evidence(exited=True, exit_code=0, ordered=Cause.DRAINED), Cause.DRAINED),
        (Evidence(exited=True, exit_code=-9), Cause.CRASH),
        (Evidence(exited=True, exit_code=-9, oom_kills=1), Cause.OUT_OF_MEMORY),
        (Evidence(exited=True, exit_code=None, oom_kills=1), Cause.OUT_OF_MEMORY),
        (Evidence(exited=True, exit_code=137, oom_kills=2), Cause.OUT_OF_MEMORY),
        (Evidence(exited=True, exit_code=1, oom_kills=1), Cause.CRASH),
        (
            Evidence(exited=True, exit_code=-9, output="torch.OutOfMemoryError: CUDA out of memory. Tried"),
            Cause.DEVICE_OUT_OF_MEMORY,
        ),
        (Evidence(exited=True, exit_code=-9, xid=79), Cause.XID),
        (Evidence(start_failed=True), Cause.SPAWN_FAILED),
        (Evidence(start_failed=True, start_reason="PortTaken"), Cause.PORT_TAKEN),
        (Evidence(start_failed=True, start_reason="ModelMissing"), Cause.MODEL_MISSING),
        (Evidence(start_failed=True, start_reason="WrongRevision"), Cause.WEIGHTS_WRONG),
        (Evidence(start_failed=True, start_reason="InvalidConfig"), Cause.ARGUMENTS_REFUSED),
        (Evidence(wrong_answer=True, shed=True), Cause.CANARY_FAILED),
        (Evidence(bad=frozenset({Kind.PROGRESS, Kind.DATA_PATH})), Cause.HANG),
        (Evidence(bad=frozenset({Kind.DATA_PATH})), Cause.TIMEOUT),
        (Evidence(shed=True, timed_out=True), Cause.OVERLOADED),
        (Evidence(cut=True), Cause.CONNECTION_CUT),
        (Evidence(timed_out=True), Cause.TIMEOUT),
        (Evidence(), Cause.OTHER),
    ],
)
def test_evidence_gives_the_most_definite_cause(seen: Evidence, cause: Cause) -> None:
    assert classify(seen) is cause


def test_overload_lowers_the_weight_and_is_never_a_fault() -> None:
    full = traits(Cause.OVERLOADED)
    assert full.routing is Routing.LOWER and full.recovery is Recovery.NONE and not full.unexplained


def test_poison_is_looked_for_only_where_a_request_may_have_done_it() -> None:
    """R8: no Xid, no lost host, no order of an operator, no hang that we killed ourselves."""
    suspects = {cause for cause in Cause if traits(cause).unexplained}
    assert suspects == {Cause.CRASH, Cause.OUT_OF_MEMORY, Cause.DEVICE_OUT_OF_MEMORY}


def test_what_was_ordered_needs_no_recovery_and_stops_routing() -> None:
    for cause in Cause:
        if traits(cause).planned:
            assert traits(cause).recovery is Recovery.NONE and traits(cause).routing is Routing.STOP


EVIDENCE = st.builds(
    Evidence,
    ordered=st.none() | st.sampled_from(Cause),
    exited=st.booleans(),
    exit_code=st.none() | st.integers(-64, 255),
    oom_kills=st.integers(-1, 3),
    output=st.text(max_size=40) | st.just("CUDA error: out of memory"),
    xid=st.none() | st.integers(0, 200),
    start_reason=st.sampled_from(["", "PortTaken", "?"]),
    start_failed=st.booleans(),
    wrong_answer=st.booleans(),
    shed=st.booleans(),
    timed_out=st.booleans(),
    cut=st.booleans(),
    bad=st.frozensets(st.sampled_from(Kind)),
)


@given(EVIDENCE)
def test_every_evidence_has_a_cause_and_an_exit_is_never_called_overload(seen: Evidence) -> None:
    cause = classify(seen)
    assert cause in Cause
    if seen.ordered is not None:
        assert cause is seen.ordered
    elif seen.exited:
        assert cause not in (Cause.OVERLOADED, Cause.TIMEOUT, Cause.CONNECTION_CUT, Cause.OTHER)
        assert traits(cause).kind is not Kind.PLANNED


@pytest.mark.parametrize(
    ("word", "other", "is_so"),
    [
        (Cause.HANG, Cause.CRASH, True),
        (Cause.DRAINED, Cause.CRASH, True),
        (Cause.XID, Cause.OUT_OF_MEMORY, True),
        (Cause.CRASH, Cause.HANG, False),
        (Cause.OUT_OF_MEMORY, Cause.CRASH, False),
        (Cause.HOST_LOST, Cause.CRASH, False),
        (Cause.HANG, Cause.CANARY_FAILED, False),
    ],
)
def test_only_what_says_why_explains_an_end_that_nobody_could(word: Cause, other: Cause, is_so: bool) -> None:
    assert explains(word, other) is is_so
