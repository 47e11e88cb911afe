"""What a test needs of the machine: without it the test is skipped with the reason, and in CI that is a failure."""

from __future__ import annotations

import os

import pytest


def need(reason: str) -> None:
    """Go on where `reason` is empty; CI=1 says that this machine must be able to."""
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
