"""docs/health.md names every cause and every reason that the code can give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infctl.domain.causes import Cause, Kind, Recovery, traits
from infctl.domain.health_events import Reason

PAGE = (Path(__file__).parents[2] / "docs" / "health.md").read_text()
ROWS = [line.split("|") for line in PAGE.split("## Causes")[1].split("## Restarts")[0].splitlines() if "| `" in line]


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_its_row_and_the_row_says_what_the_code_does(cause: Cause) -> None:
    (row,) = [r for r in ROWS if f"`{cause}`" in r[1]]
    what = traits(cause)
    assert row[3].strip() == str(what.kind if what.kind is not Kind.DATA_PATH else "data path")
    assert row[4].strip() == {Recovery.RESTART: "yes", Recovery.CHANGE: "few tries", Recovery.NONE: "no"}[what.recovery]
    assert row[5].strip() == ("yes" if what.unexplained else "no")


def test_every_reason_that_speaks_against_a_launch_is_named() -> None:
    good = {Reason.ANSWERS, Reason.MOVES, Reason.SERVES, Reason.RIGHT}
    assert {str(r) for r in Reason if r not in good} <= set(re.findall(r"`(\w+)`", PAGE))
