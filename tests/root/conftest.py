"""Tests that need root: a real systemd, or several hosts, in namespaces.

Skipped with the reason elsewhere; in CI a skip is a failure.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.freezer import Freezer, a_freezer, freezers
from tests.support.needs import need
from tests.support.real_systemd import RealSystemd, real_systemd, why_not


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSystemd]:
    """One booted systemd for the tests of a file."""
    need(why_not())
    with real_systemd(tmp_path_factory.mktemp("systemd")) as booted:
        yield booted


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    """What is put into it is in state D until it is let go."""
    top = freezers()
    need("" if top else "no freezer of cgroup version 1 is mounted")
    assert top is not None
    with a_freezer(top) as made:
        yield made
