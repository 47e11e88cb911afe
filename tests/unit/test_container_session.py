"""Launches held by a session alone, which works everywhere: the cases that every kind of container must pass."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support import container_cases as cases


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.__name__)
async def test_a_session(case: cases.Case, tmp_path: Path) -> None:
    async with asyncio.timeout(50):
        await case(await cases.driver("session", tmp_path), tmp_path)
