"""What the holder of a lease may believe."""

from __future__ import annotations

import pytest

from infctl.domain.lease import Holding, LeaseClock

LEASE = LeaseClock.granted(7, 10.0, sent_at=100.0)


@pytest.mark.parametrize(
    ("now", "holding"),
    [(100.0, Holding.HELD), (109.9, Holding.HELD), (110.0, Holding.UNCERTAIN), (1e9, Holding.UNCERTAIN)],
)
def test_a_lease_is_held_until_its_ttl_after_the_moment_it_was_asked_for(now: float, holding: Holding) -> None:
    assert LEASE.holding(now) is holding


def test_a_renewal_counts_from_the_moment_it_was_sent_not_answered() -> None:
    assert LEASE.renewed(10.0, sent_at=105.0).deadline == 115.0


def test_an_answer_out_of_order_never_shortens_the_deadline() -> None:
    assert LEASE.renewed(10.0, sent_at=108.0).renewed(10.0, sent_at=103.0).deadline == 118.0


def test_a_shorter_ttl_from_the_store_never_shortens_what_was_granted_before() -> None:
    shorter = LEASE.renewed(2.0, sent_at=101.0)
    assert (shorter.ttl, shorter.deadline) == (2.0, 110.0)


def test_a_past_deadline_alone_is_uncertain_and_a_renewal_makes_it_held_again() -> None:
    assert LEASE.holding(200.0) is Holding.UNCERTAIN
    assert LEASE.renewed(10.0, sent_at=199.0).holding(200.0) is Holding.HELD


def test_only_a_definite_answer_loses_the_lease_and_nothing_brings_it_back() -> None:
    lost = LEASE.answered_gone()
    assert lost.holding(100.0) is Holding.LOST
    assert lost.renewed(10.0, sent_at=101.0) == lost


@pytest.mark.parametrize("ttl", [0.0, -1.0])
def test_a_renewal_without_time_left_is_no_renewal(ttl: float) -> None:
    assert LEASE.renewed(ttl, sent_at=105.0) == LEASE


@pytest.mark.parametrize(
    ("now", "wait"), [(100.0, 5.0), (104.0, 3.0), (109.0, 0.5), (109.9, 0.1), (110.0, 0.1), (500.0, 0.1)]
)
def test_the_next_renewal_leaves_time_for_a_second_try(now: float, wait: float) -> None:
    assert LEASE.next_renewal(now) == pytest.approx(wait)
    if now + wait < LEASE.deadline:
        assert LEASE.deadline - (now + wait) >= wait - 1e-9
