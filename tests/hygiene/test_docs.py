"""What the pages promise is there: every test that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_a_page_names_exists() -> None:
    named = {name for page in (ROOT / "docs").rglob("*.md") for name in re.findall(r"`(test_\w+)`", page.read_text())}
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert sorted(name for name in named if f"def {name}(" not in source) == []
