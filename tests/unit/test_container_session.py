"""Launches held by a session alone, which works everywhere: the cases that every kind of container must pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import container_cases as cases


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.__name__)
async def test_a_session(case: cases.Case, tmp_path: Path) -> None:
    await cases.held(case, "session", tmp_path)
