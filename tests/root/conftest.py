"""Tests that need root: a real systemd in namespaces. Skipped with the reason elsewhere; in CI a skip is a failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.needs import need
from tests.support.real_systemd import RealSystemd, real_systemd, why_not


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSystemd]:
    """One booted systemd for the tests of a file."""
    need(why_not())
    with real_systemd(tmp_path_factory.mktemp("systemd")) as booted:
        yield booted
