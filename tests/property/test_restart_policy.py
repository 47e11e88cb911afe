"""The restart policy over any history of ends: bounded delays, honest giving-up, nothing counted that was ordered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infctl.domain.causes import Cause, Recovery, traits
from infctl.domain.restart import Again, Failures, GiveUp, RestartPolicy, chance, verdict

CAUSES = st.sampled_from(Cause)
ENDS = st.lists(st.tuples(st.floats(0.1, 400.0), CAUSES, st.floats(0.0, 400.0)), max_size=30)
POLICIES = st.builds(
    RestartPolicy,
    first_delay=st.floats(0.0, 5.0),
    max_delay=st.floats(5.0, 120.0),
    attempts=st.integers(0, 6),
    interval=st.floats(1.0, 1000.0),
    change_attempts=st.integers(0, 4),
    jitter=st.floats(0.0, 1.0),
    good_life=st.floats(1.0, 1000.0),
)


def lived(policy: RestartPolicy, ends: list[tuple[float, Cause, float]]) -> tuple[Failures, float]:
    failures, now = Failures(), 0.0
    for gap, cause, served in ends:
        now += gap
        failures = failures.with_end(policy, cause, now, min(served, gap))
    return failures, now


@given(POLICIES, ENDS)
def test_only_recent_ends_that_nobody_ordered_count(
    policy: RestartPolicy, ends: list[tuple[float, Cause, float]]
) -> None:
    failures, now = lived(policy, ends)
    assert set(failures.vain) <= set(failures.at)
    assert list(failures.at) == sorted(failures.at)
    ordered = [c for _, c, _ in ends if traits(c).recovery is Recovery.NONE]
    assert len(failures.at) <= len(ends) - len(ordered)
    # an end that was ordered adds none, and what it leaves is recent
    after = failures.with_end(policy, Cause.OPERATOR, now + policy.interval + 1.0, 0.0)
    assert after == Failures()


@given(POLICIES, ENDS, CAUSES)
def test_a_long_good_life_clears_what_was_before(
    policy: RestartPolicy, ends: list[tuple[float, Cause, float]], cause: Cause
) -> None:
    failures, now = lived(policy, ends)
    after = failures.with_end(policy, cause, now + policy.good_life, policy.good_life)
    assert len(after.at) <= 1


@given(POLICIES, ENDS, st.text(max_size=12))
def test_a_verdict_waits_within_bounds_or_gives_up_for_a_reason_that_is_counted(
    policy: RestartPolicy, ends: list[tuple[float, Cause, float]], launch: str
) -> None:
    failures, _ = lived(policy, ends)
    match verdict(policy, failures, launch):
        case Again(delay):
            assert 0.0 <= delay <= policy.max_delay
            assert len(failures.at) <= policy.attempts
            assert len(failures.vain) <= policy.change_attempts
        case GiveUp(why):
            assert len(failures.at) > policy.attempts or len(failures.vain) > policy.change_attempts
            assert why


@given(POLICIES, CAUSES)
def test_a_crash_loop_ends_after_the_attempts_and_what_only_a_change_helps_not_later(
    policy: RestartPolicy, cause: Cause
) -> None:
    failures, tries = Failures(), 0
    while isinstance(verdict(policy, failures, "a-1"), Again) and tries < 10:
        tries += 1
        failures = failures.with_end(policy, cause, 1.0, 0.0)
    match traits(cause).recovery:
        case Recovery.NONE:
            assert tries == 10
        case Recovery.CHANGE:
            assert tries == min(policy.attempts, policy.change_attempts) + 1
        case _:
            assert tries == policy.attempts + 1


@given(POLICIES, st.integers(0, 10_000), st.floats(0.0, 1.0, exclude_max=True))
def test_the_jitter_stays_in_its_share_and_never_exceeds_the_longest_delay(
    policy: RestartPolicy, failures: int, luck: float
) -> None:
    plain = policy.delay(failures)
    assert plain <= policy.max_delay
    assert policy.delay(failures, luck) <= policy.max_delay
    assert abs(policy.delay(failures, luck) - plain) <= plain * policy.jitter / 2 + 1e-9


@given(st.text())
def test_the_chance_of_a_name_is_one_number_below_one(name: str) -> None:
    assert 0.0 <= chance(name) < 1.0
    assert chance(name) == chance(name)
