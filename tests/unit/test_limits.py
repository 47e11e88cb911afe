"""The timers of a cluster bind each other (R4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infctl.domain.model import Endpoint, Limits

DEFAULT = Limits()


def broken(limits: Limits) -> set[str]:
    return {name for name, _ in limits.problems()}


def test_the_defaults_fit_together() -> None:
    assert DEFAULT.problems() == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"probe": 2.0}, "probe"),
        ({"probe": 3.0}, "probe"),
        ({"loads_poll": 2.0}, "loads_poll"),
        ({"stall": 10.0}, "stall"),
        ({"lease_ttl": 2.0}, "stall"),
        ({"hand_over": 870.0}, "hand_over"),
        ({"sigterm": 900.0}, "sigterm"),
        ({"drain_deadline": 870.0}, "sigterm"),
        ({"detach_grace": 121.0}, "detach_grace"),
        ({"resume_window": 14.0}, "detach_grace"),
    ],
)
def test_a_timer_that_does_not_fit_is_named_with_both_numbers(change: dict[str, float], field: str) -> None:
    problems = replace(DEFAULT, **change).problems()  # type: ignore[arg-type]
    assert [name for name, _ in problems] == [field]
    assert f"{next(iter(change.values())):g} s" in problems[0][1]


def test_a_grace_as_long_as_the_resume_window_is_allowed() -> None:
    assert replace(DEFAULT, detach_grace=120.0).problems() == []


@pytest.mark.parametrize("field", Limits.__slots__)
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_negative_number_and_no_number_at_all_are_found_in_every_field(field: str, value: float) -> None:
    assert field in broken(replace(DEFAULT, **{field: value}))  # type: ignore[arg-type]


def test_all_problems_are_told_at_once() -> None:
    limits = replace(DEFAULT, probe=5.0, sigterm=1000.0, detach_grace=500.0, migrations=-1)
    assert broken(limits) == {"probe", "sigterm", "detach_grace", "migrations"}


def test_the_capacity_of_an_endpoint_counts_running_and_queued() -> None:
    endpoint = Endpoint("a", "p", 1, "a-1", "http://h", "m", "r", "t", 1000, 100, max_running=3, max_queued=4)
    assert endpoint.capacity == 7
